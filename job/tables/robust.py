"""Robust averages as a job writes them: ``none``, ``clip``, ``centered:tau=1``."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

ROBUST_WORDS = 'none, clip, "centered:tau=1"'
_KINDS = ("none", "clip", "centered")


@dataclass(frozen=True)
class Robust:
    """A limit on a contribution's distance from a point: from zero (``clip``) or from the last round's result
    (``centered``). A contribution further away is scaled to ``tau`` times the median distance of all contributions."""

    kind: str = "none"
    tau: float = 1.0

    def __bool__(self) -> bool:
        return self.kind != "none"


def parse_robust(text: str) -> Robust:
    """The robust average that ``text`` means. ValueError says what is wrong and what is allowed."""
    kind, colon, rest = text.strip().partition(":")
    if kind not in _KINDS:
        near = difflib.get_close_matches(kind, _KINDS, 1, 0.5)
        raise ValueError(f"{text!r} is not one of {ROBUST_WORDS}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if not colon:
        return Robust(kind)
    key, _, value = (piece.strip() for piece in rest.partition("="))
    if kind == "none" or key != "tau":
        raise ValueError(f"{text!r}: {rest.strip()!r} is not tau=NUMBER, which clip and centered have")
    try:
        tau = float(value)
    except ValueError:
        raise ValueError(f"{text!r}: tau = {value!r} is no number") from None
    if not 0 < tau <= 100:
        raise ValueError(f"{text!r}: tau must be above 0 and at most 100")
    return Robust(kind, tau)
