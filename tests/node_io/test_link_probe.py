"""The measured bandwidth of links that are slow, or stop carrying anything."""

import contextlib

import pytest
from cable import Cable


@contextlib.contextmanager
def through_a_cable(nodes, **settings):
    a, b = nodes.start("a", **settings), nodes.start("b")
    with contextlib.closing(Cable(f"127.0.0.1:{b.port}")) as cable:
        (peer,) = nodes.members("b")
        peer.address = cable.address
        yield a, peer, cable
        nodes.close()


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
