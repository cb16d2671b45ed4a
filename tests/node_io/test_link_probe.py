"""The measured bandwidth of links that are slow, or stop carrying anything."""

import contextlib

import pytest
from cable import Cable

from farflung.node.io.link_probe import BURST_MESSAGE, IN_FLIGHT, bandwidth, window


@contextlib.contextmanager
def through_a_cable(nodes, **settings):
    a, b = nodes.start("a", **settings), nodes.start("b")
    with contextlib.closing(Cable(f"127.0.0.1:{b.port}")) as cable:
        (peer,) = nodes.members("b")
        peer.address = cable.address
        yield a, peer, cable
        nodes.close()


def test_the_rate_is_that_of_the_second_half():
    slow_start = [(11.0, 1), (12.0, 1), (14.0, 2), (15.0, 2), (16.0, 2), (17.0, 2)]
    # From 11 to 17, so what came after 14: six messages in three seconds.
    assert bandwidth(10.0, slow_start) == pytest.approx(8 * BURST_MESSAGE * 6 / 3.0)


def test_what_came_at_once_counts_from_the_beginning_of_the_burst():
    assert bandwidth(10.0, [(10.5, 3)]) == pytest.approx(8 * BURST_MESSAGE * 3 / 0.5)
    assert bandwidth(10.0, [(10.5, 3), (10.5, 1)]) == pytest.approx(8 * BURST_MESSAGE * 4 / 0.5)
    assert bandwidth(10.0, []) == 0


@pytest.mark.parametrize(("rate", "trip", "longest_queue"), [(10e6, 0.02, 0.3), (1e6, 0.3, 2.2), (1e9, 0.06, 0.08)])
def test_a_burst_finds_the_rate_without_filling_the_link(rate, trip, longest_queue):
    """A link that carries one message after the other at ``rate`` and delivers each ``trip`` later."""
    now, free, sent, acknowledged, arrived = 0.0, 0.0, 0, [], []
    while now < 2.0:
        while sent - len(arrived) < window(arrived, now, trip):
            free = max(free, now) + 8 * BURST_MESSAGE / rate
            acknowledged.append(free + trip)
            sent += 1
        now = acknowledged[len(arrived)]
        arrived.append((now, 1))
        assert free - now < longest_queue and sent - len(arrived) <= IN_FLIGHT
    assert bandwidth(0.0, arrived) == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize(("rate", "patience"), [(5e6, 5.0), (5e6, 0.5), (5e5, 2.0)])
def test_a_slow_link_is_slow_and_not_missing(thread_nodes, rate, patience):
    with through_a_cable(thread_nodes, probe_patience=patience) as (a, peer, cable):
        cable.rate = rate / 8
        (link,) = a.measure([peer]).links
        # Without the cable it is a thousand times that; how near the rate depends on how busy the machine is.
        assert 0 < link.bandwidth_bps < 4 * rate and link.latency_s > 0


def test_what_arrived_before_a_link_went_silent_counts(thread_nodes):
    with through_a_cable(thread_nodes, probe_patience=1.0) as (a, peer, cable):
        cable.rate, cable.frozen_at = 20e6 / 8, 500_000
        (link,) = a.measure([peer]).links
        cable.frozen = False
        assert 0 < link.bandwidth_bps < 4 * 20e6


def test_a_link_that_carries_nothing_has_no_bandwidth(thread_nodes):
    with through_a_cable(thread_nodes, probe_patience=1.0) as (a, peer, cable):
        cable.frozen_at = 10
        (link,) = a.measure([peer]).links
        cable.frozen = False
        assert link.bandwidth_bps == 0 and link.latency_s == 0
