"""The relay: one process that carries every packet of a WAN from TUN device to TUN device when the model says so.

    python -m farflung.deploy.wan.relay STATE_FOLDER

TCP stays the kernels', end to end. Started by lab.py, spoken to over a datagram socket in the state folder
(one JSON request, one JSON answer): {"do": "stat"}, {"do": "set", "hosts": [[i, uplink, downlink], ...],
"links": [[i, j, link], ...]}.
"""

from __future__ import annotations

import errno
import gc
import heapq
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from . import kernel, lateness
from .model import Model
from .packets import Nat, destination, pieces, shape
from .topology import Link, Topology

DEVICE = "wan0"
_BURST = 64  # packets taken from one device before the others get their turn
_FULL = 1 << 16


class Relay:
    """The loop. `devices` are TUN descriptors in host order; `control` a bound datagram socket."""

    def __init__(self, topology: Topology, devices: list[int], control: socket.socket) -> None:
        self.topology = topology
        self.devices = devices
        self.control = control
        self.model = Model(topology)
        self.nats = [Nat() if host.nat else None for host in topology.hosts]
        self.due: list[tuple[float, int, int, bytes, bool]] = []
        self.counts = [0] * (lateness.STEPS + 1)
        self.latest = 0.0
        self.number = 0
        self.closed = 0  # packets that a NAT did not let in
        self.strays = 0  # packets to no host
        self.unwritten = 0  # packets that the receiving device refused
        self.stopping = False
        self.wake, self._bell = os.pipe()

    def stop(self, *_: object) -> None:
        """End `run` now (a signal handler: select itself goes on waiting after a signal)."""
        self.stopping = True
        os.write(self._bell, b".")

    def run(self) -> None:
        """Carry packets until `stopping`."""
        due, read = self.due, os.read
        host_of = {device: i for i, device in enumerate(self.devices)}
        waiting = [*self.devices, self.control.fileno(), self.wake]
        clock = time.monotonic
        while not self.stopping:
            now = clock()
            while due and due[0][0] <= now:
                self._arrive(now)
                now = clock()
            timeout = 1.0 if not due else max(0.0, due[0][0] - now)
            for device in select.select(waiting, (), (), timeout)[0]:
                if device not in host_of:
                    if device != self.wake:
                        self._answer()
                    continue
                i = host_of[device]
                for _ in range(_BURST):
                    try:
                        packet = read(device, _FULL + 4096)
                    except BlockingIOError:
                        break
                    except OSError as error:
                        if error.errno == errno.EIO:  # the interface is down
                            break
                        raise
                    self._enter(i, packet, clock())

    def _enter(self, i: int, packet: bytes, now: float) -> None:
        j = destination(packet) - 1
        if not 0 <= j < len(self.devices) or j == i:
            self.strays += 1
            return
        nat = self.nats[i]
        if nat is not None:
            nat.outgoing(packet)
        segment, count = shape(packet)
        kept, lost, due = self.model.enter(i, j, now, segment, count)
        if not kept:
            return
        for piece in (packet,) if kept == count and not lost else pieces(packet, kept, list(lost)):
            self.number += 1
            heapq.heappush(self.due, (due, self.number, j, piece, False))

    def _arrive(self, now: float) -> None:
        due, _, j, packet, through = heapq.heappop(self.due)
        if not through:
            nat = self.nats[j]
            if nat is not None and not nat.incoming(packet):
                self.closed += 1
                return
            if self.model.down[j].busy(due):
                segment, count = shape(packet)
                kept, when = self.model.leave(j, due, segment, count)
                if kept < count:
                    left = pieces(packet, kept, [])
                    if not left:
                        return
                    packet = left[0]
                if when > now:
                    self.number += 1
                    heapq.heappush(self.due, (when, self.number, j, packet, True))
                    return
                due = when
        try:
            os.write(self.devices[j], packet)
        except OSError:
            self.unwritten += 1
            return
        late = now - due
        step = int(late / lateness.STEP)
        self.counts[step if step < lateness.STEPS else lateness.STEPS] += 1
        if late > self.latest:
            self.latest = late

    def _answer(self) -> None:
        try:
            raw, sender = self.control.recvfrom(1 << 20)
        except BlockingIOError:
            return
        try:
            answer = self._obey(json.loads(raw))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        try:
            self.control.sendto(json.dumps(answer).encode(), sender)
        except (OSError, TypeError):
            self.unwritten += 1  # the client that asked has ended

    def _obey(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "set":
            for i, uplink, downlink in request["hosts"]:
                self.model.set_host(i, uplink, downlink)
            for i, j, values in request["links"]:
                self.model.lines[i][j].set(Link(**values))
            return {"set": len(request["hosts"]) + len(request["links"])}
        return self.stat()

    def stat(self) -> dict[str, Any]:
        """Counters since the start. Times in seconds; pairs only where there is something to tell."""
        lines = self.model.lines
        n = len(self.devices)
        return {
            "time": time.monotonic(),
            "cpu": time.process_time(),
            "late": self.counts,
            "latest_ms": self.latest * 1e3,
            "drops": [[i, j, lines[i][j].drops] for i in range(n) for j in range(n) if lines[i][j].drops],
            "lost": [[i, j, lines[i][j].lost] for i in range(n) for j in range(n) if lines[i][j].lost],
            "down_drops": self.model.down_drops,
            "nat_closed": self.closed,
            "strays": self.strays,
            "unwritten": self.unwritten,
        }


def serve(folder: Path) -> int:
    """Open the devices of the lab in a state folder, say ready, carry packets until SIGTERM."""
    from . import files

    state = json.loads((folder / "state.json").read_text())
    topology = files.from_json(state["topology"])
    devices = [kernel.open_tun(namespace, DEVICE) for namespace in state["namespaces"][: len(topology.hosts)]]
    control = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    control.setblocking(False)
    path = folder / "relay.sock"
    path.unlink(missing_ok=True)
    control.bind(str(path))
    os.chmod(path, 0o600)
    relay = Relay(topology, devices, control)
    signal.signal(signal.SIGTERM, relay.stop)
    signal.signal(signal.SIGINT, relay.stop)
    gc.collect()
    gc.freeze()
    gc.disable()
    missing = kernel.be_punctual()
    (folder / "relay.ready").write_text(json.dumps({"missing": missing}))
    relay.run()
    (folder / "stat.json").write_text(json.dumps(relay.stat()))
    return 0


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1])))
