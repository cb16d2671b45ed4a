"""The state of the last view that a restarted coordinator needs: its steps and sections, and the reports of its last
stages. Converted to text for the store, and back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ...membership.signals import Announcement, Section

_VIEWS = 2  # the newest is written a moment before it is announced, so the one before is kept too


@dataclass(frozen=True)
class Stand:
    """The stand of a view. ``norm``: the committed global norm of the step after which the view continues; it may be
    not finite."""

    norm: float = 0.0
    sections: tuple[Section, ...] = ()


def with_stand(text: str, view: Announcement) -> str:
    """``text`` (the last result of this function, or empty) with the stand of one more view."""
    known = json.loads(text or "{}")
    rows = [[one.name, one.round, one.chain] for one in view.sections]
    known[str(view.number)] = {"norm": float.hex(view.norm), "sections": rows}
    return json.dumps(dict(sorted(known.items(), key=lambda item: int(item[0]))[-_VIEWS:]))


def stand_in(text: str, view: int) -> Stand:
    """The stand of a view; an empty one where the text lacks it (written by an older version)."""
    found = json.loads(text or "{}").get(str(view))
    if found is None:
        return Stand()
    sections = tuple(Section(str(name), int(round), int(chain)) for name, round, chain in found["sections"])
    return Stand(float.fromhex(found["norm"]), sections)


def reported_text(view: Announcement, reported: Mapping[str, int]) -> str:
    """The reported steps of the last stages as text; only their reports count."""
    last = {pipeline[-1] for pipeline in view.plan.pipelines}
    return json.dumps({"view": view.number, "steps": {name: reported[name] for name in sorted(last & set(reported))}})


def reported_in(text: str, view: Announcement, finished: int) -> dict[str, int]:
    """Node of a last stage -> its reported step: at least the step that all nodes of ``view`` had ``finished``."""
    known = json.loads(text or "{}")
    steps = known.get("steps", {}) if known.get("view") == view.number else {}
    least = max(finished, view.position.step)
    return {pipeline[-1]: max(least, int(steps.get(pipeline[-1], 0))) for pipeline in view.plan.pipelines}
