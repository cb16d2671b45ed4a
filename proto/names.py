"""What a node may be called.

A name is the same whatever its case, as it is for DNS, for TLS and for the folders of many machines, and it ends in a
letter or a digit, because DNS ignores a dot at the end.
"""

from __future__ import annotations

import re

NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z")
RESERVED = frozenset({"coordinator", "operator"})
"""Names of parts of a run that are no nodes."""
RULE = "letters, digits, '.', '_' and '-', at most 63, a letter or digit first and last"


def folded(name: str) -> str:
    """What two names have in common that nobody may tell apart."""
    return name.casefold()


def mistake(name: str) -> str:
    """Why no node may have this name; empty when one may."""
    if not NODE.match(name):
        return f"{name[:80]!r} is no name for a node"
    if folded(name) in RESERVED:
        return f"{name} is a name that no node may have"
    return ""
