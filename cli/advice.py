"""``farflung codecs advise``: which codec updates should have over a link, and what that costs in loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..scheduler.workloads.codecs import bits_of
from ..scheduler.workloads.ladder import ladder

RARE = 20
"""Steps between rounds where rounds at each step are too much for the link."""
COSTS = {
    ("gradient", "none"): "none",
    ("gradient", "int8"): "+0.04 %",
    ("delta", "none"): "+1.5 % (local steps on parts of the batch)",
    ("delta", "cocktail:random=0.1,top=0.2,bits=4"): "+4.4 % (of it +1.5 % by local steps)",
    ("delta", "cocktail:random=0.1,top=0.1,bits=4"): "+5.0 % (of it +1.5 % by local steps)",
}
"""Validation loss against one optimiser on the whole batch, where docs/quality.md has it: of 124,672 parameters, and of
no larger model yet."""


@dataclass(frozen=True)
class Choice:
    """A mode and codec that a job may have. bits: of a parameter and round. error: of the mean of all members, as a
    part of its square; None: not measured. seconds: of a round on the link."""

    mode: str
    every: int
    codec: str
    bits: float
    seconds: float
    error: float | None = None

    @property
    def cost(self) -> str:
        """What it costs in loss, as far as that is measured."""
        known = COSTS.get((self.mode, self.codec)) if self.every == 1 else None
        return known or "not measured"


def choices(parameters: int, members: int, rate: float) -> list[Choice]:
    """What a job may have, the least lossy first. rate: bit/s of each member's link.

    In a round each member sends its contribution to those who add up its parts, and the parts that it adds up to all
    others: 2 (members - 1) / members times the encoded vector.
    """
    found = []
    for mode, every in (("gradient", 1), ("delta", 1), ("delta", RARE)):
        for codec in ladder(mode, every):
            bits = bits_of(codec)
            seconds = 2 * (members - 1) / members * bits * parameters / rate
            found.append(Choice(mode, every, codec, bits, seconds))
    return found


def chosen(found: Sequence[Choice], step: float) -> Choice | None:
    """The first whose round is over before the next begins, ``step`` seconds a step; None: not even the last is."""
    return next((one for one in found if one.seconds <= step * one.every), None)


def sentence(best: Choice | None, last: Choice, step: float) -> str:
    """What to write into the job, and why."""
    if best is None:
        return (
            f"No codec hides behind a step of {step:g} s: even {last.codec} every {last.every} steps takes "
            f"{last.seconds:.3g} s a round. Use a larger batch or a faster link, or larger numbers for updates.every."
        )
    rare, steps = (f", every = {best.every}", f"{best.every} steps") if best.every > 1 else ("", "a step")
    return (
        f'[updates] mode = "{best.mode}", codec = "{best.codec}"{rare}: the least lossy whose round '
        f"({best.seconds:.3g} s) hides behind {steps} of {step:g} s. In loss: {best.cost}. "
        'With codec = "auto" the plan of each view chooses like this for each group, by its measured links.'
    )


def advise(
    parameters: int, members: int, rate: float, step: float, error: Callable[[str], float] | None = None
) -> dict[str, Any]:
    """The advice and the choices that it was made of. error: of a codec's mean of all members."""
    found = choices(parameters, members, rate)
    errors = {codec: error(codec) for codec in dict.fromkeys(one.codec for one in found)} if error else {}
    best = chosen(found, step)
    rows = [
        {
            "mode": one.mode,
            "every": one.every,
            "codec": one.codec,
            "bits": round(one.bits, 3),
            "error": errors.get(one.codec),
            "round_seconds": one.seconds,
            "hides": one.seconds <= step * one.every,
            "loss": one.cost,
        }
        for one in found
    ]
    return {"parameters": parameters, "advice": sentence(best, found[-1], step), "choices": rows}
