"""The trainer as a process of its own that is interrupted or killed: what the coordinator and the machine see."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stub_coordinator import StubCoordinator

from farflung.node.ipc.config import WireConfig
from farflung.node.ipc.pipe import IoEnded
from farflung.node.rejoin import CRASHES_SECONDS, Crashes
from farflung.node.wire.client import ProcessWire

TRAINER = """
import sys
from farflung.node.ipc.config import WireConfig
from farflung.node.wire.client import ProcessWire
from farflung.proto.control_pb2 import Member
from farflung.proto.data_pb2 import Header, Kind

wire = ProcessWire.start(WireConfig("run", "a", "a-1", coordinator=sys.argv[1], listen="127.0.0.1:0"))
why = "done"
try:
    print(wire._host.pid, flush=True)  # from here on it may be interrupted
    wire.enter(1, [Member(name="a", session="a-1"), Member(name="b", session="b-1", address="127.0.0.1:9")])
    for _ in range(10**9):  # busy on the pipe when the signal comes
        wire.send("b", Header(kind=Kind.PROBE), bytes(60_000))
        wire.poll()
        if _ % 200 == 0:
            wire.leave_view()
            wire.enter(1, [Member(name="a", session="a-1"), Member(name="b", session="b-1", address="127.0.0.1:9")])
except KeyboardInterrupt:
    why = "interrupted"
finally:
    wire.close(why)
sys.exit(130)
"""


@contextlib.contextmanager
def trainer(coordinator):
    command = [sys.executable, "-W", "error", "-c", TRAINER, coordinator.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield process, int(process.stdout.readline())
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def ended(pid, timeout=60.0):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("after", [0.05, 0.3])
def test_control_c_says_goodbye(after):
    """The terminal sends SIGINT to both processes; the trainer may be in the middle of a write."""
    with contextlib.closing(StubCoordinator()) as coordinator, trainer(coordinator) as (process, io_process):
        coordinator.wait("hello")
        time.sleep(after)
        os.killpg(process.pid, signal.SIGINT)
        assert coordinator.wait("goodbye")[0].why == "interrupted"
        assert process.wait(60) == 130
        assert process.stderr.read() == b""
        assert ended(io_process)


def test_a_killed_trainer_takes_its_io_process_along():
    with contextlib.closing(StubCoordinator()) as coordinator, trainer(coordinator) as (process, io_process):
        coordinator.wait("hello")
        process.kill()
        assert ended(io_process)
        assert "goodbye" not in coordinator.kinds()


def test_a_killed_io_process_takes_its_trainer_along():
    with contextlib.closing(StubCoordinator()) as coordinator, trainer(coordinator) as (process, io_process):
        coordinator.wait("hello")
        os.kill(io_process, signal.SIGKILL)
        assert process.wait(60) == 1  # an exception that nobody caught
        assert b"the node's I/O process was ended by SIGKILL" in process.stderr.read()


def test_an_io_process_that_crashes_too_often_ends_the_node():
    now = [0.0]
    crashes = Crashes(lambda: now[0])
    assert [crashes.again() for _ in range(4)] == [True, True, True, False]
    now[0] = 2 * CRASHES_SECONDS
    assert crashes.again()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGSEGV, "the node's I/O process was ended by SIGSEGV, a crash in native code"),
        (signal.SIGKILL, "the node's I/O process was ended by SIGKILL"),
    ],
)
def test_what_ended_the_io_process_is_named(number, words):
    wire = ProcessWire.start(WireConfig("run", "a", "a-1", listen="127.0.0.1:0"))
    os.kill(wire._host.pid, number)
    with pytest.raises(IoEnded) as caught:
        while True:
            wire.poll(1.0)
    assert caught.value.message == words
    wire.close("")
