"""A node's life: measure the device, join, train until the run is done or the node's owner has had enough."""

from __future__ import annotations

import fcntl
import importlib
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import torch

from ..proto.errors import FarflungError
from ..proto.link import Link
from .dataset import Dataset, dataset_of
from .join import join
from .metrics import check_address
from .models import model_of
from .probe import find_device, measure_device
from .trainer import Stopped, Trainer, error_of
from .wire import Wire

Emit = Callable[[dict[str, Any]], None]


class Terminated(Exception):
    """SIGTERM: the machine is about to be taken away."""


def run(
    link: Link,
    *,
    device: str = "auto",
    name: str | None = None,
    advertise: str | None = None,
    listen: str | None = None,
    allow_code: Sequence[str] = (),
    cache: Path | None = None,
    insecure: bool = False,
    metrics: str | None = None,
    emit: Emit,
) -> int:
    """Join the run of ``link`` and train in it; ``emit`` gets the node's events. Returns the exit status.

    Raises:
        FarflungError: the node could not join, was refused, or the run failed; ``status`` says which.
        KeyboardInterrupt: Ctrl-C, after the coordinator has heard a goodbye.
    """
    if link.insecure and not insecure:
        raise FarflungError(
            "this link is of a run without TLS: anyone on the way can read and change everything",
            "join with --insecure if that is what you want",
        )
    metrics_at = check_address(metrics)
    cache = cache or Path.home() / ".cache" / "farflung"
    signal.signal(signal.SIGTERM, _terminate)
    # Seconds of work that the others would wait for if it came after the join.
    importlib.import_module("transformers.modeling_utils")
    lock = _one_of_a_name(cache, link.run, name) if name else None
    joined = join(link, measure_device(device), name or "", advertise or "", cache, listen or "")
    emit(
        {
            "event": "joined",
            "time": time.time(),
            "node": joined.name,
            "why": f"joined run {link.run} as {joined.name} at {joined.address}"
            + (", where nobody can dial it: it dials the others" if joined.dials_out else ""),
        }
    )
    wire = Wire.start(replace(joined.config, metrics=metrics_at))
    why = "the node failed"
    try:
        definition = model_of(joined.job, joined.facts, wire.fetch, allow_code)

        def open_data() -> Dataset:
            return dataset_of(joined.job, joined.facts, wire.fetch, cache, allow_code)

        trainer = Trainer(wire, joined.name, joined.job, joined.facts, definition, open_data, find_device(device), emit)
        trainer.run()
    except Stopped as stopped:
        why = ""
        error = error_of(stopped)
        if error is not None:
            raise error from None
        emit({"event": "left", "time": time.time(), "node": joined.name, "why": stopped.why})
    except KeyboardInterrupt:
        why = "interrupted by its owner"
        raise
    except Terminated:
        why = "its machine is being taken away (SIGTERM)"
        emit({"event": "left", "time": time.time(), "node": joined.name, "why": why})
    except (FarflungError, torch.OutOfMemoryError) as problem:
        why = f"failed: {problem}"
        raise
    finally:
        wire.close(why)
        if lock is not None:
            lock.close()
    return 0


def _one_of_a_name(cache: Path, run: str, name: str) -> TextIO:
    """Hold the name on this machine: a second process would come back with the same key and end the first's session."""
    cache.mkdir(parents=True, exist_ok=True)
    lock = (cache / f"{run}-{name}.lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise FarflungError(
            f"a node called {name} of this run is running on this machine already",
            "give this one another name, e.g. --name " + name + "-2",
        ) from None
    return lock


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: the goodbye must not be broken off
    raise Terminated
