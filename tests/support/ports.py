"""Ports that stay free until a test takes them.

A port that the kernel chose (port 0) and that was closed again may be anybody's a moment later: each outgoing
connection gets one of the same range, and one to a port at which nobody listens may even get that very port and reach
itself. Here they lie below that range, and each process of tests has some of its own.
"""

import fcntl
import itertools
import socket
import tempfile
from pathlib import Path

_BLOCK, _BLOCKS = 100, 120
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = (int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32768) - _BLOCK * _BLOCKS


def _own_ports():
    """Round and round the ports of a block that no other process has, as long as this one lives."""
    folder = Path(tempfile.gettempdir(), "farflung-test-ports")
    folder.mkdir(exist_ok=True)
    for block in range(_BLOCKS):
        lock = (folder / str(block)).open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        for offset in itertools.cycle(range(_BLOCK)):
            yield _FIRST + block * _BLOCK + offset, lock
    raise AssertionError(f"{_BLOCKS} processes of tests run on this machine")


_ports = _own_ports()


def free_port() -> int:
    """A port of 127.0.0.1 at which nobody listens, and that this process was not given just now."""
    for port, _ in itertools.islice(_ports, _BLOCK):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("none of this process's ports is free")
