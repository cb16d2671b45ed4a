"""Residuals that nodes kept beside a checkpoint: which nodes contribute theirs again, and which samples are trained
again.

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

_NAMED = 4  # with more nodes, messages give only their number
_REMEMBERED = 2  # checkpoints, because the newest may never become complete


@dataclass(frozen=True)
class Unsent:
    """Residuals beside a checkpoint. ``redo``: for each pipeline, the positions whose effect is not in the
    reference."""

    step: int
    view: int
    redo: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    pipelines: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Norms:
    """What a node reported of its residual: its norm, and the norm of the reference's movement."""

    norm: float
    moved: float


Kept = Mapping[tuple[int, int], Mapping[str, Norms]]
"""By (step, view) of a checkpoint and node."""


def unsent_in(manifest: Mapping[str, Any]) -> Unsent | None:
    """The residuals recorded in a checkpoint's manifest; None for a version that kept none."""
    try:
        pipelines = tuple(tuple(str(name) for name in one) for one in manifest["pipelines"])
        redo = {int(d): tuple(int(one) for one in own) for d, own in manifest["unfinished"].items()}
        return Unsent(int(manifest["step"]), int(manifest["view"]), redo, pipelines)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def noted(kept: Kept, step: int, view: int, name: str, norm: float, moved: float) -> Kept:
    """The table with a node's report of its residual; only the newest checkpoints stay in it."""
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
    """The table that ``to_json`` wrote; empty for an empty text."""
    return {
        (step, view): {name: Norms(*one) for name, one in said.items()} for step, view, said in json.loads(text or "[]")
    }


def taken_up(
    newest: Position, unsent: Unsent | None, here: Mapping[str, Iterable[tuple[int, int]]], kept: Kept, gradient: bool
) -> tuple[Position, tuple[str, ...], str]:
    """(the position in the stream after nodes came back with their residuals, the nodes that contribute theirs, a
    sentence).

    here: present node -> (step, view) of each residual that it has. kept: the nodes' reports when the checkpoint was
    made.
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
        norm = math.hypot(*(said[name].norm for name in absent))  # raises no error, whatever a node has reported
        moved = max(one.moved for one in said.values())
        of = f"of norm {norm:.3g}"
        if moved and gradient:
            of = f"{norm / moved:.2g} times a gradient of theirs"
        elif moved:
            of = f"{norm / moved:.1%} of what the weights have moved"
        lost = f"what {_names(absent)} had ({of}) is lost"
        why = f"{why}; {lost}" if why else lost
    if any(one.norm > 0 for one in said.values()):  # killed before they could report their residuals
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
