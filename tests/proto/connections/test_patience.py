"""Waiting by progress, with a made-up clock: a slow transfer is never cut off, one that stands still is."""

import pytest

from farflung.proto.connections import rpc
from farflung.proto.connections.patience import TRIPS, Watch, patience


def test_while_bytes_arrive_it_waits_however_long_it_takes():
    watch = Watch("the last checkpoint", since=0.0, patience_s=120.0)
    for second in range(1, 24 * 3600, 60):
        watch = watch.at(second * 6_250_000, second)
        assert not watch.gives_up(second + 59)
    assert watch.gives_up(watch.since + 121) == "the last checkpoint: nothing has moved for 121 s"


def test_a_mark_that_stays_is_no_movement_and_one_that_falls_is():
    watch = Watch("a fetch", since=0.0, patience_s=10.0, mark=7)
    assert watch.at(7, 9.0) is watch and watch.at(7, 11.0).gives_up(11.0)
    assert not watch.at(3, 9.0).gives_up(18.0), "a node that has started again begins to count anew"


@pytest.mark.parametrize(
    ("round_trip", "rate", "seconds"),
    [(0.0, 0.0, 60.0), (0.0, 1e9, 60.0), (2.0, 1e9, 70.0), (0.0, 1e5, 10 * 8 * 2**20 / 1e5)],
)
def test_the_patience_of_a_link_is_its_own(round_trip, rate, seconds):
    assert patience(60.0, round_trip, rate) == pytest.approx(seconds)


def test_a_far_channel_has_the_patience_of_its_round_trip():
    near, far = (dict(rpc.channel_options(round_trip_s=trip)) for trip in (0.0, 2.0))
    for name, seconds in (
        ("grpc.keepalive_timeout_ms", rpc.SILENCE_S),
        ("grpc.http2.ping_timeout_ms", rpc.SILENCE_S),
        ("grpc.min_reconnect_backoff_ms", rpc.CONNECT_S),
    ):
        assert near[name] == 1e3 * seconds and far[name] == 1e3 * (seconds + TRIPS * 2.0)
    handshake = dict(rpc.server_options())["grpc.server_handshake_timeout_ms"]
    assert handshake >= 1e3 * TRIPS * 2.0, "whoever calls may be far"
