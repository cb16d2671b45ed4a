"""The arithmetic of queues and losses."""

from __future__ import annotations

import dataclasses
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.deploy.wan import files
from farflung.deploy.wan.model import Line, Model, Pipe
from farflung.deploy.wan.topology import FRAME, Link

packets = st.lists(st.tuples(st.floats(0, 0.02), st.integers(60, FRAME), st.integers(1, 45)), min_size=1, max_size=60)


@given(packets, st.floats(1e5, 1e9), st.floats(1, 200))
def test_a_pipe_never_exceeds_its_rate_nor_its_queue(
    arrivals: list[tuple[float, int, int]], rate: float, queue_ms: float
) -> None:
    pipe = Pipe(rate, queue_ms)
    limit = max(queue_ms / 1e3, 2 * FRAME * 8 / rate)
    now = previous = 0.0
    carried = 0
    for gap, segment, count in arrivals:
        now += gap
        before = max(pipe.free, now)
        kept, left = pipe.admit(now, segment, count)
        assert 0 <= kept <= count
        carried += kept * segment
        assert left <= now + limit + 1e-9, "nothing waits longer than the queue is"
        assert left >= previous - 1e-12, "first in, first out"
        if kept:
            assert math.isclose(left, before + kept * segment * 8 / rate, rel_tol=1e-9, abs_tol=1e-12)
            previous = left
        if kept < count:  # one more would not have fitted
            assert before + (kept + 1) * segment * 8 / rate > now + limit - 1e-9
    assert carried * 8 <= rate * (pipe.free + 1e-9)


def test_an_unlimited_pipe_is_free() -> None:
    assert Pipe(None, 100).admit(3.0, 1514, 45) == (45, 3.0)


def test_two_full_packets_always_fit() -> None:
    assert Pipe(1e4, 0).admit(0.0, FRAME, 3)[0] == 2


@given(st.lists(st.floats(0, 0.01), min_size=2, max_size=80), st.floats(0, 50), st.floats(0, 200))
def test_jitter_never_reorders_and_never_travels_back(gaps: list[float], jitter: float, delay: float) -> None:
    line = Line(Link(delay_ms=delay, jitter_ms=jitter), "seed")
    now = last = 0.0
    for gap in gaps:
        now += gap
        due = line.arrival(now)
        assert due >= last and due >= now - 1e-9
        last = due


@settings(max_examples=20)
@given(st.sampled_from([0.001, 0.01, 0.05, 0.3]), st.integers(1, 45), st.integers(0, 1000))
def test_losses_hit_the_set_share_of_segments(share: float, count: int, seed: int) -> None:
    line = Line(Link(loss=share), str(seed))
    sent = lost = 0
    while sent < 40_000:
        which = line.losses(count)
        assert all(0 <= at < count for at in which) and len(set(which)) == len(which)
        sent, lost = sent + count, lost + len(which)
    assert abs(lost - share * sent) < 5.5 * math.sqrt(share * (1 - share) * sent)
    assert line.lost == lost


def test_no_loss_and_total_loss() -> None:
    assert not Line(Link(), "s").losses(10**6)
    assert list(Line(Link(loss=1.0), "s").losses(3)) == [0, 1, 2]


def test_the_same_seed_loses_the_same_packets() -> None:
    one, two = Line(Link(loss=0.1), "7/0/1"), Line(Link(loss=0.1), "7/0/1")
    assert [list(one.losses(5)) for _ in range(100)] == [list(two.losses(5)) for _ in range(100)]


def model(**tables: object) -> Model:
    return Model(files.parse({"regions": {"a": {}, "b": {}, "c": {}}, **tables}, "m", "m"))


def test_a_packet_is_delayed_by_its_own_length_and_the_link() -> None:
    line = model(defaults={"delay_ms": 25, "rate": "100mbit"})
    kept, lost, due = line.enter(0, 1, 1.0, 1514, 1)
    assert (kept, list(lost)) == (1, [])
    assert math.isclose(due, 1.0 + 1514 * 8 / 1e8 + 0.025)


def test_pairs_share_an_uplink_and_have_their_own_links() -> None:
    table = {"regions": {"a": {"uplink": "10mbit"}, "b": {}, "c": {}}, "defaults": {"rate": "100mbit"}}
    shared = model(**table)
    first = shared.enter(0, 1, 0.0, 1500, 10)[2]
    second = shared.enter(0, 2, 0.0, 1500, 10)[2]
    assert math.isclose(second - first, 10 * 1500 * 8 / 10e6, rel_tol=1e-6)
    own = model(defaults={"rate": "100mbit"})
    assert own.enter(0, 1, 0.0, 1500, 10)[2] == own.enter(0, 2, 0.0, 1500, 10)[2]


def test_senders_share_a_downlink() -> None:
    shared = model(regions={"a": {}, "b": {}, "c": {"downlink": "10mbit"}}, defaults={})
    assert math.isclose(shared.leave(2, 0.0, 1500, 10)[1], 0.012)
    assert math.isclose(shared.leave(2, 0.0, 1500, 10)[1], 0.024)


def test_a_hosts_rates_change_live_and_nothing_overtakes() -> None:
    live = model(regions={"a": {"uplink": "10mbit"}, "b": {}, "c": {}}, defaults={})
    waiting = live.enter(0, 1, 0.0, 1500, 10)[2]
    assert math.isclose(waiting, 0.012)
    live.set_host(0, None, 1e6)
    assert live.enter(0, 1, 0.001, 1500, 10)[2] >= waiting
    assert live.enter(0, 1, 1.0, 1500, 10)[2] == 1.0
    assert live.down[0].busy(1.0) and math.isclose(live.leave(0, 1.0, 1500, 5)[1], 1.06)
    live.set_host(0, None, None)
    assert live.down[0].busy(1.01) and live.leave(0, 1.01, 1500, 5)[1] >= 1.06
    assert not live.down[0].busy(2.0)


def test_a_cut_link_carries_nothing_and_a_full_queue_is_counted() -> None:
    line = model(defaults={"rate": "10mbit", "queue_ms": 10})
    line.lines[0][1].set(Link(cut=True))
    assert line.enter(0, 1, 0.0, 1500, 4)[0] == 0 and line.lines[0][1].lost == 4
    kept = line.enter(0, 2, 0.0, 1500, 45)[0]
    assert kept == int(0.010 * 10e6 / 8 / 1500) and line.lines[0][2].drops == 45 - kept


def test_changing_a_link_keeps_what_is_in_flight_in_order() -> None:
    line = Line(Link(delay_ms=100), "s")
    before = line.arrival(1.0)
    line.set(dataclasses.replace(Link(), delay_ms=1))
    assert line.arrival(1.01) >= before
