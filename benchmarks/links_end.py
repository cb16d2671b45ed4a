"""One end of a link in benchmarks/links.py: a node's Wire, and a plain TCP connection beside it.

    python -m benchmarks.links_end MEMBER FOLDER

MEMBER is JSON: name, address and dials_out of control.proto's Member. Orders are JSON lines on stdin, answers JSON
lines on stdout. All times are CLOCK_MONOTONIC, which the hosts of an emulated WAN share.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from farflung.node.ipc.config import WireConfig
from farflung.node.wire.client import ProcessWire
from farflung.node.wire.events import Received
from farflung.proto.control_pb2 import Member
from farflung.proto.data_pb2 import Activation, Header, Kind

PIECE = 4 << 20
"""Bytes of a message: about what a block of a round or a piece of a stage's state has."""
PATIENCE = 120.0
TCP_PORT = 7072
URGENT = 1_000_000
"""Steps above this number the urgent messages."""


def _of_step(kind: Kind.ValueType, step: int) -> Header:
    return Header(kind=kind, activation=Activation(step=step))


class End:
    """Answers orders, one after the other."""

    def __init__(self, name: str, address: str, dials_out: bool, folder: Path) -> None:
        self.name, self.address = name, address.rpartition(":")[0]
        keys = {key: (folder / f"{name}.{key}").read_bytes() for key in ("authority", "certificate", "key")}
        config = WireConfig("links", name, f"{name}-1", listen=address, dials_out=dials_out, **keys)  # type: ignore[arg-type]
        self.wire = ProcessWire.start(config)
        self.payload = np.random.default_rng(0).integers(0, 256, PIECE, dtype=np.uint8)
        self.tcp: socket.socket | None = None
        self.seen: list[Received] = []
        self.urgents = 0

    def enter(self, view: int, members: list[dict[str, Any]]) -> dict[str, Any]:
        self.wire.enter(view, [Member(session=f"{member['name']}-1", **member) for member in members])
        return {}

    def leave(self) -> dict[str, Any]:
        self.wire.leave_view()
        self.seen.clear()
        return {"at": time.monotonic()}

    def send(self, to: str, size: int, step: int, priority: int = 1) -> dict[str, Any]:
        """Sends so many bytes in messages of PIECE, and says when it began."""
        began = time.monotonic()
        kind = Kind.ACTIVATION if priority == 0 else Kind.EVALUATION
        for at in range(0, size, PIECE):
            self.wire.send(to, _of_step(kind, step), self.payload[: min(PIECE, size - at)], priority)
        self.wire.poll()
        return {"began": began}

    def receive(self, size: int, step: int) -> dict[str, Any]:
        """Waits for so many bytes of that step; when the last was there."""
        got, until = 0, time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for event in [*self.seen, *self.wire.poll(0.5)]:
                if isinstance(event, Received) and event.header.activation.step == step:
                    got += len(event.payload)
            self.seen.clear()
            if got >= size:
                return {"ended": time.monotonic()}
        return {"problem": f"{got} of {size} bytes came in {PATIENCE:.0f} s"}

    def urgent(self, to: str, size: int, count: int, gap: float) -> dict[str, Any]:
        """Sends `count` messages of the highest priority, `gap` seconds apart; when each was handed over."""
        at = []
        for _ in range(count):
            at.append(time.monotonic())
            self.urgents += 1
            self.wire.send(to, _of_step(Kind.ACTIVATION, URGENT + self.urgents), self.payload[:size], 0)
            self._idle(gap)
        return {"at": at}

    def _idle(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.seen += [event for event in self.wire.poll(left) if isinstance(event, Received)]

    def arrivals(self, count: int) -> dict[str, Any]:
        """When each of `count` urgent messages arrived."""
        at: dict[int, float] = {}
        until = time.monotonic() + PATIENCE
        while len(at) < count and time.monotonic() < until:
            for event in self.wire.poll(0.5):
                if isinstance(event, Received) and event.header.activation.step > URGENT:
                    at[event.header.activation.step] = time.monotonic()
        return {"at": [at[index] for index in sorted(at)]}

    def measure(self, member: dict[str, Any]) -> dict[str, Any]:
        """What the node itself finds out about the link: bits a second, seconds one way, and how long that took."""
        began = time.monotonic()
        (link,) = self.wire.measure([Member(session=f"{member['name']}-1", **member)]).links
        return {"bps": link.bandwidth_bps, "latency": link.latency_s, "took": round(time.monotonic() - began, 1)}

    def listen(self) -> dict[str, Any]:
        server = socket.create_server((self.address, TCP_PORT))
        self.tcp, _ = server.accept()
        server.close()
        return {}

    def dial(self, address: str) -> dict[str, Any]:
        self.tcp = socket.create_connection((address, TCP_PORT), timeout=PATIENCE)
        return {}

    def tcp_send(self, size: int) -> dict[str, Any]:
        assert self.tcp is not None
        began, block = time.monotonic(), self.payload.data
        for at in range(0, size, PIECE):
            self.tcp.sendall(block[: min(PIECE, size - at)])
        return {"began": began}

    def tcp_receive(self, size: int) -> dict[str, Any]:
        assert self.tcp is not None
        into, got = memoryview(bytearray(1 << 20)), 0
        while got < size:
            got += self.tcp.recv_into(into) or size
        return {"ended": time.monotonic()}

    def close(self) -> dict[str, Any]:
        self.wire.close("")
        return {}


def main() -> None:
    member, folder = sys.argv[1:]
    end = End(**json.loads(member), folder=Path(folder))
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(end, order.pop("do"))(**order)
        except Exception as error:
            answer = {"problem": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
