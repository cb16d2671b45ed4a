"""Wires of real endpoints on loopback, for tests: started by name, polled with a deadline, killed."""

import contextlib
import os
import signal
import time

import numpy as np
from ports import free_port

from farflung.node.ipc.config import WireConfig
from farflung.node.peers.tcp_info import connected_to
from farflung.node.wire.client import ProcessWire
from farflung.node.wire.events import PeerLost, Received
from farflung.proto.control_pb2 import Member


class Nodes:
    """Wires of one run, by name."""

    def __init__(self, process, certificates):
        self.process, self.certificates = process, certificates
        self.wires = {}
        self.sessions = {}

    def start(self, name, session=None, secure=None, **settings):
        self.sessions[name] = session or f"{name}-1"
        if secure if secure is not None else self.certificates is not None:
            settings = {**self.certificates(name), **settings}
        settings = {"run": "run-1", "listen": "127.0.0.1:0", **settings}
        config = WireConfig(name=name, session=self.sessions[name], **settings)
        self.wires[name] = ProcessWire.start(config, self.process)
        return self.wires[name]

    def members(self, *names):
        return [
            Member(name=name, session=self.sessions[name], address=f"127.0.0.1:{self.wires[name].port}")
            for name in names or self.wires
        ]

    def enter(self, view, *names):
        for name in names or self.wires:
            self.wires[name].enter(view, self.members(*names))

    def close(self):
        for wire in self.wires.values():
            wire.close("")
        self.wires.clear()


def descriptors():
    """Open sockets and shared-memory files of this process, by what they are."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(target for target in found if target.startswith(("socket:", "/memfd:", "/dev/shm")))


@contextlib.contextmanager
def accepted(port):
    """This process's ends of the connections that were opened to one of its ports, by where they come from."""
    theirs = connected_to({("127.0.0.1", port)})
    ours = connected_to({("127.0.0.1", one.getsockname()[1]) for one in theirs})
    try:
        yield {one.getpeername()[1]: one for one in ours}
    finally:
        for one in (*theirs, *ours):
            one.close()


def wait_for(wire, wanted, timeout=60.0, others=None):
    """Polls until an event of the kind (or one that the function accepts) comes; collects the rest in `others`."""
    accept = wanted if not isinstance(wanted, type) else lambda event: isinstance(event, wanted)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = None
        for event in wire.poll(0.2):
            if found is None and accept(event):
                found = event
            elif others is not None:
                others.append(event)
        if found is not None:
            return found
    raise AssertionError(f"nothing came within {timeout} s")


def receive(wire, count=1, timeout=60.0):
    """The next `count` messages; a lost peer on the way is a failure."""
    got = []
    deadline = time.monotonic() + timeout
    while len(got) < count and time.monotonic() < deadline:
        for event in wire.poll(0.2):
            assert not isinstance(event, PeerLost), event
            if isinstance(event, Received):
                got.append(event)
    assert len(got) == count, f"{len(got)} of {count} messages came"
    return got


def kill(wire):
    """kill -9 of a wire's I/O process."""
    os.kill(wire._host.pid, signal.SIGKILL)


def behind_nat(nodes, *names):
    """Members as the coordinator tells them: of these names, the address is one that refuses."""
    port = free_port()
    members = nodes.members()
    for member in members:
        if member.name in names:
            member.address, member.dials_out = f"127.0.0.1:{port}", True
    return members


def payload_of(number):
    return np.random.default_rng(number).integers(0, 256, [10, 70_000, 3_000_000][number % 3], dtype=np.uint8)
