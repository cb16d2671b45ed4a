"""A second GPU stream for work beside the computation: it waits for a mark, and users of its result wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Side:
    """A stream for another thread's work on one device. On a CPU, or without a GPU, it does nothing."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream: Any = None
        if device.type == "cuda" and torch.cuda.is_available():
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def mark(self) -> Any:
        """An event after the work that the calling thread has started; the stream of ``after`` waits for it, the host
        does not."""
        if self.stream is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    @contextmanager
    def after(self, mark: Any, *used: torch.Tensor) -> Iterator[None]:
        """A context in which this thread's work runs on the second stream, after the mark. used: tensors of the other
        stream that it reads; their memory is not reused before it has finished."""
        if self.stream is None:
            yield
            return
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            self.stream.wait_event(mark)
            for one in used:
                one.record_stream(self.stream)
            yield

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """A future whose result is set inside ``after``: waiting for it makes the waiting thread's stream wait, not the
        host."""
        if self.stream is None:
            return torch.futures.Future()
        return torch.futures.Future(devices=[self.device])
