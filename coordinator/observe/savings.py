"""What compression saves, as the one sentence that the terminal, ``farflung status`` and the page show. Pure.

The first ``updates.dense_rounds`` rounds go uncompressed. Until they are over, the sentence says so. Afterwards it
compares only the bytes since then: an average over both would be wrong for either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Schedule:
    """When updates are compressed: after round ``after`` (0: always; None: never), a round each ``every`` steps."""

    after: int | None = 0
    every: int = 1

    @property
    def last_dense_step(self) -> int:
        """The last step whose bytes may belong to an uncompressed round: a round may be in flight for some more
        steps."""
        return (self.after + 1) * self.every if self.after else 0


def schedule_of(updates: Mapping[str, Any]) -> Schedule:
    """The schedule of a job's table ``updates`` (plain values); where the job is not known, updates count as always
    compressed."""
    after = None if updates.get("codec") == "none" else int(updates.get("dense_rounds") or 0)
    every = updates.get("every") or 1
    every = 1 if every == "auto" else int(every)  # a plan chooses it, and before there is a plan nothing is sent
    return Schedule(after, max(1, every // int(updates.get("fragments") or 1)))


def savings_text(schedule: Schedule, step: int, sent: float, dense: float) -> str:
    """'82x fewer bytes than fp16', or when that begins; empty while nothing is known.

    Args:
        schedule: when updates are compressed.
        step: the newest one.
        sent, dense: bytes of updates and activations since ``schedule.last_dense_step``, as they were sent and as ring
            all-reduce and activations in fp16 would have sent them.
    """
    if schedule.after and step <= schedule.last_dense_step:
        return f"compression starts after round {schedule.after}"
    return compared(dense / sent, "fewer bytes than fp16", "the bytes of fp16") if sent and dense else ""


def compared(ratio: float | None, fewer: str, more: str) -> str:
    """ "82x FEWER", "2.0x MORE", or "as many ..." for a ratio of about 1; never a number below 1."""
    if ratio is None:
        return ""
    if 0.95 < ratio < 1.05:
        return "as many" + fewer.removeprefix("fewer").replace(" than ", " as ")
    return f"{_times(ratio)}x {fewer}" if ratio >= 1 else f"{_times(1 / ratio)}x {more}"


def _times(ratio: float) -> str:
    """1.8, 12, 104."""
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"
