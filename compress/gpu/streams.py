"""A stream of a card beside the one that computes: what is put there waits for a mark, and its result is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Side:
    """Work of another thread on one device. On a CPU, and where no card is, it does nothing."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream: Any = None
        if device.type == "cuda" and torch.cuda.is_available():
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def mark(self) -> Any:
        """What the calling thread has started by now, which ``after`` waits for; not the host."""
        if self.stream is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    @contextmanager
    def after(self, mark: Any, *used: torch.Tensor) -> Iterator[None]:
        """While it lasts, what this thread starts runs beside the computation, after the mark. used: tensors of the
        other stream that it reads: their memory is not given away before it has."""
        if self.stream is None:
            yield
            return
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            self.stream.wait_event(mark)
            for one in used:
                one.record_stream(self.stream)
            yield

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """A future whose result is given inside ``after``: who waits for it makes its own stream wait, not the host."""
        if self.stream is None:
            return torch.futures.Future()
        return torch.futures.Future(devices=[self.device])
