"""Which names a node may have.

Names are compared without case, as DNS, TLS and the file systems of many machines do. A name ends in a letter or a
digit, because DNS ignores a dot at the end.
"""

from __future__ import annotations

import hashlib
import re

NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z")
RESERVED = frozenset({"coordinator", "operator"})
"""Reserved names: parts of a run that are not nodes."""
RULE = "letters, digits, '.', '_' and '-', at most 63, a letter or digit first and last"


def folded(name: str) -> str:
    """A name without case; two names that are equal in this form are the same."""
    return name.casefold()


DOMAIN = "node.farflung"
"""The domain of the DNS names in nodes' certificates; nothing else is below it."""


def dns_name(name: str) -> str:
    """The DNS name in a node's certificate.

    TLS compares DNS names without case and without a dot at the end. A digest has neither, so different names have
    different DNS names, and none of them is the coordinator's.
    """
    return f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.{DOMAIN}"


def mistake(name: str) -> str:
    """Why no node may have this name; empty if one may."""
    if not NODE.match(name):
        return f"{name[:80]!r} is no name for a node"
    if folded(name) in RESERVED:
        return f"{name} is a name that no node may have"
    return ""
