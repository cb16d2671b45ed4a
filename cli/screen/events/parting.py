"""The message after Ctrl-C at a coordinator: where the same command resumes, and what is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]


def parting_text(interrupted: Event | None, step: int, kept: int) -> str:
    """A sentence: from which step the run resumes, and how many steps are lost.

    Args:
        interrupted: the coordinator's event ``interrupted``; None where the coordinator ended before sending it.
        step, kept: the newest step and the newest checkpoint's step in the events so far (0: none).
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
