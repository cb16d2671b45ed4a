"""What is said after Ctrl-C at a coordinator: from where the same command goes on, and what is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]


def parting_text(interrupted: Event | None, step: int, kept: int) -> str:
    """What is safe, in a sentence.

    Args:
        interrupted: the coordinator's event of that name; None where it ended before it could say so.
        step, kept: the newest step that was seen here, and the newest one of a checkpoint (0: none).
    """
    if interrupted is None:
        if not step:
            return "stopped before the first step; the same command begins again"
        return f"stopped at once, without a last checkpoint: {_goes_on(kept)}; {_lost(max(0, step - kept))}"
    step, kept = int(interrupted["step"]), int(interrupted["checkpoint"])
    if not step:
        return "stopped before the first step; the same command begins again"
    lost, why = max(0, step - kept), str(interrupted.get("why") or "")
    left = f", left without a last checkpoint ({why})" if lost and why else ""
    return f"stopped after step {step}{left}: {_goes_on(kept)}; {_lost(lost)}"


def _goes_on(kept: int) -> str:
    return f"the same command goes on from step {kept}" if kept else "there is none, and the same command begins again"


def _lost(steps: int) -> str:
    return f"{steps} step{'s are' if steps != 1 else ' is'} lost" if steps else "nothing is lost"
