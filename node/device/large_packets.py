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
"""The header of a TLS handshake record of 16 KiB: a server that has received less waits for the rest without an
answer."""
HINT = (
    "lower the MTU of this machine's interface, e.g. `ip link set dev IFACE mtu 1280`, or let the router or VPN on the "
    "way clamp the MSS"
)


def black_hole(host: str, port: int) -> str:
    """A sentence that says in which direction large packets to HOST:PORT are lost; empty if they pass, or if the test
    is inconclusive."""
    where = f"{host}:{port}"
    with contextlib.suppress(OSError):
        if not large_arrive(host, port):
            return f"small packets get through to {where}, and large ones do not: the way there takes less than its MTU"
        if not answers(host, port) and answers(host, port, SMALL):
            return f"small packets come from {where}, and large ones do not: the way from there takes less than its MTU"
    return ""


def large_arrive(host: str, port: int) -> bool:
    """Whether the other side acknowledges bytes sent in large packets. OSError: no connection at all."""
    with socket.create_connection((host, port), SECONDS) as connection:
        connection.sendall(_OPENING + bytes(8192))
        until = time.monotonic() + SECONDS
        while (left := unacknowledged(connection)) and time.monotonic() < until:
            time.sleep(0.02)
        return not left


def answers(host: str, port: int, segment: int | None = None) -> bool:
    """Whether a TLS handshake comes to an end. ``segment``: the maximum segment size (bytes) of both sides."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent over this connection
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
    """Bytes sent and not acknowledged by the other side; 0 where the operating system does not tell."""
    if sys.platform != "linux":
        return 0
    import fcntl
    import termios

    return int(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0])
