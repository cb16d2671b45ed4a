"""A way that swallows large packets is told from one that is slow, or gone."""

import contextlib
import os
import socket
import subprocess
import sys
import threading

import pytest

from farflung.node.device import identity, large_packets
from farflung.node.device.large_packets import SMALL, black_hole, large_arrive, unacknowledged
from farflung.proto.errors import Unreachable


@pytest.fixture
def listening():
    """A port where somebody reads whatever comes, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            held = []
            with contextlib.suppress(OSError):
                while True:
                    held.append(server.accept()[0])
                    threading.Thread(target=drain, args=(held[-1],), daemon=True).start()

        def drain(connection):
            with contextlib.suppress(OSError), connection:
                while connection.recv(65536):
                    pass

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def test_what_arrives_is_acknowledged(listening):
    assert large_arrive("127.0.0.1", listening)
    with socket.create_connection(("127.0.0.1", listening)) as one:
        assert unacknowledged(one) == 0


def ways(monkeypatch, large, whole, small):
    monkeypatch.setattr(large_packets, "large_arrive", lambda host, port: large)
    monkeypatch.setattr(large_packets, "answers", lambda host, port, segment=None: small if segment == SMALL else whole)


def test_which_way_swallows_them(monkeypatch):
    ways(monkeypatch, False, False, True)
    assert "small packets get through to a:1, and large ones do not" in black_hole("a", 1)
    ways(monkeypatch, True, False, True)
    assert "small packets come from a:1, and large ones do not" in black_hole("a", 1)
    for whole, small in ((True, True), (False, False)):  # well, or slow, or something else there
        ways(monkeypatch, True, whole, small)
        assert black_hole("a", 1) == ""
    monkeypatch.undo()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert black_hole("127.0.0.1", closed.getsockname()[1]) == ""


def test_a_handshake_that_stands_still_is_looked_into(monkeypatch, listening):
    monkeypatch.setattr(identity, "black_hole", lambda host, port: "small packets come, and large ones do not")
    with pytest.raises(Unreachable, match="large ones do not") as caught:
        identity.pinned_certificate("127.0.0.1", listening, b"", 0.2)
    assert "mtu 1280" in caught.value.hint


def run(*words, **more):
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


@pytest.mark.wan
def test_a_real_black_hole():
    """Two network namespaces and a bridge between them whose one side takes 900 bytes and tells nobody."""
    here, way, there = names = [f"farflung-{os.getpid()}-{letter}" for letter in "abc"]
    code = "import sys; from farflung.node.device.large_packets import black_hole; print(black_hole(sys.argv[1], 7070))"
    serve = (
        "import socket\n"
        "server = socket.create_server(('10.99.0.2', 7070))\n"
        "print('up', flush=True)\n"
        "held = []\n"
        "while True: held.append(server.accept())"
    )
    try:
        for name in names:
            run("ip", "netns", "add", name)
        for end, inner, name, address in (("ea", "wa", here, "10.99.0.1/24"), ("eb", "wb", there, "10.99.0.2/24")):
            run("ip", "-n", name, "link", "add", end, "type", "veth", "peer", "name", inner)
            run("ip", "-n", name, "link", "set", inner, "netns", way)
            run("ip", "-n", name, "addr", "add", address, "dev", end)
            run("ip", "-n", name, "link", "set", end, "gso_max_segs", "1")
            run("ip", "-n", name, "link", "set", end, "up")
        run("ip", "-n", way, "link", "add", "bridge0", "type", "bridge")
        for inner in ("wa", "wb"):
            run("ip", "-n", way, "link", "set", inner, "master", "bridge0")
            run("ip", "-n", way, "link", "set", inner, "up")
        run("ip", "-n", way, "link", "set", "wb", "mtu", "900")
        run("ip", "-n", way, "link", "set", "bridge0", "up")
        words = ("ip", "netns", "exec", there, sys.executable, "-c", serve)
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None and server.stdout.readline() == "up\n"
            found = run("ip", "netns", "exec", here, sys.executable, "-c", code, "10.99.0.2")
            server.kill()
        assert "large ones do not" in found
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
