"""A record of a few steps for `farflung profile`: this program's own spans, and torch.profiler's operations.

Nothing is recorded, at no cost, until the coordinator orders it. Recording changes no value of the training.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from ...proto.control_pb2 import Trace
from ...proto.messages.trace import MOST_BYTES, MOST_STEPS, Span, pack
from .clock import StepClock

MOST_OWN = 20_000
MOST_OPERATIONS = 30_000
"""How many spans of each kind are kept; of torch's operations, the longest ones."""
_ORIGIN = "farflung: origin"

Store = Callable[[str, bytes], None]
"""``store(file, payload)`` sends it to the coordinator."""


class Tracing:
    """Waits for an order, records its steps, and sends what it has. All calls come from the trainer's thread."""

    def __init__(self, clock: StepClock, device: torch.device, store: Store) -> None:
        self._clock, self._device, self._store = clock, device, store
        self._order: Trace | None = None
        self._until = 0.0
        self._steps: list[int] = []
        self._profiler: profile | None = None
        self._began = 0.0
        self._why_not = ""

    def wanted(self, order: Trace) -> None:
        """The coordinator wants a trace; this replaces an older order."""
        self._end()
        self._why_not = ""
        self._order, self._until = order, time.monotonic() + order.seconds

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """A context for one step of training; a step that ends by an exception does not count."""
        order = self._order
        if order is not None and self._clock.spans is None and number >= order.first:
            self._begin()
        with self._clock.span(f"step {number}"):
            yield
        if self._clock.spans is not None and order is not None:
            self._steps.append(number)
            if len(self._steps) >= min(order.steps, MOST_STEPS):
                self.finish()

    def tick(self) -> None:
        """Send the trace, complete or not, when the time of the order is over."""
        if self._order is not None and time.monotonic() > self._until:
            self.finish()

    def finish(self) -> None:
        """Send what has been recorded of the steps of the order."""
        if self._order is None:
            return
        file = f"trace/{self._order.id}"
        steps, spans, notes = self._steps, self._clock.spans or [], [self._why_not]
        operations = self._end()
        if len(spans) > MOST_OWN:
            notes.append(f"the last {len(spans) - MOST_OWN} of {len(spans)} spans are left out")
        if len(operations) > MOST_OPERATIONS:
            notes.append(f"the shortest {len(operations) - MOST_OPERATIONS} of {len(operations)} operations left out")
            operations = heapq.nlargest(MOST_OPERATIONS, operations, key=lambda one: one.seconds)
        note = "; ".join(filter(None, notes))
        data = pack(steps, [*spans[:MOST_OWN], *operations], note)
        if len(data) > MOST_BYTES:
            data = pack(steps, spans[:MOST_OWN], "torch's operations are left out: they were too many")
        self._store(file, data)

    # ---- inside ----------------------------------------------------------------------------

    def _begin(self) -> None:
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self._device.type == "cuda")
        profiler = profile(activities=activities)
        try:
            profiler.start()
        except RuntimeError as problem:  # the user of `farflung.group` may run torch.profiler already
            self._why_not = f"no operations: {problem}"[:150]
        else:
            self._profiler = profiler
            self._began = time.monotonic()
            with record_function(_ORIGIN):
                pass
        self._clock.spans = []

    def _end(self) -> list[Span]:
        """Stop recording. Returns torch's operations as spans, with times of this node's clock."""
        self._order, self._steps, self._clock.spans = None, [], None
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return []
        profiler.stop()
        # torch's own list of events: profiler.events() would build a tree first, at 0.1 ms an operation.
        results: Any = profiler.profiler
        found = results.kineto_results.events()
        origin = next((one.start_ns() for one in found if one.name() == _ORIGIN), None)
        if origin is None:
            return []
        return [
            Span(_row(one), one.name(), self._began + (one.start_ns() - origin) / 1e9, one.duration_ns() / 1e9)
            for one in found
            if one.start_ns() >= origin and one.name() != _ORIGIN
        ]


def _row(operation: Any) -> str:
    """The row of the trace that an operation is drawn in: one for each CPU thread and each device stream."""
    if operation.device_type() == DeviceType.CPU:
        return f"2 operations (thread {operation.start_thread_id()})"
    return f"3 device (stream {operation.device_resource_id()})"
