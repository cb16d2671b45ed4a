"""Parses rates, times, shares and sizes in the form in which people write them, to bit/s, ms or s, fractions and
bytes."""

from __future__ import annotations

import math
import re

from ..proto.errors import FarflungError

_NUMBER = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)\s*([a-zµ/%]*)\s*$", re.IGNORECASE)
_RATES = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "bit/s": 1.0, "kbit/s": 1e3, "mbit/s": 1e6, "gbit/s": 1e9}
_TIMES = {"ms": 1.0, "s": 1e3, "us": 1e-3, "": 1.0}
_DURATIONS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}


def _split(text: object, what: str, example: str) -> tuple[float, str]:
    match = _NUMBER.match(str(text)) if isinstance(text, str | int | float) and not isinstance(text, bool) else None
    if match is None:
        raise FarflungError(f"{what}: cannot read {text!r}", f"write it like {example}")
    if not math.isfinite(float(match[1])):
        raise FarflungError(f"{what}: {text!r} is no number that a machine can hold", f"write it like {example}")
    return float(match[1]), match[2].lower()


def rate(text: object, what: str = "rate") -> float | None:
    """Bit/s from "20mbit", "1.12 gbit"; "unlimited" is None. A bare number has no unit and is refused."""
    if text is None or text == "unlimited":
        return None
    value, unit = _split(text, what, '"20mbit" or "unlimited"')
    if unit not in _RATES or value <= 0:
        raise FarflungError(
            f"{what}: {text!r} is no rate", 'write a positive number with kbit, mbit or gbit, like "20mbit"'
        )
    return value * _RATES[unit]


def milliseconds(text: object, what: str = "delay") -> float:
    """Milliseconds from 25, "25ms", "0.3s", "250us"."""
    value, unit = _split(text, what, '25, "25ms" or "0.3s"')
    if unit not in _TIMES:
        raise FarflungError(f"{what}: unknown unit in {text!r}", "use us, ms or s")
    return value * _TIMES[unit]


def duration(text: str, what: str) -> float:
    """Seconds from "90s", "30m", "12h", "7d", "0"; "forever" is infinite."""
    if text.strip() in ("forever", "0"):
        return math.inf if text.strip() == "forever" else 0.0
    value, unit = _split(text, what, '"30m", "12h", "7d" or "forever"')
    if unit not in _DURATIONS:
        raise FarflungError(f"{what}: {text!r} is no duration", 'write it like "30m", "12h", "7d" or "forever"')
    return value * _DURATIONS[unit]


def share(text: object, what: str = "loss") -> float:
    """A fraction in [0, 1] from 0.01 or "1%"."""
    value, unit = _split(text, what, '0.01 or "1%"')
    value = value / 100 if unit == "%" else value
    if unit not in ("", "%") or not 0 <= value <= 1:
        raise FarflungError(f"{what}: {text!r} is no share of packets", 'write 0.01 or "1%"')
    return value


def size(text: object, what: str = "size") -> int:
    """Bytes from 65536, "64MiB", "16MB"."""
    value, unit = _split(text, what, '"64MiB"')
    if unit not in _SIZES:
        raise FarflungError(f"{what}: unknown unit in {text!r}", "use kB, MB, KiB or MiB")
    return int(value * _SIZES[unit])


def rate_word(bits: float | None) -> str:
    """A rate as `rate` reads it: "20mbit", "unlimited"."""
    return "unlimited" if bits is None else f"{bits / 1e6:g}mbit"
