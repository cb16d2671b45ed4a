"""Calls the callbacks of transformers' Trainer (TensorBoard, W&B, the user's own) with the events of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ..cli.screen.events.event import Event


class _Arguments(SimpleNamespace):
    """The arguments, with the methods of TrainingArguments that callbacks call."""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    to_sanitized_dict = to_dict

    def to_json_string(self) -> str:
        return json.dumps(self.to_dict(), default=str, indent=2)


class Callbacks:
    """Translates events to transformers' callbacks; call ``told`` with every event of a run.

    It calls ``on_train_begin``, ``on_log`` after each step (with the loss, without the learning rate), ``on_step_end``,
    ``on_evaluate`` (and ``on_log``) with ``eval_loss``, ``on_save``, ``on_train_end``. Changes of ``control`` by a
    callback have no effect: only the caller of the run can stop it.
    """

    def __init__(self, callbacks: Sequence[Any], arguments: Mapping[str, Any], model: Any, tokenizer: Any) -> None:
        from transformers import TrainerControl, TrainerState

        self._callbacks = [one() if isinstance(one, type) else one for one in callbacks]
        more = {"run_name": str(arguments["output_dir"]), "report_to": [], "logging_steps": 1, "world_size": 1}
        self._arguments = _Arguments(**{**arguments, "output_dir": str(arguments["output_dir"]), **more})
        self._state = TrainerState(is_local_process_zero=True, is_world_process_zero=True)
        self._control = TrainerControl()
        self._more = {"model": model, "processing_class": tokenizer}
        self._begun = False

    def told(self, event: Event) -> None:
        """An event of the run, as `farflung run --json` has it."""
        kind = event["event"]
        if kind == "view" and not self._begun:
            self._begun = True
            self._say("on_train_begin")
        elif kind == "step":
            self._state.global_step = int(event["step"])
            self._say("on_step_begin")
            self._say("on_step_end")
            logs = {"loss": event["loss"], "tokens_per_second": event["tokens_per_second"]}
            self._log({name: value for name, value in logs.items() if value is not None})
        elif kind == "eval":
            metrics = {"eval_loss": event["loss"]}
            metrics |= {f"eval_{name}_loss": found["loss"] for name, found in (event.get("sets") or {}).items()}
            self._log(metrics)
            self._say("on_evaluate", metrics=metrics)
        elif kind == "checkpoint":
            self._say("on_save")
        elif kind == "done" and self._begun:
            self._say("on_train_end")

    def _log(self, logs: dict[str, Any]) -> None:
        self._state.log_history.append({**logs, "step": self._state.global_step})
        self._say("on_log", logs=logs)

    def _say(self, what: str, **more: Any) -> None:
        for one in self._callbacks:
            hears = getattr(one, what, None)
            if hears is not None:
                hears(self._arguments, self._state, self._control, **self._more, **more)
