"""Measures a WAN from inside its hosts without external tools: ICMP echo, UDP with sequence numbers, TCP streams.

Sockets are opened in the hosts' namespaces by this one process and stay there, so nothing has to be started.
"""

from __future__ import annotations

import contextlib
import dataclasses
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from . import kernel, packets
from .lab import Lab
from .topology import GOODPUT, Pair

_SO_TIMESTAMPNS, _SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 35, 32, 33
_TCP_CONGESTION = 13
_BLOCK = memoryview(bytes(1 << 20))


def _socket(lab: Lab, i: int, kind: int, protocol: int = 0) -> socket.socket:
    with kernel.inside(lab.namespace(i)):
        return socket.socket(socket.AF_INET, kind, protocol)


def rtt(
    lab: Lab, pairs: Iterable[Pair], count: int = 20, interval: float = 0.05, patience: float = 1.5
) -> dict[Pair, list[float]]:
    """Round trips in ms of `count` ICMP echoes from i to j, for all pairs at once. Lost ones are absent. The receive
    time is the kernel's, so this process may be late without harm."""
    pairs = list(pairs)
    found: dict[Pair, list[float]] = {pair: [] for pair in pairs}
    with contextlib.ExitStack() as stack:
        sockets = {
            i: stack.enter_context(_socket(lab, i, socket.SOCK_RAW, socket.IPPROTO_ICMP)) for i in {i for i, _ in pairs}
        }
        for sock in sockets.values():
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        sent: dict[tuple[int, int, int], int] = {}
        start = time.monotonic()
        interval = max(interval, len(pairs) / 4000)  # echoes are small packets, which cost an emulator most
        spread = interval / max(1, len(pairs))
        # pairs take turns, so that echoes of one pair do not queue behind each other
        todo = [(start + k * interval + p * spread, k, pair) for k in range(count) for p, pair in enumerate(pairs)]
        slowest = max((lab.now.rtt_ms(pair) for pair in pairs), default=0.0) / 1e3
        end = start + count * interval + slowest + patience
        done = 0
        while True:
            now = time.monotonic()
            while done < len(todo) and todo[done][0] <= now:
                _, k, (i, j) = todo[done]
                body = struct.pack("!BBHHH", 8, 0, 0, j + 1, k) + bytes(24)
                body = body[:2] + packets.checksum(body).to_bytes(2, "big") + body[4:]
                sent[i, j, k] = time.clock_gettime_ns(time.CLOCK_REALTIME)
                with contextlib.suppress(OSError):  # an echo that cannot be sent is an echo without an answer
                    sockets[i].sendto(body, (lab.now.address(j), 0))
                done += 1
            wait = min(end, todo[done][0] if done < len(todo) else end) - now
            for sock in select.select(list(sockets.values()), (), (), max(0.0, wait))[0]:
                _echoes(sock, next(i for i, s in sockets.items() if s is sock), sent, found)
            # checked after reading: answers that came while this process was not scheduled count
            if now > end or (done == len(todo) and sum(map(len, found.values())) == len(todo)):
                return found


def _echoes(sock: socket.socket, i: int, sent: dict[tuple[int, int, int], int], found: dict[Pair, list[float]]) -> None:
    while True:
        try:
            data, extra, _, _ = sock.recvmsg(256, 256)
        except BlockingIOError:
            return
        kind, _, _, name, k = struct.unpack_from("!BBHHH", data, 20)
        at = sent.pop((i, name - 1, k), None) if kind == 0 else None
        if at is None:
            continue
        for level, what, value in extra:
            if level == socket.SOL_SOCKET and what == _SO_TIMESTAMPNS:
                seconds, nanoseconds = struct.unpack("qq", value[:16])
                found[i, name - 1].append((seconds * 10**9 + nanoseconds - at) / 1e6)


