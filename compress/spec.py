"""Codec specs, ``name`` or ``name:key=value,key=value``: parsed, checked and written back, without torch."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from .errors import CodecError

Value = bool | int | float | str
Role = Literal["update", "gradient", "activation", "activation_gradient"]
ROLES: tuple[Role, ...] = ("update", "gradient", "activation", "activation_gradient")
Pattern = Literal["publishers", "all_to_all", "two_level", "ring"]
PATTERNS: tuple[Pattern, ...] = ("publishers", "all_to_all", "two_level", "ring")


@dataclass(frozen=True)
class Parameter:
    """One key of a spec: its type is its default's; numbers have an inclusive range, words a list of choices."""

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
    """The only error is a float format's own rounding: treated like unbiased."""
    aggregation: Literal["sum", "recode", "gather"] = "gather"
    """sum: encodings are added without decoding; recode: sums are decoded, added and encoded again; gather: everyone
    decodes everyone's."""
    seed: Literal["none", "shared", "private", "both"] = "none"
    """Who must use the same seed: private means that every worker must have another one."""
    feedback: bool = False
    """Needs error feedback on gradients."""
    contracts: bool = True
    """E|decoded - x|² < |x|²: with error feedback, as in the rounds of delta mode, the residual stays bounded."""
    patterns: frozenset[Pattern] = frozenset(PATTERNS) - {"ring"}
    roles: frozenset[Role] = frozenset(ROLES)
    sum_bits: int = 0
    """Bits of one encoded value where encodings are integers that can be summed (and so masked); else 0."""


@dataclass(frozen=True)
class Declaration:
    """One codec: where its class is, its number on the wire, its parameters (their order is part of the format)."""

    name: str
    wire_id: int
    target: str
    about: str
    paper: str
    traits: Traits
    parameters: tuple[Parameter, ...] = ()
    version: int = 1

    def parameter(self, name: str) -> Parameter:
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise KeyError(name)


@dataclass(frozen=True)
class Spec:
    """A codec's name and the values of all its parameters, in declared order. Hashable; ``str`` is the short form."""

    name: str
    values: tuple[tuple[str, Value], ...] = field(default=())

    def __getitem__(self, key: str) -> Value:
        for name, value in self.values:
            if name == key:
                return value
        raise KeyError(key)

    def number(self, key: str) -> int:
        value = self[key]
        assert isinstance(value, int)
        return value

    def real(self, key: str) -> float:
        value = self[key]
        assert isinstance(value, (int, float))
        return float(value)

    def word(self, key: str) -> str:
        value = self[key]
        assert isinstance(value, str)
        return value

    def flag(self, key: str) -> bool:
        return bool(self[key])

    @property
    def declaration(self) -> Declaration:
        return declarations()[self.name]

    def __str__(self) -> str:
        declaration = self.declaration
        changed = [f"{k}={_text(v)}" for k, v in self.values if v != declaration.parameter(k).default]
        return self.name + (":" + ",".join(changed) if changed else "")


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else (f"{value:g}" if isinstance(value, float) else str(value))


def declarations() -> dict[str, Declaration]:
    """All codecs by name."""
    from .declarations import CODECS

    return CODECS


def names() -> list[str]:
    """The names of all codecs, in the order of ``farflung codecs``."""
    return list(declarations())


@lru_cache(maxsize=1024)
def parse(text: str) -> Spec:
    """The spec that ``text`` means. CodecError names the word that is wrong, what is allowed and the nearest word."""
    if not isinstance(text, str):
        raise CodecError(f"a codec is written name:key=value,key=value, not {text!r}")
    name, colon, rest = text.strip().partition(":")
    declaration = declarations().get(name)
    if declaration is None:
        near = difflib.get_close_matches(name, names(), 1, 0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise CodecError(f"there is no codec {name!r}{hint} (codecs: {', '.join(names())})")
    given: dict[str, Value] = {}
    keys = [parameter.name for parameter in declaration.parameters]
    for item in rest.split(",") if colon else []:
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key or not value:
            raise CodecError(f"codec {text!r}: {item!r} is not key=value")
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1, 0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            allowed = f"keys of {name}: {', '.join(keys)}" if keys else f"{name} has no keys"
            raise CodecError(f"codec {text!r}: unknown key {key!r}{hint} ({allowed})")
        if key in given:
            raise CodecError(f"codec {text!r}: {key} is given twice")
        given[key] = declaration.parameter(key).read(value, f"codec {text!r}")
    return Spec(name, tuple((p.name, given.get(p.name, p.default)) for p in declaration.parameters))


def traits_of(spec: Spec | str) -> Traits:
    """The traits of a spec: its codec's, as changed by its parameters (nearest rounding is biased, and so on)."""
    from .declarations import refine

    spec = parse(spec) if isinstance(spec, str) else spec
    return refine(spec)


def check(text: str, role: str, pattern: str | None = None) -> Spec:
    """Refuse (CodecError, one sentence) a spec that is wrong or may not be used in ``role`` (and exchange ``pattern``).

    role: update (rounds of delta mode, whose x - g is the error feedback), gradient, activation, activation_gradient,
    difference (what a neighbour does not know yet of a node's weights); robust_update, robust_gradient where the sum
    is a robust one.
    """
    if role == "difference":
        spec = check(text, "update")
        if traits_of(spec).aggregation == "sum":
            raise CodecError(f"codec {text!r} encodes for a sum of all members, and here neighbours read each other's")
        return spec
    role, robust = role.removeprefix("robust_"), role.startswith("robust_")
    if role not in ROLES:
        raise CodecError(f"there is no role {role!r} (roles: {', '.join(ROLES)})")
    spec = parse(text)
    traits = traits_of(spec)
    if role not in traits.roles:
        fits = ", ".join(n for n in names() if role in traits_of(n).roles)
        raise CodecError(f"codec {text!r} can't be used for {role.replace('_', ' ')}s; use one of: {fits}")
    if role == "gradient" and not traits.unbiased and not traits.float_format and not spec_feedback(spec):
        raise CodecError(f"codec {text!r} is biased: on gradients it needs error feedback{_remedy(spec)}")
    if role == "update" and not traits.contracts:
        raise CodecError(
            f"codec {text!r} makes an error larger than its input, and what a round does not send comes back in the "
            "next: updates would grow without bound; use more bits, a smaller group or a rotated codec (eden)"
        )
    if robust and traits.aggregation == "sum":
        raise CodecError(
            f"codec {text!r} is added up without being decoded, so nobody can see which member's numbers lie far out; "
            "with updates.robust use one that is decoded (none, int8, cocktail)"
        )
    if pattern is not None and pattern != "auto" and pattern in PATTERNS and pattern not in traits.patterns:
        raise CodecError(
            f"codec {text!r} does not survive the pattern {pattern!r}: use {', '.join(sorted(traits.patterns))}"
        )
    return spec


def spec_feedback(spec: Spec) -> bool:
    """Whether the spec asks for error feedback (``feedback=true``): the caller wraps the codec (compress.feedback)."""
    return any(name == "feedback" and bool(value) for name, value in spec.values)


def _remedy(spec: Spec) -> str:
    keys = [name for name, _ in spec.values]
    if "rounding" in keys:
        return (
            ": write rounding=stochastic, or add feedback=true" if "feedback" in keys else ": write rounding=stochastic"
        )
    return ": add feedback=true" if "feedback" in keys else "; use it in delta mode, or use int8 or eden"
