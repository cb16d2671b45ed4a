"""Calls the callbacks of transformers' Trainer (TensorBoard, W&B, the user's own) with the events of a run."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any

from ..cli.screen.events.event import Event
from ..proto.errors import FarflungError


class _Arguments(SimpleNamespace):
    """The arguments, with the methods of TrainingArguments that callbacks call; what a run has no argument for has
    transformers' default."""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    to_sanitized_dict = to_dict

    def to_json_string(self) -> str:
        return json.dumps(self.to_dict(), default=str, indent=2)


class Callbacks:
    """Translates events to transformers' callbacks; call ``told`` with every event of a run.

    It calls ``on_train_begin`` when it is known how many steps the run will have, ``on_log`` after each step (with the
    loss, without the learning rate), ``on_step_end``, ``on_evaluate`` (and ``on_log``) with ``eval_loss``,
    ``on_save``, ``on_train_end``. Changes of ``control`` by a callback have no effect, and are warned of: only the
    caller of the run can stop it.

    Raises:
        FarflungError: a callback is there to stop runs.
    """

    def __init__(self, callbacks: Sequence[Any], arguments: Mapping[str, Any], model: Any, tokenizer: Any) -> None:
        from transformers import EarlyStoppingCallback, TrainerControl, TrainerState, TrainingArguments

        self._callbacks = [one() if isinstance(one, type) else one for one in callbacks]
        if any(isinstance(one, EarlyStoppingCallback) for one in self._callbacks):
            raise FarflungError(
                "callbacks of the Trainer can't stop a run, as EarlyStoppingCallback would",
                'a run stops by itself with Trainer(..., job={"eval": {"patience": 3}})',
            )
        more = {"run_name": str(arguments["output_dir"]), "report_to": [], "logging_steps": 1, "world_size": 1}
        usual = {one.name: one.default for one in fields(TrainingArguments) if one.default is not MISSING}
        self._arguments = _Arguments(**{**usual, **arguments, "output_dir": str(arguments["output_dir"]), **more})
        self._state = TrainerState(is_local_process_zero=True, is_world_process_zero=True)
        self._control = TrainerControl()
        self._more = {"model": model, "processing_class": tokenizer}
        self._begun = self._warned = False
        self._whole = arguments["num_train_epochs"] if arguments["max_steps"] <= 0 else None
        self._state.max_steps = max(0, int(arguments["max_steps"]))
        self._state.num_train_epochs = arguments["num_train_epochs"]

    def told(self, event: Event) -> None:
        """An event of the run, as `farflung run --json` has it."""
        kind = event["event"]
        if kind == "step":
            self._state.max_steps = int(event["steps"])
        if kind in ("view", "step") and self._state.max_steps and not self._begun:
            self._begun = True
            self._say("on_train_begin")
        if kind == "step":
            self._state.global_step = int(event["step"])
            if self._whole is not None:
                self._state.epoch = self._whole * self._state.global_step / self._state.max_steps
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
        if self._whole is not None and self._state.epoch is not None:
            logs["epoch"] = self._state.epoch
        self._state.log_history.append({**logs, "step": self._state.global_step})
        self._say("on_log", logs=logs)

    def _say(self, what: str, **more: Any) -> None:
        for one in self._callbacks:
            hears = getattr(one, what, None)
            if hears is not None:
                hears(self._arguments, self._state, self._control, **self._more, **more)
        if self._control.should_training_stop and not self._warned:
            self._warned = True
            warnings.warn("a callback asked the run to stop, which callbacks can't: interrupt it", stacklevel=2)