def loss(lab: Lab, pair: Pair, count: int = 10_000, rate_share: float = 0.3) -> int:
    """How many of `count` small UDP packets from i to j arrive. Paced far below the link's rate, so none is lost to a
    queue. A receiver behind NAT opens its own door first."""
    i, j = pair
    narrow = lab.now.narrowest(pair)
    pace = min(5000.0, rate_share * (narrow or 1e9) / 8 / 120)
    with _socket(lab, i, socket.SOCK_DGRAM) as sender, _socket(lab, j, socket.SOCK_DGRAM) as receiver:
        sender.bind((lab.now.address(i), 0))
        receiver.bind((lab.now.address(j), 0))
        with contextlib.suppress(PermissionError):
            receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 << 20)
        receiver.setblocking(False)
        for _ in range(5):
            receiver.sendto(b"open", sender.getsockname())
        time.sleep(lab.now.rtt_ms(pair) / 1e3 + 0.05)
        seen: set[bytes] = set()
        start = time.monotonic()
        sent = 0
        while sent < count:
            # no burst after a stall of this process: packets would be lost in a full queue, not on the link
            due = min(count, sent + 40, int((time.monotonic() - start) * pace) + 1)
            for k in range(sent, due):
                sender.sendto(b"lost" + k.to_bytes(4, "big") + bytes(56), receiver.getsockname())
            sent = max(sent, due)
            _drain(receiver, seen)
            time.sleep(0.002)
        until = time.monotonic() + lab.now.rtt_ms(pair) / 1e3 + 0.5
        while time.monotonic() < until and len(seen) < count:
            select.select([receiver], (), (), 0.05)
            _drain(receiver, seen)
    return len(seen)


def _drain(receiver: socket.socket, seen: set[bytes]) -> None:
    while True:
        try:
            data = receiver.recv(128)
        except BlockingIOError:
            return
        if data[:4] == b"lost":
            seen.add(data[4:8])


@dataclasses.dataclass
class Stream:
    """A TCP transfer from i to j: payload bytes that arrived until each moment."""

    pair: Pair
    connections: int
    congestion: str
    times: list[float] = dataclasses.field(default_factory=list)
    totals: list[int] = dataclasses.field(default_factory=list)
    error: str = ""

    def seconds(self, since: float, until: float) -> list[float]:
        """Payload bit/s of each whole second between two moments."""
        return [self.rate(since + k, since + k + 1) for k in range(int(until - since))]

    def rate(self, since: float, until: float) -> float:
        """Payload bit/s between two moments (seconds from the start)."""
        inside = [(t, b) for t, b in zip(self.times, self.totals, strict=True) if since <= t <= until]
        if len(inside) < 2 or inside[-1][0] <= inside[0][0]:
            return 0.0
        return (inside[-1][1] - inside[0][1]) * 8 / (inside[-1][0] - inside[0][0])


