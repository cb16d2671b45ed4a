"""A spare that cannot keep up says what its link would have to carry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.node.training.following.pace import Pace, rate_needed

WHOLE = st.integers(1, 10**12)


@given(st.floats(1.0, 1e10), WHOLE, WHOLE)
def test_over_such_a_link_the_rounds_that_wait_fit(rounds_bps, snapshot, room):
    rate = rate_needed(rounds_bps, snapshot, room)
    left = rate - rounds_bps
    assert left >= 0 and rounds_bps * snapshot <= room * left * (1 + 1e-6) + 1e-6 * rounds_bps * room
    assert rate_needed(rounds_bps, 0, room) == rounds_bps, "it has the snapshot: the rounds have to come, no more"


def follower(rounds, made, seconds, size=1_000_000):
    now = [0.0]
    pace = Pace(lambda: now[0])
    pace.made(7)
    for _ in range(rounds):
        pace.came(size)
    pace.made(7 + made)
    now[0] = seconds
    return pace


def test_the_sentence_has_what_came_what_is_made_and_what_it_takes():
    pace = follower(rounds=5, made=20, seconds=10.0)
    assert pace.told(10_000_000, 2_000_000, 20_000_000) == (
        "its link carried 5.6 Mbit/s, and the rounds as they are made take 16 Mbit/s: "
        "to keep up beside what it has to fetch first it would need 24 Mbit/s"
    )
    assert pace.told(0, 10_000_000, 20_000_000).endswith("take 16 Mbit/s: to keep up it would need 16 Mbit/s")


@pytest.mark.parametrize(("rounds", "made"), [(0, 9), (0, 0), (1, 0)])
def test_where_nothing_came_it_says_that(rounds, made):
    said = follower(rounds, made, 30.0).told(1, 0, 1)
    assert said == f"{made} rounds were made in 30 s, and its link carried {rounds} of them"
