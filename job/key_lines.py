"""The line of every key in a TOML text, which tomllib does not keep: a small scanner of its own."""

from __future__ import annotations

from .sentences import Key


def key_lines(text: str) -> dict[Key, int]:
    """Line number (from 1) of every table header and ``key =`` of a TOML text, by full key."""
    found: dict[Key, int] = {}
    table: Key = ()
    depth, quote = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not depth and not quote:
            if stripped.startswith("["):
                table = _key(stripped.split("#")[0].strip().strip("[]"))
                found.setdefault(table, number)
                continue
            if "=" in stripped and not stripped.startswith("#"):
                found.setdefault(table + _key(stripped.split("=", 1)[0]), number)
        depth, quote = _scan(line, depth, quote)
    return found


def _key(text: str) -> Key:
    return tuple(part.strip().strip("\"'") for part in text.split("."))


def _scan(line: str, depth: int, quote: str) -> tuple[int, str]:
    """Bracket depth and open triple quote after a line."""
    at = 0
    while at < len(line):
        rest = line[at:]
        if quote:
            if rest.startswith("\\") and quote[0] == '"':
                at += 2
                continue
            if rest.startswith(quote):
                at += len(quote)
                quote = ""
                continue
        elif rest[0] == "#":
            break
        elif rest[0] in "\"'":
            quote = rest[0] * 3 if rest.startswith(rest[0] * 3) else rest[0]
            at += len(quote)
            continue
        elif rest[0] in "[{":
            depth += 1
        elif rest[0] in "]}":
            depth -= 1
        at += 1
    return max(depth, 0), quote if len(quote) == 3 else ""
