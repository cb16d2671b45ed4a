"""What a codec declares, and what many declare alike. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from ..sizes import Bits
from ..traits import Parameter, Role, Traits


@dataclass(frozen=True)
class Declaration:
    """One codec: where its class is, its number on the wire, its parameters (their order is part of the format).

    bits: bits of the body of a vector of so many elements, with these parameters (sizes.py).
    """

    name: str
    wire_id: int
    target: str
    about: str
    paper: str
    traits: Traits
    bits: Bits
    parameters: tuple[Parameter, ...] = ()
    version: int = 1

    def parameter(self, name: str) -> Parameter:
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise KeyError(name)


WEIGHTS: frozenset[Role] = frozenset({"update", "gradient"})
RECODE = Traits(unbiased=True, aggregation="recode")
BIASED = Traits(feedback=True)
SUMMED = Traits(unbiased=True, aggregation="sum")
FEEDBACK = Parameter("feedback", False, "keep what was not sent and add it next time (the caller's error feedback)")
NEAREST = Parameter("rounding", "nearest", "stochastic is unbiased", choices=("stochastic", "nearest"))

BLOCKS = (0, 256, 512, 1024, 2048, 4096, 8192)


def block(default: int) -> Parameter:
    return Parameter(
        "block", default, "elements rotated together; 0: the largest power of two that fits", choices=BLOCKS
    )
