"""Residuals that nodes kept beside a checkpoint: who contributes them again, and which samples are trained again.

A checkpoint has the reference only. Each node keeps its residual on its own disk (node/state/files/rests.py), and the
checkpoint's manifest lists, for each pipeline, the samples whose effect is in these residuals alone. If a node of a
pipeline comes back with its residual, the pipeline's samples count as trained, as after the death of its other nodes.
If none does, they are trained again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....job.data.sampling import Position

_NAMED = 4  # more nodes than that are counted, not named
_REMEMBERED = 2  # checkpoints; the newest may never be complete


@dataclass(frozen=True)
class Unsent:
    """Beside a checkpoint. ``redo``: of each pipeline, the positions whose effect its reference does not have."""

    step: int
    view: int
    redo: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    pipelines: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Norms:
    """What a node said of what it kept: its norm, and the norm that the reference had moved."""

    norm: float
    moved: float


Kept = Mapping[tuple[int, int], Mapping[str, Norms]]
"""By (step, view) of a checkpoint and node."""


def unsent_in(manifest: Mapping[str, Any]) -> Unsent | None:
    """What a checkpoint's manifest says of it; None where it is of a version that kept nothing."""
    try:
        pipelines = tuple(tuple(str(name) for name in one) for one in manifest["pipelines"])
        redo = {int(d): tuple(int(one) for one in own) for d, own in manifest["unfinished"].items()}
        return Unsent(int(manifest["step"]), int(manifest["view"]), redo, pipelines)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def noted(kept: Kept, step: int, view: int, name: str, norm: float, moved: float) -> Kept:
    """With what a node says that it keeps; of the newest checkpoints alone."""
    if not (math.isfinite(norm) and math.isfinite(moved) and norm >= 0 and moved >= 0):
        return kept
    one = {**kept.get((step, view), {}), name: Norms(norm, moved)}
    newest = sorted({*kept, (step, view)}, key=lambda which: (which[1], which[0]))[-_REMEMBERED:]
    return {which: one if which == (step, view) else kept[which] for which in newest}


def to_json(kept: Kept) -> str:
    return json.dumps(
        [[*which, {name: [one.norm, one.moved] for name, one in said.items()}] for which, said in kept.items()]
    )


def from_json(text: str) -> Kept:
    """What ``to_json`` wrote; empty where there is nothing."""
    return {
        (step, view): {name: Norms(*one) for name, one in said.items()} for step, view, said in json.loads(text or "[]")
    }


def taken_up(
    newest: Position, unsent: Unsent | None, here: Mapping[str, Iterable[tuple[int, int]]], kept: Kept, gradient: bool
) -> tuple[Position, tuple[str, ...], str]:
    """Where the stream stands when these come back with what they kept, who contributes it, and a sentence.

    here: of each node that is there, (step, view) of what it has. kept: what nodes said when the checkpoint was made.
    """
    if unsent is None or unsent.step != newest.step:
        return newest, (), ""
    which = (unsent.step, unsent.view)
    back = tuple(sorted(name for name, held in here.items() if which in held))
    has = {d for d, pipeline in enumerate(unsent.pipelines) if set(pipeline) & set(back)}
    learnt = {one for d in has for one in unsent.redo.get(d, ())}
    position = Position(newest.step, newest.cursor, tuple(one for one in newest.redo if one not in learnt))
    said = kept.get(which, {})
    why = f"with what {_names(back)} had learnt beside it" if back else ""
    absent = sorted(name for name in said if name not in back and said[name].norm > 0)
    if absent:
        norm = math.hypot(*(said[name].norm for name in absent))  # whatever one has said, it raises nothing
        moved = max(one.moved for one in said.values())
        of = f"of norm {norm:.3g}"
        if moved and gradient:
            of = f"{norm / moved:.2g} times a gradient of theirs"
        elif moved:
            of = f"{norm / moved:.1%} of what the weights have moved"
        lost = f"what {_names(absent)} had ({of}) is lost"
        why = f"{why}; {lost}" if why else lost
    if any(one.norm > 0 for one in said.values()):  # killed before they could say what they keep
        silent = sorted({name for pipeline in unsent.pipelines for name in pipeline} - {*said, *back})
        if silent:
            why = f"{why}; " * bool(why) + f"what {_names(silent)} had (how much was not said yet) is lost"
    return position, back, why


def _names(names: Iterable[str]) -> str:
    named = list(names)
    return (
        " and ".join([*([", ".join(named[:-1])] if named[1:] else []), named[-1]])
        if (len(named) <= _NAMED)
        else f"{len(named)} nodes"
    )
