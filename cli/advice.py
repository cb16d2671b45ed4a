"""``farflung codecs advise``: the codec for updates over a link of a given rate, and its cost in loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..scheduler.workloads.codecs import bits_of
from ..scheduler.workloads.ladder import ladder
from ..scheduler.workloads.losses import Loss, loss_of

FIFTHS, RARE = 5, 20
"""The numbers of steps between two rounds of a weight that are tried where the link is too slow for a round in each
step: in FIFTHS, as `job init` writes it, a round carries a fifth of the weights in each step."""


@dataclass(frozen=True)
class Choice:
    """A mode and codec for a job. every: steps between two rounds of a weight. bits: on the wire for each parameter
    that a round carries. seconds: of a round on the link. fragments: parts of the weights that take turns."""

    mode: str
    every: int
    codec: str
    bits: float
    seconds: float
    fragments: int = 1

    @property
    def cost(self) -> str:
        """The cost in loss, in words, where it was measured."""
        return self.measured.words if self.measured else "not measured"

    @property
    def measured(self) -> Loss | None:
        """The cost in loss compared with one optimiser on the whole batch, and where it is from."""
        return loss_of(self.mode, self.every, self.codec)

    @property
    def interval(self) -> int:
        """Steps between the beginnings of two rounds: a round is hidden if it takes no longer than these."""
        return self.every // self.fragments

    def keys(self, step: float) -> str:
        """The keys of [updates], where a step computes for ``step`` seconds."""
        words = f'mode = "{self.mode}", codec = "{self.codec}"'
        if self.every > 1:
            words += f", every = {self.every}"
        if self.fragments > 1:
            words += f", fragments = {self.fragments}"
        if self.mode == "gradient":
            return words
        return f"{words}, overlap = {min(self.interval, max(1, math.ceil(self.seconds / step)))}"


def choices(parameters: int, members: int, rate: float) -> list[Choice]:
    """The possible modes and codecs, the least lossy first, each with fewer bytes a step than those of its mode before.
    rate: bit/s of each member's link.

    In a round each member sends its contribution to the parts' publishers, and its own part's result to all others: 2
    (members - 1) / members times the encoded vector. Dense codecs in rarer rounds are none of the choices: fewer
    bits in each step lose less.
    """
    found: list[Choice] = []
    for mode, every, fragments in (("gradient", 1, 1), ("delta", 1, 1), ("delta", FIFTHS, FIFTHS), ("delta", RARE, 1)):
        least = min((one.bits / one.every for one in found if one.mode == mode), default=math.inf)
        for codec in ladder(mode, every, rarer=every < RARE):
            bits = bits_of(codec)
            if bits / every < least:
                seconds = 2 * (members - 1) / members * bits * parameters / fragments / rate
                found.append(Choice(mode, every, codec, bits, seconds, fragments))
    return found


def chosen(found: Sequence[Choice], step: float) -> Choice | None:
    """The first choice whose round ends before the next begins, at ``step`` seconds a step; None where no choice is
    fast enough."""
    return next((one for one in found if one.seconds <= step * one.interval), None)


def sentence(best: Choice | None, last: Choice, step: float) -> str:
    """A sentence: what to write into the job, and why."""
    if best is None:
        return (
            f"No codec hides behind a step of {step:g} s: even {last.codec} every {last.every} steps takes "
            f"{last.seconds:.3g} s a round. Use a larger batch or a faster link, or larger numbers for updates.every."
        )
    known = best.measured
    cost = f"{known.words} ({known.source}); larger models were not measured" if known else "that was not measured"
    steps = f"{best.interval} steps" if best.interval > 1 else "a step"
    hides = f"hides behind {steps} of {step:g} s"
    if best.mode == "gradient":
        hides = f"takes no longer than a step of {step:g} s, which waits for what its last backward pass does not hide"
    return (
        f"[updates] {best.keys(step)}: the least lossy whose round "
        f"({best.seconds:.3g} s) {hides}. In loss, compared with one optimiser on the whole "
        f"batch: {cost}. "
        'With codec = "auto" the plan of each view chooses like this for each group, by its measured links.'
    )


def advise(
    parameters: int, members: int, rate: float, step: float, error: Callable[[str], float] | None = None
) -> dict[str, Any]:
    """The advice, and the choices on which it is based. error: codec -> one message's squared error,
    divided by the square of its values."""
    found = choices(parameters, members, rate)
    errors = {codec: error(codec) for codec in dict.fromkeys(one.codec for one in found)} if error else {}
    best = chosen(found, step)
    rows = [
        {
            "mode": one.mode,
            "every": one.every,
            "fragments": one.fragments,
            "codec": one.codec,
            "bits": round(one.bits, 3),
            "error": errors.get(one.codec),
            "round_seconds": one.seconds,
            "hides": one.seconds <= step * one.interval,
            "loss": one.cost,
            "loss_from": one.measured.source if one.measured else None,
        }
        for one in found
    ]
    return {"parameters": parameters, "advice": sentence(best, found[-1], step), "choices": rows}