def connections(lab: Lab, pair: Pair) -> int:
    """The number of connections with which the sockets' buffers do not limit the goodput."""
    narrow = lab.now.narrowest(pair)
    if narrow is None:
        return 2
    memory = (lab.now.tcp_memory or 4 << 20) / 2
    return max(1, min(8, -(-int(narrow / 8 * (lab.now.rtt_ms(pair) / 1e3 + 0.02)) // int(memory))))


def _room(lab: Lab, pair: Pair) -> int:
    """Bytes that are under way and waiting when a pair's link is full."""
    delay = lab.now.rtt_ms(pair) + lab.now.links[pair].queue_ms
    return int((lab.now.narrowest(pair) or 0.0) / 8 * delay / 1e3)


def _prepare(sock: socket.socket, congestion: str | None, room: int) -> None:
    """Congestion control and buffers (`room`: payload bytes under way; 0: the kernel's own) of a socket that will
    connect or listen."""
    if congestion:
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, congestion.encode())
    if room:  # the kernel doubles the value, and a byte of payload occupies up to two bytes
        for option in (_SO_SNDBUFFORCE, _SO_RCVBUFFORCE):
            sock.setsockopt(socket.SOL_SOCKET, option, max(1 << 20, 2 * room))


def stream(
    lab: Lab,
    pair: Pair,
    seconds: float,
    warm_up: float,
    congestion: str | None = None,
    count: int | None = None,
    early: bool = False,
) -> Stream:
    """Send from i to j for `warm_up` + `seconds`. With `early`, end as soon as a whole second after the warm-up was
    `full`, because then the link carries its rate. Without `count`, the number of connections and their buffers are as
    large as necessary: BBR with too small a buffer considers itself idle and never ends its startup phase."""
    i, j = pair
    room = 0 if count else _room(lab, pair)
    count = count or connections(lab, pair)
    result = Stream(pair, count, congestion or "")
    narrow = lab.now.narrowest(pair)
    dial_from, listen_at = (j, i) if lab.now.hosts[j].nat else (i, j)
    totals = [0] * count
    stop = threading.Event()
    senders: list[socket.socket] = []
    receivers: list[socket.socket] = []
    threads: list[threading.Thread] = []
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_socket(lab, listen_at, socket.SOCK_STREAM))
        _prepare(listener, congestion, room // count)
        listener.bind((lab.now.address(listen_at), 0))
        listener.listen(count)
        listener.settimeout(10)
        for _ in range(count):
            dialled = stack.enter_context(_socket(lab, dial_from, socket.SOCK_STREAM))
            _prepare(dialled, congestion, room // count)
            dialled.settimeout(15)
            try:
                dialled.connect(listener.getsockname())
                accepted = stack.enter_context(listener.accept()[0])
            except OSError as error:
                result.error = str(error) or type(error).__name__
                return result
            senders.append(dialled if dial_from == i else accepted)
            receivers.append(accepted if dial_from == i else dialled)
        result.congestion = senders[0].getsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, 16).split(b"\0")[0].decode()
        for k in range(count):
            senders[k].settimeout(0.5)
            receivers[k].settimeout(0.5)
            threads.append(threading.Thread(target=_send, args=(senders[k], stop), daemon=True))
            threads.append(threading.Thread(target=_receive, args=(receivers[k], stop, totals, k), daemon=True))
        for thread in threads:
            thread.start()
        start = time.monotonic()
        now = 0.0
        while now < warm_up + seconds:
            time.sleep(0.05)
            now = time.monotonic() - start
            result.times.append(now)
            result.totals.append(sum(totals))
            if early and now > warm_up + 1 and narrow and full(result.rate(now - 1, now), narrow):
                break
        stop.set()
        for sock in (*senders, *receivers):
            # a reset: unread bytes in a full queue would delay the next measurement
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for thread in threads:
            thread.join()
    return result


def full(payload: float, rate: float) -> bool:
    """Whether a second's payload (bit/s) is as much as a rate allows. More than that does not show a fast link: the
    bytes had waited behind a lost segment."""
    return 0.96 <= payload / (GOODPUT * rate) <= 1.02


def _send(sock: socket.socket, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            sock.send(_BLOCK)
        except TimeoutError:
            continue
        except OSError:
            return


def _receive(sock: socket.socket, stop: threading.Event, totals: list[int], k: int) -> None:
    room = bytearray(1 << 20)
    while not stop.is_set():
        try:
            got = sock.recv_into(room, 0, socket.MSG_TRUNC)  # TCP: counted and thrown away, not copied
        except TimeoutError:
            continue
        except OSError:
            return
        if not got:
            return
        totals[k] += got


def answers(lab: Lab, i: int, j: int, patience: float) -> bool:
    """Whether host j can be dialled from host i: a refused connection is an answer, silence is none."""
    with _socket(lab, i, socket.SOCK_STREAM) as sock:
        sock.settimeout(patience)
        try:
            sock.connect((lab.now.address(j), 9))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return True


def congestion(lab: Lab, i: int) -> str:
    """The TCP congestion control of a host."""
    with kernel.inside(lab.namespace(i)):
        return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
