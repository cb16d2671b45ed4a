"""What a coordinator that starts again must know of the last view: where its steps and sections stood, and what its
last stages had reported since. As text for the store, and back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ...membership.signals import Announcement, Section

_VIEWS = 2  # the newest may be written here a moment before it is announced


@dataclass(frozen=True)
class Stand:
    """``norm``: the committed global norm of the step that the view takes up after, which may be not finite."""

    norm: float = 0.0
    sections: tuple[Section, ...] = ()


def with_stand(text: str, view: Announcement) -> str:
    """``text`` (what this made last, or empty) with the stand of one more view."""
    known = json.loads(text or "{}")
    rows = [[one.name, one.round, one.chain] for one in view.sections]
    known[str(view.number)] = {"norm": float.hex(view.norm), "sections": rows}
    return json.dumps(dict(sorted(known.items(), key=lambda item: int(item[0]))[-_VIEWS:]))


def stand_in(text: str, view: int) -> Stand:
    """Of a view; nothing where it is not there (of an older version)."""
    found = json.loads(text or "{}").get(str(view))
    if found is None:
        return Stand()
    sections = tuple(Section(str(name), int(round), int(chain)) for name, round, chain in found["sections"])
    return Stand(float.fromhex(found["norm"]), sections)


def reported_text(view: Announcement, reported: Mapping[str, int]) -> str:
    """Of the last stages, whose reports are what counts."""
    last = {pipeline[-1] for pipeline in view.plan.pipelines}
    return json.dumps({"view": view.number, "steps": {name: reported[name] for name in sorted(last & set(reported))}})


def reported_in(text: str, view: Announcement, finished: int) -> dict[str, int]:
    """What the last stages of ``view`` had reported: at least the step that all of its nodes had ``finished``."""
    known = json.loads(text or "{}")
    steps = known.get("steps", {}) if known.get("view") == view.number else {}
    least = max(finished, view.position.step)
    return {pipeline[-1]: max(least, int(steps.get(pipeline[-1], 0))) for pipeline in view.plan.pipelines}
