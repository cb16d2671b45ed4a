"""Where copies between main memory and a device run beside its arithmetic: streams of CUDA, and what stands for them.

A *lane* does its work in order, and beside the others'. A *mark* is a point in a lane: another lane, or the host, waits
for it. Who orders the work (node/state/sections/turns.py, node/state/ahead.py) sees neither streams nor devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

UP, DOWN, COMPUTE = "up", "down", "compute"
"""The lanes: to the device, from it, and the stream on which the calling thread computes."""

Mark = Any
"""What ``Streams.mark`` returns."""


class Streams(Protocol):
    """The lanes of one device."""

    is_async: bool
    """Whether a copy to or from pinned memory returns before it is done."""

    def on(self, lane: str, after: Iterable[Mark] = ()) -> Any:
        """A context in which work is given to a lane, after ``after``. The host does not wait."""

    def mark(self, lane: str) -> Mark:
        """The point after all work that was given to the lane so far."""

    def finish(self, mark: Mark) -> None:
        """Let the host wait until that point is reached."""

    def room(self, like: Tensor) -> Tensor:
        """A tensor in main memory, of the shape and dtype of ``like``, with which lanes copy."""


class AtOnce:
    """Everything is done when it is given: on a CPU, and on devices without streams of ours."""

    def __init__(self, is_async: bool = False) -> None:
        self.is_async = is_async

    @contextmanager
    def on(self, lane: str, after: Iterable[Mark] = ()) -> Iterator[None]:
        yield

    def mark(self, lane: str) -> Mark:
        return None

    def finish(self, mark: Mark) -> None:
        """Nothing is under way."""

    def room(self, like: Tensor) -> Tensor:
        return torch.empty_like(like)


class CudaStreams:
    """Two side streams of a card, one for each direction, which its copy engines serve at the same time."""

    is_async = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = {lane: torch.cuda.Stream(device) for lane in (UP, DOWN)}  # type: ignore[no-untyped-call]

    def _of(self, lane: str) -> torch.cuda.Stream:
        return self._side[lane] if lane in self._side else torch.cuda.current_stream(self._device)

    @contextmanager
    def on(self, lane: str, after: Iterable[Mark] = ()) -> Iterator[None]:
        stream = self._of(lane)
        for mark in after:
            stream.wait_event(mark)
        with torch.cuda.stream(stream):
            yield

    def mark(self, lane: str) -> Mark:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._of(lane))
        return event

    def finish(self, mark: Mark) -> None:
        mark.synchronize()

    def room(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


@lru_cache(maxsize=8)
def streams_of(device: torch.device) -> Streams:
    """The lanes of a device. Of a CUDA device that this machine does not have (an emulated one), copies return before
    they are done in name only."""
    if device.type == "cuda" and (device.index or 0) < torch.cuda.device_count():
        return CudaStreams(device)
    return AtOnce(device.type == "cuda")
