"""The address of a database server: checks it, and removes its password from messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

from ....proto.errors import FarflungError

_SECRET = re.compile(r"(?:password|passfile|sslpassword|sslkey)=([^&]*)")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HINT = "write @ / : ? # % of a user or password as %40 %2F %3A %3F %23 %25, or leave the password to PGPASSFILE"


def check(url: str) -> None:
    """FarflungError, which quotes nothing, for an address in which a part of the password would be parsed as another
    part."""
    rest = url.partition("://")[2]
    place, _, _ = rest.partition("?")
    host, _, _ = place.partition("/")
    if rest.count("@") > 1 or "@" in rest[len(host) :].partition("?")[0] or _BAD_ESCAPE.search(rest):
        raise FarflungError("the database's address cannot be read: a special character in it is not escaped", _HINT)


def hidden(text: str, url: str) -> str:
    """A sentence without the passwords of an address, in whatever form."""
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets(url: str) -> Iterator[str]:
    rest = url.partition("://")[2]
    user = rest.partition("/")[0].rpartition("@")[0]
    found = [user.partition(":")[2], *_SECRET.findall(rest.partition("?")[2])]
    for one in found:
        if one:
            yield from (one, unquote(one))
