"""The nodes' reports of the last half minute: where each node's time goes, and each link's traffic. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...proto.control_pb2 import StepDone

PARTS = ("compute", "codec", "wire", "waiting", "other")
"""The parts of a step's time; ``other`` is the remainder. The nodes define them in node/device/clock.py."""

WINDOW_S = 30.0
_STEPS = 64


@dataclass(frozen=True)
class _Report:
    """One node's step: when it was reported, the seconds since the report before, its parts in seconds, bytes sent."""

    time: float
    elapsed: float
    parts: tuple[float, ...]
    sent: Mapping[str, int]


@dataclass
class Observed:
    """The reports of the last ``WINDOW_S`` seconds, and sums since the start that only grow."""

    sent_total: dict[tuple[str, str], int] = field(default_factory=dict)
    """(from, to) -> bytes."""
    parts_total: dict[str, list[float]] = field(default_factory=dict)
    """node -> seconds of each of PARTS."""
    _recent: dict[str, deque[_Report]] = field(default_factory=dict)
    _steps: dict[int, list[tuple[float, ...]]] = field(default_factory=dict)

    def step(self, node: str, report: StepDone, now: float) -> None:
        """Take a node's report of a step in."""
        parts = split_of(report)
        mine = self._recent.setdefault(node, deque())
        before = mine[-1].time if mine else now - report.seconds
        sent = {one.peer: one.bytes for one in report.sent}
        mine.append(_Report(now, max(now - before, report.seconds, 1e-6), parts, sent))
        for peer, count in sent.items():
            self.sent_total[node, peer] = self.sent_total.get((node, peer), 0) + count
        total = self.parts_total.setdefault(node, [0.0] * len(PARTS))
        for at, seconds in enumerate(parts):
            total[at] += seconds
        self._steps.setdefault(report.step, []).append(parts)
        while len(self._steps) > _STEPS:
            del self._steps[min(self._steps)]

    def parts_of_step(self, step: int) -> tuple[float, ...] | None:
        """Seconds of each of PARTS, the mean over the nodes that reported the step; None for a step long past."""
        rows = self._steps.pop(step, None)
        return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True)) if rows else None

    def nodes(self, now: float) -> dict[str, dict[str, Any]]:
        """node -> ``step_s`` (mean seconds of a step) and ``parts`` (fraction of it in each of PARTS)."""
        found = {}
        for node, reports in self._current(now).items():
            sums = [sum(column) for column in zip(*(one.parts for one in reports), strict=True)]
            whole = sum(sums) or 1.0
            found[node] = {
                "step_s": sum(sums) / len(reports),
                "parts": {name: value / whole for name, value in zip(PARTS, sums, strict=True)},
            }
        return found

    def links(self, now: float) -> dict[tuple[str, str], float]:
        """(from, to) -> bits per second, the mean over the window."""
        found = {}
        for node, reports in self._current(now).items():
            seconds = sum(one.elapsed for one in reports)
            for peer in {peer for one in reports for peer in one.sent}:
                found[node, peer] = 8 * sum(one.sent.get(peer, 0) for one in reports) / seconds
        return found

    def _current(self, now: float) -> dict[str, deque[_Report]]:
        for node, reports in list(self._recent.items()):
            # The last report stays for three times its own step's length, because steps may be longer than the window.
            while reports and now - reports[0].time > max(WINDOW_S, 3 * reports[-1].elapsed):
                reports.popleft()
            if not reports:
                del self._recent[node]
        return self._recent


def split_of(report: StepDone) -> tuple[float, ...]:
    """Seconds of each of PARTS in a node's step."""
    known = (report.compute_seconds, report.codec_seconds, report.wire_seconds, report.waiting_seconds)
    return (*known, max(0.0, report.seconds - sum(known)))
