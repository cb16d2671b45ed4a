"""What training shows of the links: only what filled them counts, and a shared line is told as such."""

import socket
import sys
import time
from collections import Counter

import numpy as np
import pytest
from numbered import numbered
from stub_coordinator import StubCoordinator
from wires import accepted, receive

from farflung.node.peers.link_watch import TICK_SECONDS, Filled, LinkWatch
from farflung.node.peers.tcp_info import TcpFigures, connected_to
from farflung.proto.control_pb2 import Report, StepDone
from farflung.proto.data_pb2 import Kind

MBIT = 1_000_000 / 8


class Kernel:
    """Its totals of one link with one connection."""

    def __init__(self, rtt=0.05, least_rtt=None):
        self.totals = TcpFigures(connections=1, rtt_s=rtt, least_rtt_s=least_rtt or rtt)

    def second(self, mbit, busy=1.0, held_up=0.0, resent=0, arrives=0.0):
        now = self.totals
        self.totals = TcpFigures(
            busy_s=now.busy_s + busy,
            longest_busy_s=now.longest_busy_s + busy,
            held_up_s=now.held_up_s + held_up,
            sent=now.sent + int(mbit * MBIT) + resent,
            resent=now.resent + resent,
            rtt_s=now.rtt_s,
            least_rtt_s=now.least_rtt_s,
            connections=1,
            busiest_bps=arrives * 1e6,
        )


def watched(links, seconds, *changes, arrived=()):
    """What was seen after so many seconds in which each link did as its change says."""
    watch, came = LinkWatch(), Counter()
    watch.tick(0.0, {name: one.totals for name, one in links.items()}, came)
    for second in range(seconds):
        for one, change in zip(links.values(), changes, strict=True):
            one.second(**change)
        came.update(dict(arrived))
        watch.tick(second + 1.0, {name: one.totals for name, one in links.items()}, came)
    return watch.take()


def test_a_full_link_is_as_fast_as_what_it_carries():
    assert watched({"b": Kernel()}, 5, {"mbit": 20, "resent": 1000}) == {"b": Filled(20e6, 1.0)}


@pytest.mark.parametrize(
    "change",
    [
        {"mbit": 20, "busy": 0.5},
        {"mbit": 20, "held_up": 0.5},
    ],
    ids=["paused", "socket buffers"],
)
def test_what_does_not_fill_a_link_says_nothing(change):
    assert watched({"b": Kernel()}, 9, change) == {}


def test_too_little_to_send_is_no_slow_link():
    assert watched({"b": Kernel()}, 5, {"mbit": 20, "arrives": 80.0}) == {"b": Filled(20e6, 4.0)}


def test_windows_open_before_anything_counts():
    assert watched({"b": Kernel(rtt=0.3)}, 3, {"mbit": 5}) == {}
    assert watched({"b": Kernel(rtt=0.3)}, 4, {"mbit": 5}) == {"b": Filled(5e6, 1.0)}


def test_a_window_opens_slowly_where_acknowledgements_queue():
    assert watched({"b": Kernel(rtt=0.3, least_rtt=0.01)}, 3, {"mbit": 5}) == {}


def test_both_ends_say_what_else_went_by_their_lines():
    links = {"b": Kernel(), "c": Kernel()}
    seen = watched(links, 5, {"mbit": 20}, {"mbit": 60, "busy": 0.3}, arrived={"b": 100_000, "c": 300_000}.items())
    assert seen == {"b": Filled(20e6, 4.0, 4.0), "c": Filled(arrived_beside=4 / 3)}


def test_new_connections_have_other_totals():
    watch, link = LinkWatch(), Kernel()
    for second in range(4):
        link.second(20)
        totals = link.totals if second < 3 else TcpFigures(connections=2, sent=10**9, longest_busy_s=9.0)
        watch.tick(second + 1.0, {"b": totals}, {})
    assert watch.take() == {"b": Filled(20e6, 1.0)} and watch.take() == {}


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's figures are Linux'")
@pytest.mark.parametrize("opener", ["a", "b"])
def test_a_real_connection_is_measured_by_what_goes_over_it(thread_nodes, opener):
    """The kernel lets 16 Mbit/s through; what the report of a step says of it has two ends."""
    rate = 16 * MBIT
    coordinator = StubCoordinator()
    try:
        a = thread_nodes.start("a", coordinator=coordinator.address)
        b = thread_nodes.start("b", coordinator=coordinator.address, dials_out=opener == "b")
        members = thread_nodes.members()
        members[1].dials_out = opener == "b"
        for wire in (a, b):
            wire.enter(1, members)
        a.send("b", numbered(Kind.STATE), bytes(100_000))  # opens the connection for bulk
        receive(b)
        payload = np.zeros(3_000_000, np.uint8)
        said, paced, steady = {}, set(), 0
        deadline = time.monotonic() + 120
        while len(said) < 2 and time.monotonic() < deadline:
            before, paced = paced, set()
            for one in connected_to({("127.0.0.1", b.port)}):
                one.setsockopt(socket.SOL_SOCKET, 47, int(rate))  # SO_MAX_PACING_RATE
                paced.add(one.getsockname())
                one.close()
            with accepted(a.port) as connections:
                for one in connections.values():
                    one.setsockopt(socket.SOL_SOCKET, 47, int(rate))
                    paced.add(one.getpeername())
            steady = steady + 1 if paced == before else 0  # bulk opens further connections, unpaced until here
            coordinator.reports.clear()
            for _ in range(2):
                a.send("b", numbered(Kind.STATE), payload)
            receive(b, 2, 60)
            for wire in (a, b):
                wire.report(Report(step=StepDone(view=1)))
            time.sleep(2 * TICK_SECONDS)
            for report in list(coordinator.reports) if steady > 1 else ():
                for one in report.step.sent:
                    if one.rate_bps or one.arrived_beside:
                        said["out" if one.peer == "b" else "in"] = one
        assert 0.5 * 8 * rate < said["out"].rate_bps < 1.5 * 8 * rate and said["out"].beside >= 1.0
        assert said["in"].arrived_beside == 1.0
    finally:
        thread_nodes.close()
        coordinator.close()
