"""The rate that a burst of messages finds on a link: simulated, with TCP's slow start, at all rates and round trips."""

import heapq

import pytest

from farflung.node.io.burst import IN_FLIGHT, MESSAGE, Burst

LIMIT = 16 << 20


def burst_on(rate: float, trip: float, stalls: tuple[float, ...] = ()) -> tuple[Burst, float, float]:
    """A burst on a new connection of ``rate`` bit/s and ``trip`` seconds; the burst, its end, and its longest queue in
    seconds. TCP begins with ten segments and doubles each round trip, up to two and a half times what the link holds.
    At each of ``stalls`` a packet is lost: nothing is acknowledged for a round trip, and then all at once."""
    burst = Burst(0.0, trip, 5.0, LIMIT)
    now, free, unsent, flying, queue = 0.0, 0.0, 0, 0, 0.0
    segment = 1448 if rate < 200e6 else 14480  # of a fast link ten at once, for the test's own speed
    congestion, most = 14480.0, 2.5 * rate / 8 * trip + 64 * 1448
    came, there = 0.0, 0
    arrivals: list[tuple[float, float]] = []  # (when its acknowledgement is back, bytes)
    acks: list[tuple[float, int]] = []
    while True:
        while burst.may_send(now):
            burst.sent += 1
            unsent += MESSAGE
        while unsent > 0 and flying + segment <= congestion:
            free = max(free, now) + 8 * segment / rate
            heapq.heappush(arrivals, (free + trip, segment))
            unsent, flying = unsent - segment, flying + segment
            queue = max(queue, free - now)
        if not arrivals and not acks:
            return burst, now, queue
        if not acks or (arrivals and arrivals[0][0] <= acks[0][0]):
            now, size = heapq.heappop(arrivals)
            flying -= int(size)
            congestion = min(congestion + size, most)
            came += size
            while came >= (there + 1) * MESSAGE or (not arrivals and unsent <= 0 and there < burst.sent):
                there += 1
                late = max((at + trip for at in stalls if at <= now < at + trip), default=now)
                heapq.heappush(acks, (late, 1))
        else:
            now, count = heapq.heappop(acks)
            while acks and acks[0][0] <= now:
                count += heapq.heappop(acks)[1]
            burst.acknowledge(now, count)


@pytest.mark.parametrize("trip", [0.01, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("rate", [5e6, 38e6, 100e6, 300e6, 1e9])
def test_the_rate_is_right_within_a_fifth(rate, trip):
    burst, end, _ = burst_on(rate, trip)
    assert burst.bandwidth() == pytest.approx(rate, rel=0.2)
    assert burst.sent <= IN_FLIGHT * 8 and end < 3 + 20 * trip


@pytest.mark.parametrize("stalls", [(1.0,), (2.4, 3.2), (3.4,), (2.0, 2.7, 3.4, 4.1)])
@pytest.mark.parametrize("rate", [20e6, 100e6])
def test_lost_packets_move_what_arrives_and_not_the_rate(rate, stalls):
    burst, _, _ = burst_on(rate, 0.3, stalls)
    assert burst.bandwidth() == pytest.approx(rate, rel=0.2)


@pytest.mark.parametrize(("rate", "trip", "longest"), [(10e6, 0.02, 0.5), (1e6, 0.3, 2.5), (1e9, 0.06, 0.12)])
def test_a_link_is_not_filled_for_seconds(rate, trip, longest):
    _, _, queue = burst_on(rate, trip)
    assert queue < longest


def test_a_link_that_hardly_carries_anything_ends_by_the_clock():
    burst = Burst(0.0, 0.1, 5.0, LIMIT)
    burst.sent = 2
    burst.acknowledge(2.6, 1)
    assert not burst.over(4.9) and burst.over(5.0)
    assert burst.bandwidth() == pytest.approx(8 * MESSAGE / 2.6)


def test_what_came_at_once_counts_from_the_beginning_of_the_burst():
    burst = Burst(10.0, 0.001, 5.0, LIMIT)
    assert burst.bandwidth() == 0
    burst.acknowledge(10.5, 3)
    assert burst.bandwidth() == pytest.approx(8 * MESSAGE * 3 / 0.5)


def test_a_rate_that_never_stops_growing_ends_too():
    burst, now, count = Burst(0.0, 0.1, 5.0, LIMIT), 0.0, 4
    while not burst.over(now):
        now += 0.1
        burst.sent += count
        burst.acknowledge(now, count)
        count += count // 3 + 1
    assert burst.sent * MESSAGE >= LIMIT and now < 10


def test_the_seconds_in_which_tcp_recovers_from_filling_the_queue_do_not_hide_the_rate():
    """As seen at 38 Mbit/s and 240 ms: a third less for seconds after the link was full for the first time."""
    burst = Burst(0.0, 0.242, 5.0, LIMIT)
    for when, mbit in [(0.89, 11.3), (1.15, 24.5), (1.4, 36), (2.13, 5.7), (2.42, 80.4), (2.89, 11.1), (3.14, 54.0)]:
        before = burst.ends[-1][0] if burst.ends else 0.62
        count = round(mbit * 1e6 * (when - before) / 8 / MESSAGE)
        burst.acknowledge(before, 0) if not burst.ends else None
        burst.acknowledge(when, count)
    assert burst.bandwidth() == pytest.approx(36e6, rel=0.2)
