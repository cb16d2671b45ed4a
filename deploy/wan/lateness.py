"""How late the emulator itself was, and whether measurements through it are valid. Pure.

A histogram of 50 us steps: entry k counts the packets that were handed over k to k+1 steps after they were due.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

STEP = 50e-6
STEPS = 2000  # the last entry counts everything later than 100 ms


@dataclasses.dataclass(frozen=True)
class Lateness:
    """An emulator's lateness in a period of `seconds`. Times in milliseconds; `core`: processor use in cores. `missed`:
    packets dropped at a full device because the emulator did not fetch them in time."""

    packets: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    core: float
    seconds: float
    missed: int = 0


def between(before: Sequence[int], after: Sequence[int], cpu: float, seconds: float, missed: int = 0) -> Lateness:
    """Lateness of what happened between two copies of the histogram."""
    counts = [b - a for a, b in zip(before, after, strict=True)]
    return Lateness(
        sum(counts),
        percentile(counts, 0.5),
        percentile(counts, 0.99),
        percentile(counts, 0.999),
        cpu / seconds if seconds > 0 else 0.0,
        seconds,
        missed,
    )


def percentile(counts: Sequence[int], share: float) -> float:
    """The upper edge, in ms, of the step that holds the given share of all packets (0 where there are none)."""
    total = sum(counts)
    if not total:
        return 0.0
    need = share * total
    seen = 0
    for step, count in enumerate(counts):
        seen += count
        if seen >= need:
            return (step + 1) * STEP * 1e3
    return len(counts) * STEP * 1e3


def verdict(late: Lateness, smallest_delay_ms: float) -> tuple[bool, str]:
    """(usable, why). An emulator may be late by a tenth of the smallest delay, at least 2 ms and at most 5 ms, for
    99 of 100 packets, and may use 0.8 of a core: beyond that the measurements show the emulator, not the link."""
    allowed = min(5.0, max(2.0, smallest_delay_ms / 10))
    said = f"99 % of {late.packets} packets within {late.p99_ms:.2f} ms of their time, {late.core:.2f} core"
    if late.p99_ms > allowed:
        return False, f"the emulator was late: {said}; {allowed:.1f} ms are allowed"
    if late.missed:
        return False, f"the emulator missed {late.missed} packets: {said}"
    if late.core > 0.8:
        return False, f"the emulator had too much to do: {said}; 0.8 core is allowed"
    return True, f"the emulator kept up: {said}"
