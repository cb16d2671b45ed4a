"""The types of a codec's promises (traits) and of the keys of its spec (parameters)."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from ..errors import CodecError

Value = bool | int | float | str
Role = Literal["update", "gradient", "activation", "activation_gradient"]
ROLES: tuple[Role, ...] = ("update", "gradient", "activation", "activation_gradient")
Pattern = Literal["publishers", "all_to_all", "two_level"]
PATTERNS: tuple[Pattern, ...] = ("publishers", "all_to_all", "two_level")


@dataclass(frozen=True)
class Parameter:
    """One key of a spec. Its type is that of its default; numbers have an inclusive range, words a list of choices."""

    name: str
    default: Value
    about: str
    low: float | None = None
    high: float | None = None
    choices: tuple[Value, ...] = ()

    def allowed(self) -> str:
        if isinstance(self.default, bool):
            return "true or false"
        if self.choices:
            return ", ".join(str(choice) for choice in self.choices)
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        return f"{kind} from {self.low:g} to {self.high:g}" if self.low is not None else kind

    def read(self, text: str, where: str) -> Value:
        """The value that ``text`` means; CodecError that says what is allowed."""
        value: Value | None = None
        try:
            if isinstance(self.default, bool):
                value = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
            elif isinstance(self.default, int):
                value = int(text)
            elif isinstance(self.default, float):
                value = float(text)
            else:
                value = text
        except (KeyError, ValueError):
            value = None
        if value is None or not self.accepts(value):
            near = difflib.get_close_matches(text, [str(c) for c in self.choices], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise CodecError(f"{where}: {self.name}={text} is not {self.allowed()}{hint}")
        return value

    def accepts(self, value: Value) -> bool:
        if self.choices:
            return value in self.choices
        if isinstance(value, (int, float)) and not isinstance(value, bool) and self.low is not None:
            return self.low <= value <= (self.high if self.high is not None else float("inf"))
        return type(value) is type(self.default)


@dataclass(frozen=True)
class Traits:
    """What a codec promises, and what it needs; enforced by ``check``, by phases and by the hooks."""

    unbiased: bool = False
    """The mean over seeds of the decoded tensor is the tensor."""
    float_format: bool = False
    """The only error is the rounding of a float format; treated like unbiased."""
    aggregation: Literal["sum", "recode", "gather"] = "gather"
    """sum: encodings are added without decoding; recode: sums are decoded, added and encoded again; gather: each worker
    decodes the blobs of all."""
    seed: Literal["none", "shared", "private", "both"] = "none"
    """Which workers must use the same seed; private: every worker must use a different one."""
    feedback: bool = False
    """Needs error feedback on gradients."""
    contracts: bool = True
    """E|decoded - x|² < |x|²: with error feedback, as in the rounds of delta mode, the residual stays bounded."""
    patterns: frozenset[Pattern] = frozenset(PATTERNS)
    roles: frozenset[Role] = frozenset(ROLES)
    sum_bits: int = 0
    """Bits of one encoded value if encodings are integers that can be summed (and so masked); else 0."""
