"""Numbers as people read them: bytes, rates, durations."""

from __future__ import annotations

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")


def bytes_text(count: float) -> str:
    """12.3 MB, in powers of 1000 as networks and disks count."""
    value, unit = float(count), _BYTES[0]
    for unit in _BYTES:
        if abs(value) < 999.5 or unit == _BYTES[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 99.5 else f"{value:.1f} {unit}"


def seconds_text(seconds: float) -> str:
    """0.16 ms, 0.12 s, 48 s, 3 min 20 s, 2 h 05 min."""
    if 0 < seconds < 0.01:
        return f"{1e3 * seconds:.2g} ms"
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count_text(count: float) -> str:
    """950, 12.3 k, 4.5 M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= limit:
            return f"{count / limit:.3g} {unit}"
    return f"{count:.0f}"
