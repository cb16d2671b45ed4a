"""Finds this process's own TCP connections, which gRPC and uvicorn hide, among its descriptors.

Only Linux lets a process list its descriptors; elsewhere nothing is found.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import urllib.parse
from collections.abc import Iterator

End = tuple[str, int]
"""Address and port of one end of a connection. IPv4 inside of IPv6 is written as IPv4, and no address has a scope."""


def end_of(peer: str) -> End | None:
    """The far end in gRPC's ``ipv4:1.2.3.4:567`` or ``ipv6:[::1]:567`` (percent-encoded or not)."""
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    return (plain(host.strip("[]")), int(port)) if kind in ("ipv4", "ipv6") and port.isdigit() else None


def plain(host: str) -> str:
    """An address in the form that an `End` has."""
    return host.removeprefix("::ffff:").partition("%")[0]


def descriptors() -> list[int]:
    """This process's descriptors; none where the system cannot list them."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return []


def connections() -> Iterator[tuple[socket.socket, End]]:
    """A duplicate of each TCP connection, with its far end; the caller closes it."""
    made = set[int]()
    for number in descriptors():
        with contextlib.suppress(OSError):  # closed meanwhile
            if number in made or not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            one = socket.socket(fileno=os.dup(number))
            made.add(one.fileno())
            end = _far_end(one)
            if end is None:
                one.close()
            else:
                yield one, end


def _far_end(one: socket.socket) -> End | None:
    if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
        return None
    try:
        host, port = one.getpeername()[:2]
    except OSError:  # it listens, or has ended
        return None
    return plain(host), port
