"""The outer optimiser of ``delta`` mode as a job writes it: ``average``, ``sgd:lr=0.7``, ``nesterov:momentum=0.9``."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

WORDS = 'average, "sgd:lr=0.7,momentum=0.9", "nesterov:lr=0.7,momentum=0.9"'
_KINDS = ("average", "sgd", "nesterov")


@dataclass(frozen=True)
class Outer:
    """How the reference moves by a round's mean D, as torch.optim.SGD does by a gradient of -D.

    m := momentum * m + D, and g += rate * m, or with ``nesterov`` g += rate * (D + momentum * m). The plain average is
    rate 1 without momentum.
    """

    rate: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False

    @property
    def is_average(self) -> bool:
        return self.rate == 1.0 and not self.momentum


def parse_outer(text: str) -> Outer:
    """The outer optimiser that ``text`` means. ValueError says what is wrong and what is allowed."""
    kind, colon, rest = text.strip().partition(":")
    if kind not in _KINDS:
        near = difflib.get_close_matches(kind, _KINDS, 1, 0.5)
        raise ValueError(f"{text!r} is not one of {WORDS}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if kind == "average":
        if colon:
            raise ValueError(f"{text!r}: average has no keys; write sgd:lr=0.7 to scale it")
        return Outer()
    values = {"lr": 1.0, "momentum": 0.9 if kind == "nesterov" else 0.0}
    for item in rest.split(",") if colon else []:
        key, _, value = (piece.strip() for piece in item.partition("="))
        if key not in values:
            raise ValueError(f"{text!r}: {item.strip()!r} is not lr=NUMBER or momentum=NUMBER")
        try:
            values[key] = float(value)
        except ValueError:
            raise ValueError(f"{text!r}: {key} = {value!r} is no number") from None
    rate, momentum = values["lr"], values["momentum"]
    if not 0 < rate <= 10:
        raise ValueError(f"{text!r}: lr must be above 0 and at most 10")
    if not 0 <= momentum < 1 or (kind == "nesterov" and not momentum):
        least = "above 0" if kind == "nesterov" else "0 or more"
        raise ValueError(f"{text!r}: momentum must be {least} and below 1")
    return Outer(rate, momentum, kind == "nesterov")
