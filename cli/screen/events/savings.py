"""The savings of compression, from a run's events: in recent steps, in total, for updates, for activations."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from ....coordinator.observe.savings import Schedule, compared, savings_text

_STEADY_STEPS = 3
_RECENT = 20


@dataclass
class Savings:
    """Sums over the steps seen, in bytes: what the nodes sent, and what ring all-reduce (updates) and activations in
    fp16 would have sent. ``recent``: (sent, in fp16) for the updates of the last steps. ``since``: the sums after the
    uncompressed rounds, and their number of steps."""

    updates: int = 0
    activations: int = 0
    dense_updates: int = 0
    dense_activations: int = 0
    steps: int = 0
    step: int = 0
    _: KW_ONLY
    schedule: Schedule = field(default_factory=Schedule)
    since: tuple[int, int, int] = (0, 0, 0)
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def add(self, step: Mapping[str, Any]) -> None:
        """Take a ``step`` event in."""
        updates, dense = int(step.get("bytes_updates") or 0), int(step.get("bytes_dense") or 0)
        dense_updates = int(step.get("bytes_dense_updates") or 0)
        activations = int(step.get("bytes_activations") or 0)
        self.updates += updates
        self.activations += activations
        self.dense_updates += dense_updates
        self.dense_activations += dense - dense_updates
        self.recent.append((updates, dense_updates))
        self.steps += 1
        self.step = int(step.get("step") or self.step)
        if self.step > self.schedule.last_dense_step:
            sent, in_fp16, steps = self.since
            self.since = sent + updates + activations, in_fp16 + dense, steps + 1

    @property
    def ratio(self) -> float | None:
        """The total's ratio. None in the first steps, because the bytes of an overlapped round count in a later
        step."""
        if self.steps < _STEADY_STEPS:
            return None
        return _ratio(self.updates + self.activations, self.dense_updates + self.dense_activations)

    def text(self) -> str:
        """ "23x fewer bytes than fp16", or when compression begins, or "". Always "" at a node, which does not count
        bytes."""
        sent, dense, steps = self.since
        if not self.updates + self.activations:
            return ""
        return savings_text(self.schedule, self.step, *((sent, dense) if steps >= _STEADY_STEPS else (0, 0)))

    def detail(self) -> str:
        """The same for updates and for activations alone; empty where only one of them was sent."""
        updates, activations = (
            _ratio(self.updates, self.dense_updates),
            _ratio(self.activations, self.dense_activations),
        )
        if updates is None or activations is None or self.steps < _STEADY_STEPS:
            return ""
        parts = [f"updates {compared(updates, 'fewer', 'as many')}"]
        last = _ratio(sum(sent for sent, _ in self.recent), sum(dense for _, dense in self.recent))
        if last is not None and last > 1.5 * updates:
            parts[0] += f" ({compared(last, 'fewer', 'as many').removesuffix(' fewer')} in the last rounds)"
        return ", ".join([*parts, f"activations {compared(activations, 'fewer', 'as many')}"])


def _ratio(sent: int, dense: int) -> float | None:
    return dense / sent if sent and dense else None
