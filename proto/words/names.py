"""What a node may be called.

A name is the same whatever its case, as it is for DNS, for TLS and for the folders of many machines, and it ends in a
letter or a digit, because DNS ignores a dot at the end.
"""

from __future__ import annotations

import hashlib
import re

NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z")
RESERVED = frozenset({"coordinator", "operator"})
"""Names of parts of a run that are no nodes."""
RULE = "letters, digits, '.', '_' and '-', at most 63, a letter or digit first and last"


def folded(name: str) -> str:
    """A name in the form in which two names that people would confuse are equal."""
    return name.casefold()


DOMAIN = "node.farflung"
"""The domain of the DNS names in nodes' certificates; nothing else is below it."""


def dns_name(name: str) -> str:
    """The DNS name in a node's certificate.

    TLS compares DNS names without case and without a dot at the end; the digest of a name has neither, so that names
    which differ at all are different here, and none is a name of the coordinator.
    """
    return f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.{DOMAIN}"


def mistake(name: str) -> str:
    """Why no node may have this name; empty when one may."""
    if not NODE.match(name):
        return f"{name[:80]!r} is no name for a node"
    if folded(name) in RESERVED:
        return f"{name} is a name that no node may have"
    return ""
