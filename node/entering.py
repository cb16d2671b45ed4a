"""How a node enters a run: it checks the link's promises, takes a name that no other process of this machine has,
and joins."""

from __future__ import annotations

import contextlib
import fcntl
import math
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from ..proto.control_pb2 import Device
from ..proto.errors import FarflungError
from ..proto.words.border import below
from ..proto.words.link import Link
from .device.identity import known_names
from .device.limits import Limits
from .device.probe import measure_device
from .join import Joined, join
from .promises import Broken


class Past:
    """State that one life of this process leaves for the next. ``name``: the node's name, empty if not yet known."""

    def __init__(self, name: str) -> None:
        self.name, self.joined, self.entered = name, False, -math.inf
        self._device: Device | None = None

    def measured(self, device: str) -> Device:
        """The measured device; measured once, because it takes seconds and is the same in all lives."""
        if self._device is None:
            self._device = measure_device(device)
        copied = Device()
        copied.CopyFrom(self._device)
        return copied


def check_secure(link: Link, insecure: bool, required: bool = False) -> None:
    """Checks a link without TLS. Raises Broken if TLS is ``required``, else FarflungError unless ``insecure`` allows
    it."""
    if link.insecure and required:
        raise Broken("this node is to join only with 'tls', and this link is of a run without", "ask for another link")
    if link.insecure and not insecure:
        raise FarflungError(
            "this link is of a run without TLS: anyone on the way can read and change everything",
            "join with --insecure if that is what you want",
        )


def enter(
    link: Link,
    measure: Callable[[], Device],
    *,
    name: str | None,
    advertise: str | None,
    listen: str | None,
    cache: Path,
    limits: Limits,
) -> tuple[Joined, TextIO | None]:
    """Measure and join. Also returns the lock that keeps other processes of this machine from taking the same name."""
    lock: TextIO | None = None
    if name:
        lock = one_of_a_name(cache, link.run, name)
    else:
        name, lock = as_before(cache, link.run)
    found = within(measure(), limits)
    joined = join(link, found, name, advertise or "", cache, listen or "")
    if lock is None:
        with contextlib.suppress(FarflungError):  # without TLS no key goes with a name, so the lock is not needed
            lock = one_of_a_name(cache, link.run, joined.name)
    return joined, lock


def within(device: Device, limits: Limits) -> Device:
    """The device as the plan is to see it: what its owner allows."""
    if limits.memory:
        device.memory_bytes = min(device.memory_bytes or limits.memory, limits.memory)
        device.main_bytes = min(device.main_bytes, limits.memory)  # 0: not said
    device.upload_bps, device.hours = limits.upload, limits.hours
    return device


def one_of_a_name(cache: Path, run: str, name: str) -> TextIO:
    """Hold the name on this machine: a second process would come back with the same key and end the first's session."""
    cache.mkdir(parents=True, exist_ok=True)
    lock = below(cache, f"{run}-{name}.lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise FarflungError(
            f"a node called {name} of this run is running on this machine already",
            "give this one another name, e.g. --name " + name + "-2",
        ) from None
    return lock


def as_before(cache: Path, run: str) -> tuple[str, TextIO | None]:
    """The name under which this machine was in the run last, if no other process has it now, and its lock."""
    for name in known_names(cache, run):
        with contextlib.suppress(FarflungError):
            return name, one_of_a_name(cache, run, name)
    return "", None
