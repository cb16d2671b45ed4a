"""Limits connections to a port of this process that have shown no secret yet: how many, from where, for how long.

gRPC and uvicorn hide their sockets, so the sockets are found among this process's own descriptors and shut down through
a duplicate. Honest callers show their secret within a second; a connection on which a secret was shown is never ended.
If there are too many unproved ones, the newest stay: honest callers are among these, idle attackers are not. Only Linux
lets a process list its descriptors; on other systems only the time-outs of handshakes protect.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from .sockets import End, connections, plain

log = logging.getLogger(__name__)

PER_ADDRESS = 256
"""The most unproved connections of one address; a whole lab behind one address may join at once."""
MOST = 512
"""Unproved connections of all addresses together, at most; or a quarter of this process's descriptor limit, if that
is less."""
SECONDS = 30.0
"""Seconds within which a connection must have shown a secret."""
GRACE_S = 5.0
"""No connection younger than this many seconds is ended: an honest caller has shown its secret by then."""
DESCRIPTORS = 65536
_PAUSE_S = 1.0
_EVERY, _UNPROVED_EVERY = 20, 3  # look every so many pauses: usually; while a connection is unproved
_MANY = 32


def too_many(since: Mapping[End, float], now: float, most: int = MOST, per_address: int = PER_ADDRESS) -> list[End]:
    """The unproved connections that must be ended, oldest first. ``since``: when each was first seen (seconds)."""
    oldest = sorted(since, key=lambda end: since[end])
    gone = [end for end in oldest if now - since[end] > SECONDS]
    by_address: dict[str, list[End]] = defaultdict(list)
    for end in oldest:
        by_address[end[0]].append(end)
    gone += [end for ends in by_address.values() for end in ends[: max(0, len(ends) - per_address)]]
    kept = [end for end in oldest if end not in set(gone)]
    gone += kept[: max(0, len(kept) - most)]
    return [end for end in dict.fromkeys(gone) if now - since[end] > GRACE_S]


def raise_descriptor_limit() -> int:
    """Raises this process's limit of descriptors as far as the system allows, up to DESCRIPTORS; returns the limit."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with contextlib.suppress(ValueError, OSError):  # some systems refuse the limit that they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


class Door:
    """Watches the connections to some ports of this process. Lives on one event loop."""

    def __init__(self, *ports: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.ports, self._clock = set(ports), clock
        self.ended = 0
        """Connections ended so far."""
        self._proved: dict[End, float] = {}
        self._since: dict[End, float] = {}
        self._told_to_go: set[End] = set()
        self._most = min(MOST, raise_descriptor_limit() // 4)

    def proved(self, end: End | None) -> None:
        """The caller on this connection has shown a secret of the run."""
        if end is not None:
            self._proved[plain(end[0]), end[1]] = self._clock()

    async def look(self) -> int:
        """End the connections that `too_many` names. Returns how many unproved ones there were."""
        began = self._clock()
        looking = _Look(self.ports)
        try:
            found = await asyncio.to_thread(looking.find)
        except asyncio.CancelledError:  # the thread goes on: close what it finds
            looking.abandon()
            raise
        try:
            # A connection that was proved while the descriptors were read may be missing from ``found``.
            self._proved = {end: at for end, at in self._proved.items() if end in found or at >= began}
            self._since = {end: self._since.get(end, began) for end in found if end not in self._proved}
            self._told_to_go &= found.keys()  # one may take a moment
            waiting = {end: at for end, at in self._since.items() if end not in self._told_to_go}
            gone = too_many(waiting, self._clock(), self._most, PER_ADDRESS)
            for end in gone:
                with contextlib.suppress(OSError):  # it has ended by itself
                    found[end].shutdown(socket.SHUT_RDWR)
            if gone:
                self._told_to_go.update(gone)
                self.ended += len(gone)
                where = ", ".join(sorted({address for address, _ in gone})[:5])
                log.warning("ended %d connections that showed no ticket and no session, from %s", len(gone), where)
            return len(self._since)
        finally:
            for one in found.values():
                one.close()

    async def watch(self) -> None:
        """Check at once when many connections have come, every 3 s while any is unproved, else every 20 s; until
        cancelled."""
        seen, waited, unproved = 0, 0, 0
        while True:
            await asyncio.sleep(_PAUSE_S)
            waited += 1
            if waited >= (_UNPROVED_EVERY if unproved else _EVERY) or _lowest_free() > seen + _MANY:
                unproved = await self.look()
                seen, waited = _lowest_free(), 0


class _Look:
    """Finds connections in a thread, for a task that may have been cancelled by then."""

    def __init__(self, ports: Collection[int]) -> None:
        self._ports = ports
        self._changing = threading.Lock()
        self._found: dict[End, socket.socket] = {}
        self._abandoned = False

    def find(self) -> dict[End, socket.socket]:
        """As `_connections`; the caller closes them."""
        found = _connections(self._ports)
        with self._changing:
            self._found = found
            if self._abandoned:
                self._close()
        return found

    def abandon(self) -> None:
        """Close all connections that are found, now or later."""
        with self._changing:
            self._abandoned = True
            self._close()

    def _close(self) -> None:
        for one in self._found.values():
            one.close()


def _lowest_free() -> int:
    """The lowest free descriptor, an estimate of how many are in use. Counting them takes a thousand times as long."""
    try:
        free = os.open(os.devnull, os.O_RDONLY)
    except OSError:  # none is
        return DESCRIPTORS
    os.close(free)
    return free


def _connections(ports: Collection[int]) -> dict[End, socket.socket]:
    """Duplicates of this process's TCP connections to its own ports, by their far ends; the caller closes them."""
    found: dict[End, socket.socket] = {}
    for one, end in connections():
        if end in found or not _is_to(one, ports):
            one.close()
        else:
            found[end] = one
    return found


def _is_to(one: socket.socket, ports: Collection[int]) -> bool:
    try:
        return one.getsockname()[1] in ports
    except OSError:  # it has ended
        return False
