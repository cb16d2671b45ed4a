"""What a codec costs on the wire, by its name: the scheduler never runs one."""

from __future__ import annotations

import math

from .errors import PlanError

PLAIN_BITS = {"none": None, "fp32": 32.0, "bf16": 16.0, "fp16": 16.0, "int8": 8.0, "fp8": 8.0}
SUMMED = frozenset({"powersgd", "global_qsgd", "thc", "intsgd", "randomk"})
"""Their rounds go in phases, each a sum of encodings at the publishers; no other pattern."""
SCALE_BITS = 0.125
"""A scale of 16 bits for every 128 elements."""


def parse(spec: str) -> tuple[str, dict[str, str]]:
    """`name:key=value,key=value` in parts. PlanError where it is not of that form."""
    name, _, rest = spec.partition(":")
    parameters: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise PlanError(f"codec {spec!r} is not written name:key=value,key=value")
        parameters[key.strip()] = value.strip()
    return name.strip(), parameters


def bits_of(spec: str, plain: float = 32.0) -> float:
    """Bits on the wire for each element of the tensor. `plain`: what codec none takes (32, or 16 in bf16).

    Sparse codecs pay for positions too: log2(1/density) + 1.5 bits for each kept value, near the entropy bound.
    """
    name, parameters = parse(spec)
    if name in PLAIN_BITS:
        bits = PLAIN_BITS[name]
        return plain if bits is None else bits + (SCALE_BITS if name == "int8" else 0.0)

    def number(key: str, default: float) -> float:
        try:
            return float(parameters.get(key, default))
        except ValueError as error:
            raise PlanError(f"codec {spec!r}: {key} must be a number") from error

    bits = number("bits", 16.0 if name in ("topk", "randomk", "powersgd") else 4.0)
    top = number("top", number("ratio", number("density", 1.0)))
    random = number("random", 1.0)
    if name in ("powersgd", "sign", "drive"):
        return 1.0
    if name == "chunked_topk":  # of every 4096: 12 bits of place and a value each, and two scales
        return number("k", 64.0) * (12 + number("bits", 2.0)) / 4096 + 32 / 4096
    if not 0 < top <= 1 or not 0 < random <= 1 or not 0 < bits <= 32:
        raise PlanError(f"codec {spec!r}: its fractions must be above 0 and at most 1, its bits at most 32")
    positions = math.log2(1 / top) + 1.5 if top < 1 else 0.0
    return random * top * (bits + positions) + SCALE_BITS * random * (top if top < 1 else 1.0)
