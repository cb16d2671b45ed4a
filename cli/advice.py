"""``farflung codecs advise``: the codec for updates over a link of a given rate, and its cost in loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy

from ..scheduler.networks.network import DEFAULT_LATENCY
from ..scheduler.planning.room import FULL, Room
from ..scheduler.timing.equal_lines import EqualLines
from ..scheduler.workloads.codecs import bits_of
from ..scheduler.workloads.ladder import ladder
from ..scheduler.workloads.losses import Loss, loss_of

FIFTHS, RARE = 5, 20
"""The numbers of steps between two rounds of a weight that are tried where the link is too slow for a round in each
step: in FIFTHS, as `job init` writes it, a round carries a fifth of the weights in each step."""


BACKWARD = 2 / 3
"""The part of a step that its last backward pass takes, if it is one microbatch: a backward takes two forwards."""


@dataclass(frozen=True)
class Choice:
    """A mode and codec for a job. every: steps between two rounds of a weight. bits: on the wire for each parameter
    that a round carries. seconds: of a round on the link. waits: those of them that a step waits for after its last
    backward pass; in mode delta all. fragments: parts of the weights that take turns."""

    mode: str
    every: int
    codec: str
    bits: float
    seconds: float
    waits: float
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

    def room(self, step: float) -> Room:
        """What its rounds may fill, where a step computes for ``step`` seconds."""
        return Room(self.mode, self.interval, step)

    def overlap(self, step: float) -> int:
        """The overlap that a plan would choose for it."""
        return self.room(step).overlap(numpy.array([[self.waits]]))

    def hides(self, step: float) -> bool:
        """Whether its rounds cost no time: with the longest overlap, and in mode gradient with none."""
        return self.room(step).fits(self.waits, 0 if self.mode == "gradient" else self.interval)

    def keys(self, step: float) -> str:
        """The keys of [updates], where a step computes for ``step`` seconds."""
        words = f'mode = "{self.mode}", codec = "{self.codec}"'
        if self.every > 1:
            words += f", every = {self.every}"
        if self.fragments > 1:
            words += f", fragments = {self.fragments}"
        if self.mode == "gradient":
            return words
        return f"{words}, overlap = {self.overlap(step)}"


def choices(parameters: int, members: int, rate: float, step: float, latency: float = DEFAULT_LATENCY) -> list[Choice]:
    """The possible modes and codecs, the least lossy first, each with a smaller part of the time in rounds than those
    of its mode before. rate: bit/s of each member's line. latency: seconds one way. step: seconds that one computes.

    What takes as large a part of the time as a less lossy choice is none of the choices: without latency, dense codecs
    in rarer rounds, because fewer bits in each step lose less.
    """
    lines = EqualLines(members, rate, latency)
    found: list[Choice] = []
    for mode, every, fragments in (("gradient", 1, 1), ("delta", 1, 1), ("delta", FIFTHS, FIFTHS), ("delta", RARE, 1)):
        least = min((one.seconds / one.interval for one in found if one.mode == mode), default=math.inf)
        for codec in ladder(mode, every, rarer=every < RARE):
            bits = bits_of(codec)
            sent = bits * parameters / fragments
            seconds = waits = lines.seconds(sent)
            if mode == "gradient":
                waits = lines.waits(sent, parameters, BACKWARD * step)
            if seconds / (every // fragments) < least:
                found.append(Choice(mode, every, codec, bits, seconds, waits, fragments))
    return found


def chosen(found: Sequence[Choice], step: float) -> Choice | None:
    """What a plan would choose with ``codec`` and ``overlap`` on "auto", in the first mode and interval of which a
    round hides, at ``step`` seconds a step; None where no choice is fast enough."""
    for _, group in groupby(found, lambda one: (one.mode, one.every)):
        rows = list(group)
        room, waits = rows[0].room(step), numpy.array([[one.waits] for one in rows])
        best = rows[room.rungs(waits, room.overlap(waits))[0]]
        if best.hides(step):
            return best
    return None


def sentence(best: Choice | None, last: Choice, step: float) -> str:
    """A sentence: what to write into the job, and why."""
    if best is None:
        return (
            f"No codec hides behind a step of {step:g} s: even {last.codec} every {last.every} steps takes "
            f"{last.seconds:.3g} s a round. Use a larger batch, links that are faster or of less latency, or larger "
            "numbers for updates.every."
        )
    known = best.measured
    cost = f"{known.words} ({known.source}); larger models were not measured" if known else "that was not measured"
    overlap = best.overlap(step)
    hides = f"fills at most {FULL:g} of {'a step' if overlap == 1 else f'{overlap} steps'} of {step:g} s"
    if not overlap:
        some = best.waits < best.seconds  # a small model's round begins after the pass
        rest = ": its last backward pass hides the rest, if a step is one microbatch" if some else ""
        hides = f"makes a step of {step:g} s wait for {max(0.0, best.waits):.3g} s{rest}"
    return (
        f"[updates] {best.keys(step)}: the least lossy whose round "
        f"({best.seconds:.3g} s) {hides}. In loss, compared with one optimiser on the whole "
        f"batch: {cost}. "
        'With codec = "auto" the plan of each view chooses like this for each group, by its measured links.'
    )


def advise(
    parameters: int,
    members: int,
    rate: float,
    step: float,
    error: Callable[[str], float] | None = None,
    latency: float = DEFAULT_LATENCY,
) -> dict[str, Any]:
    """The advice, and the choices on which it is based. error: codec -> one message's squared error,
    divided by the square of its values. The others: as in ``choices``."""
    found = choices(parameters, members, rate, step, latency)
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
            "hides": one.hides(step),
            "loss": one.cost,
            "loss_from": one.measured.source if one.measured else None,
        }
        for one in found
    ]
    return {"parameters": parameters, "advice": sentence(best, found[-1], step), "choices": rows}
