"""``farflung codecs advise``: the codec for updates over a link of a given rate, and its cost in loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..scheduler.workloads.codecs import bits_of
from ..scheduler.workloads.ladder import ladder
from ..scheduler.workloads.losses import Loss, loss_of

RARE = 20
"""The numbers of steps between rounds that are tried where the link is too slow for a round in each step."""


@dataclass(frozen=True)
class Choice:
    """A mode and codec for a job. bits: on the wire for each parameter in a round. seconds: of a round on the link."""

    mode: str
    every: int
    codec: str
    bits: float
    seconds: float

    @property
    def cost(self) -> str:
        """The cost in loss, in words, where it was measured."""
        return self.measured.words if self.measured else "not measured"

    @property
    def measured(self) -> Loss | None:
        """The cost in loss compared with one optimiser on the whole batch, and where it is from."""
        return loss_of(self.mode, self.every, self.codec)


def choices(parameters: int, members: int, rate: float) -> list[Choice]:
    """The possible modes and codecs, the least lossy first. rate: bit/s of each member's link.

    In a round each member sends its contribution to the parts' publishers, and its own part's result to all others: 2
    (members - 1) / members times the encoded vector.
    """
    found = []
    for mode, every in (("gradient", 1), ("delta", 1), ("delta", RARE)):
        for codec in ladder(mode, every):
            bits = bits_of(codec)
            seconds = 2 * (members - 1) / members * bits * parameters / rate
            found.append(Choice(mode, every, codec, bits, seconds))
    return found


def chosen(found: Sequence[Choice], step: float) -> Choice | None:
    """The first choice whose round ends before the next begins, at ``step`` seconds a step; None where no choice is
    fast enough."""
    return next((one for one in found if one.seconds <= step * one.every), None)


def sentence(best: Choice | None, last: Choice, step: float) -> str:
    """A sentence: what to write into the job, and why."""
    if best is None:
        return (
            f"No codec hides behind a step of {step:g} s: even {last.codec} every {last.every} steps takes "
            f"{last.seconds:.3g} s a round. Use a larger batch or a faster link, or larger numbers for updates.every."
        )
    known = best.measured
    cost = f"{known.words} ({known.source}); larger models were not measured" if known else "that was not measured"
    rare, steps = (f", every = {best.every}", f"{best.every} steps") if best.every > 1 else ("", "a step")
    return (
        f'[updates] mode = "{best.mode}", codec = "{best.codec}"{rare}: the least lossy whose round '
        f"({best.seconds:.3g} s) hides behind {steps} of {step:g} s. In loss, compared with one optimiser on the whole "
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
            "codec": one.codec,
            "bits": round(one.bits, 3),
            "error": errors.get(one.codec),
            "round_seconds": one.seconds,
            "hides": one.seconds <= step * one.every,
            "loss": one.cost,
            "loss_from": one.measured.source if one.measured else None,
        }
        for one in found
    ]
    return {"parameters": parameters, "advice": sentence(best, found[-1], step), "choices": rows}
