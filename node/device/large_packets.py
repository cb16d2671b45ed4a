"""Whether large packets get through to a machine whose small ones do: an MTU black hole (a VPN, PPPoE, a tunnel).

There a connection opens and then stalls at the first message that needs a large packet. Tested only after something has
stalled.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import sys
import time

SECONDS = 4.0
"""Seconds that a large packet may take: the kernel retransmits it several times within that."""
SMALL = 536
"""Bytes of a TCP segment that every network carries."""
_OPENING = b"\x16\x03\x01\x40\x00"
"""A TLS record of 16 KiB: who gets less of it waits for the rest, and answers nothing."""
HINT = (
    "lower the MTU of this machine's interface, e.g. `ip link set dev IFACE mtu 1280`, or let the router or VPN on the "
    "way clamp the MSS"
)


def black_hole(host: str, port: int) -> str:
    """What is wrong with the way to HOST:PORT, as a sentence; empty where large packets pass, or nobody can tell."""
    where = f"{host}:{port}"
    with contextlib.suppress(OSError):
        if not large_arrive(host, port):
            return f"small packets get through to {where}, and large ones do not: the way there takes less than its MTU"
        if not answers(host, port) and answers(host, port, SMALL):
            return f"small packets come from {where}, and large ones do not: the way from there takes less than its MTU"
    return ""


def large_arrive(host: str, port: int) -> bool:
    """Whether the other side acknowledges what is sent in large packets. OSError: it does not even connect."""
    with socket.create_connection((host, port), SECONDS) as connection:
        connection.sendall(_OPENING + bytes(8192))
        until = time.monotonic() + SECONDS
        while (left := unacknowledged(connection)) and time.monotonic() < until:
            time.sleep(0.02)
        return not left


def answers(host: str, port: int, segment: int | None = None) -> bool:
    """Whether a TLS handshake comes to an end; ``segment``: bytes that either side sends at once, at most."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is said to it
    context.set_alpn_protocols(["h2"])
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    try:
        with socket.socket(family, kind, protocol) as plain:
            plain.settimeout(SECONDS)
            if segment is not None:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
            plain.connect(address)
            with context.wrap_socket(plain, server_hostname="coordinator"):
                return True
    except TimeoutError:
        return False


def unacknowledged(connection: socket.socket) -> int:
    """Bytes that were sent and that the other side has not acknowledged; 0 where the system does not say."""
    if sys.platform != "linux":
        return 0
    import fcntl
    import termios

    return int(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0])
