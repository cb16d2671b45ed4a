"""A run's curves for TensorBoard and Weights & Biases, made from its events. The packages are optional."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ....proto.errors import FarflungError
from ...events import Emit, Event
from ...events import event as new_event

Scalars = dict[str, float]


def scalars_of(event: Event) -> tuple[int, Scalars]:
    """(step, name -> value) of a ``step`` or ``eval`` event; no values for any other."""
    kind, step = event["event"], int(event.get("step") or 0)
    if kind == "eval":
        named = {"loss/validation": event.get("loss"), "accuracy/validation": event.get("accuracy")}
        for name, found in (event.get("sets") or {}).items():
            named |= {f"loss/{name}": found["loss"], f"perplexity/{name}": found["perplexity"]}
    elif kind == "evaluated":
        named = {f"eval/{name}": value for name, value in event["results"].items()}
    elif kind == "step":
        sent = event["bytes_updates"] + event["bytes_activations"]
        named = {
            "loss/training": event.get("loss"),
            "speed/tokens_per_second": event["tokens_per_second"],
            "speed/step_seconds": event["seconds"],
            "bytes/updates": event["bytes_updates"],
            "bytes/activations": event["bytes_activations"],
            "bytes/in_fp16": event["bytes_dense"],
            "bytes/times_fewer_than_fp16": event["bytes_dense"] / sent if sent else None,
        }
    else:
        named = {}
    return step, {name: float(value) for name, value in named.items() if value is not None}


class TensorBoard:
    """Writes event files."""

    def __init__(self, folder: Path) -> None:
        """FarflungError when the package is missing or the folder cannot be written."""
        writer = _package("tensorboard.summary.writer.event_file_writer", "tensorboard", "--tensorboard")
        self._event = _package("tensorboard.compat.proto.event_pb2", "tensorboard", "--tensorboard")
        self._summary = _package("tensorboard.compat.proto.summary_pb2", "tensorboard", "--tensorboard")
        try:
            self._writer = writer.EventFileWriter(str(folder), flush_secs=5)
        except OSError as error:
            raise FarflungError(f"cannot write to {folder}: {error.strerror}", "name another --tensorboard") from None

    def take(self, event: Event) -> None:
        """One event of the run."""
        step, scalars = scalars_of(event)
        if not scalars:
            return
        values = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        summary = self._summary.Summary(value=values)
        self._writer.add_event(self._event.Event(wall_time=event["time"], step=step, summary=summary))

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class WandB:
    """One run of Weights & Biases for one start of the coordinator; the job is its config."""

    def __init__(self, project: str, name: str, job: Mapping[str, Any], folder: Path) -> None:
        """FarflungError when the package is missing or its service refuses."""
        wandb = _package("wandb", "wandb", "--wandb")
        try:
            self._run = wandb.init(project=project, name=name, config=json.loads(json.dumps(job)), dir=str(folder))
        except Exception as error:
            message = f"Weights & Biases did not begin: {type(error).__name__}: {error}"
            raise FarflungError(message, "log in with `wandb login`, or leave --wandb out") from error

    def take(self, event: Event) -> None:
        """One event of the run."""
        step, scalars = scalars_of(event)
        if scalars:
            self._run.log(scalars, step=step)

    def close(self) -> None:
        """Upload the rest and finish the run."""
        self._run.finish()


Logger = TensorBoard | WandB
Make = Callable[[str, Mapping[str, Any], Path], Logger]
"""``make(name, job, state)`` for a run of that name, its job as plain values and its state folder."""


def heeded(logger: Logger, emit: Emit) -> Emit:
    """``logger.take`` for the run's events: an error in it becomes a warning and ends the logging, not the run."""
    broken = False

    def take(event: Event) -> None:
        nonlocal broken
        try:
            if not broken:
                logger.take(event)
        except Exception as error:
            broken = True
            what = f"{type(logger).__name__} takes nothing more: {type(error).__name__}: {error}; training goes on"
            emit(new_event("warning", message=what, node=""))

    return take


def loggers_wanted(tensorboard: Path | None, wandb: str | None) -> list[Make]:
    """The loggers for ``--tensorboard DIR`` and ``--wandb PROJECT``. FarflungError when a package is missing."""
    found: list[Make] = []
    if tensorboard is not None:
        _package("tensorboard", "tensorboard", "--tensorboard")
        found.append(lambda name, job, state: TensorBoard(tensorboard))
    if wandb is not None:
        _package("wandb", "wandb", "--wandb")
        found.append(lambda name, job, state: WandB(wandb, name, job, state))
    return found


def _package(module: str, extra: str, option: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise FarflungError(
            f"{option} needs the package {extra}, which is not installed", f"pip install {extra}"
        ) from None
