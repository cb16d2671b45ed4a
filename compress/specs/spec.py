"""Codec specs, ``name`` or ``name:key=value,key=value``: parsed, checked and written back, without torch."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ..errors import CodecError
from . import registry
from .declarations import CODECS, Declaration
from .sizes import HEADER_BITS, SEED_BITS
from .traits import PATTERNS, ROLES, Traits, Value


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
        return CODECS[self.name]

    def __str__(self) -> str:
        declaration = self.declaration
        changed = [f"{k}={_text(v)}" for k, v in self.values if v != declaration.parameter(k).default]
        return self.name + (":" + ",".join(changed) if changed else "")


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else (f"{value:g}" if isinstance(value, float) else str(value))


def names() -> list[str]:
    """The names of all codecs, in the order of ``farflung codecs``."""
    return list(CODECS)


@lru_cache(maxsize=1024)
def parse(text: str) -> Spec:
    """The spec that ``text`` means. CodecError names the wrong word, what is allowed, and the nearest word."""
    if not isinstance(text, str):
        raise CodecError(f"a codec is written name:key=value,key=value, not {text!r}")
    name, colon, rest = text.strip().partition(":")
    name = registry.resolve(name.strip())
    declaration = CODECS.get(name)
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


registry.on_change(parse.cache_clear)


def traits_of(spec: Spec | str) -> Traits:
    """The traits of a spec: its codec's, as changed by its parameters (nearest rounding is biased, and so on)."""
    spec = parse(spec) if isinstance(spec, str) else spec
    traits = CODECS[spec.name].traits
    values = dict(spec.values)
    if values.get("rounding") == "nearest":
        traits = replace(traits, unbiased=False, feedback=True, contracts=True)
    if values.get("scale") == "floor" and spec.name.startswith("mx"):
        traits = replace(traits, unbiased=False, feedback=True)
    if spec.name == "nvfp4" and values["scale"] == "nearest":
        traits = replace(traits, unbiased=False, feedback=True)
    if values.get("biased") or (spec.name == "turboquant" and values["kind"] == "mse"):
        traits = replace(traits, unbiased=False, feedback=True)
    if spec.name == "terngrad" and values["clip"]:
        traits = replace(traits, unbiased=False, feedback=True)
    if spec.name == "randomk" and values["scale"]:
        traits = replace(traits, unbiased=True, feedback=False, contracts=False)
    if spec.name in ("qsgd", "nuqsgd") and spec.number("bits") < 4:
        traits = replace(traits, contracts=False)
    if (
        spec.name in ("qsgd", "nuqsgd")
        and (values["norm"] == "l2" or values["bucket"] == 0)
        and spec.number("bits") < 8
    ):
        traits = replace(traits, contracts=False)
    if spec.name == "intsgd" and values["rule"] == "norm":
        traits = replace(traits, unbiased=False, feedback=True)  # clamps a value above 127 mean steps on one worker
    if spec.name == "quicfl" and spec.number("bits") == 1:
        traits = replace(traits, contracts=False)
    if spec.name == "eden" and spec.real("bits") < 1 and not values["biased"]:
        traits = replace(traits, contracts=False)
    if spec.name in ("global_qsgd", "avq", "docofl") and spec.real("bits") < 6 and not values.get("rotate"):
        traits = replace(traits, contracts=False)
    if traits.aggregation == "sum" and spec.name in ("global_qsgd", "intsgd", "thc"):
        bits = {"global_qsgd": 8, "intsgd": 8, "thc": 10}[spec.name]
        traits = replace(traits, sum_bits=spec.number("bits") if spec.name == "global_qsgd" else bits)
    return traits


def bits_of(spec: Spec | str, elements: int) -> float:
    """Bits on the wire of an encoded vector of ``elements`` elements, including the header; for codec none, of fp32.

    If it depends on the values: for normally distributed ones; for AQ-SGD: for a change of a sample seen before.
    """
    spec = parse(spec) if isinstance(spec, str) else spec
    declaration = CODECS[spec.name]
    written = [one for one in declaration.parameters if spec[one.name] != one.default and one.name != "feedback"]
    words = sum(8 * (1 + len(repr(spec[one.name])) * isinstance(one.default, float)) for one in written)
    seed = SEED_BITS * (declaration.traits.seed != "none")
    return HEADER_BITS + seed + words + declaration.bits(dict(spec.values), elements)


def check(text: str, role: str, pattern: str | None = None) -> Spec:
    """Refuse (CodecError, one sentence) a spec that is wrong or may not be used in ``role`` (and exchange ``pattern``).

    role: update (rounds of delta mode, whose x - g is the error feedback), gradient, activation, activation_gradient,
    difference (between a node's weights and its neighbours' copy of them); robust_update, robust_gradient with a robust
    average.
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
    if role == "update" or (role == "gradient" and spec_feedback(spec)):
        check_contracts(spec)
    if robust and traits.aggregation == "sum":
        raise CodecError(
            f"codec {text!r} is added up without being decoded, so nobody can see which member's numbers lie far out; "
            "with updates.robust use one that is decoded (none, int8, cocktail)"
        )
    if pattern not in (None, "auto", *PATTERNS):
        raise CodecError(f"there is no exchange pattern {pattern!r} of codecs (patterns: {', '.join(PATTERNS)})")
    if pattern in PATTERNS and pattern not in traits.patterns:
        raise CodecError(
            f"codec {text!r} does not survive the pattern {pattern!r}: use {', '.join(sorted(traits.patterns))}"
        )
    return spec


def check_contracts(spec: Spec) -> None:
    """Refuse (CodecError) a spec for error feedback whose error may be larger than its input."""
    if not traits_of(spec).contracts:
        raise CodecError(
            f"codec {str(spec)!r} makes an error larger than its input, and what is not sent comes back in the next "
            "step: it would grow without bound; use more bits, a smaller group or a rotated codec (eden)"
        )


def wait_of(spec: Spec) -> float:
    """The number of steps in which each element is offered once, for a codec that offers only some in a step; else
    1."""
    offered = {"cocktail": "random", "randomk": "ratio"}.get(spec.name)
    return 1.0 if offered is None else 1.0 / spec.real(offered)


def momentum_word(spec: Spec) -> str | None:
    """A warning for error feedback with this spec on gradients: the accumulated error of several steps is sent at once,
    and momentum amplifies it. None if elements wait for less than 4 steps. The rule is measured (docs/codecs.md)."""
    wait = wait_of(spec)
    if wait < 4:
        return None
    return (
        f"codec {str(spec)!r} sends an element once in {wait:.0f} steps, and then what all of them left: steps "
        f"grow without bound unless learning rate / (1 - momentum) is below a {2 * wait:.0f}th of the largest learning "
        "rate of plain gradient descent; it is made for updates (mode delta), where this does not happen"
    )


def spec_feedback(spec: Spec) -> bool:
    """Whether the spec asks for error feedback (``feedback=true``): the caller wraps the codec (compress.feedback)."""
    return any(name == "feedback" and bool(value) for name, value in spec.values)


def _remedy(spec: Spec) -> str:
    if not traits_of(spec).contracts:
        return ", and can't have it, for its error is larger than its input: use int8 or eden"
    keys = [name for name, _ in spec.values]
    if "rounding" in keys:
        return (
            ": write rounding=stochastic, or add feedback=true" if "feedback" in keys else ": write rounding=stochastic"
        )
    return ": add feedback=true" if "feedback" in keys else "; use it in delta mode, or use int8 or eden"
