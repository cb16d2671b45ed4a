"""One node's device, as the scheduler sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from ..errors import PlanError

Matrix = NDArray[numpy.float64]

DEFAULT_TFLOPS = 50.0
"""Tflop/s that a device without a measured speed is assumed to reach in training."""

MOST_CARDS = 64
"""Of one island."""
MOST_EVICTIONS = 60.0
"""Evictions an hour, at most: a machine that leaves more often than once a minute trains nothing."""
VIEW_CHANGE_S = 30.0
"""Seconds that a view change costs all nodes after one leaves: noticing it, planning, and fetching the missing
state."""


@dataclass(frozen=True, slots=True)
class Device:
    """One node's device.

    tflops: 10^12 floating point operations a second that training reaches. memory_bytes: None for enough.
    upload, download: bit/s that all of the device's links share, None where only the links limit it. price: dollars an
    hour. evictions: how often an hour the machine is taken away (a spot machine); each time costs all nodes a view
    change. ranks: equal cards of the node, an island: ``memory_bytes`` is of each, ``tflops`` of all together.
    main_bytes: its main memory, None for enough. one_memory: the device's memory is main memory, as a CPU's.
    """

    name: str
    region: str = ""
    tflops: float = DEFAULT_TFLOPS
    memory_bytes: float | None = None
    upload: float | None = None
    download: float | None = None
    price: float | None = None
    evictions: float = 0.0
    ranks: int = 1
    main_bytes: float | None = None
    one_memory: bool = False


def check_device(device: Device) -> None:
    if not device.name:
        raise PlanError("a device has no name")
    if not math.isfinite(device.tflops) or device.tflops <= 0:
        raise PlanError(f"device {device.name!r}: tflops must be above 0, not {device.tflops}")
    memories = {"memory": device.memory_bytes, "main memory": device.main_bytes}
    limits = {**memories, "upload": device.upload, "download": device.download}
    for what, value in limits.items():
        if value is not None and not value > 0:
            raise PlanError(f"device {device.name!r}: {what} must be above 0, not {value}")
    if device.ranks < 1:
        raise PlanError(f"device {device.name!r}: an island has at least 1 card, not {device.ranks}")
    if not 0 <= device.evictions <= MOST_EVICTIONS:
        raise PlanError(
            f"device {device.name!r}: evictions must be from 0 to {MOST_EVICTIONS:g} an hour, not {device.evictions}"
        )
    if device.price is not None and not device.price >= 0:
        raise PlanError(f"device {device.name!r}: price must not be negative, not {device.price}")
