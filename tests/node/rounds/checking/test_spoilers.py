"""Who drops the group's steps by gradients that are not finite, step after step, is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.node.rounds.checking.spoilers import PATIENCE, RELIEF, Spoilers
from farflung.node.rounds.protocol.messages import Contribution

FINITE, EMPTY = Contribution((b"x",), (1,), 1), Contribution((), (), 0)


def offered(*empty, members=3):
    return [(index, EMPTY if index in empty else FINITE) for index in range(members)]


def test_after_so_many_in_a_row():
    spoilers = Spoilers(0)
    found = [spoilers.found(round, offered(2)) for round in range(1, PATIENCE + 3)]
    assert found == [[]] * PATIENCE + [[2]] * 2


def test_a_round_counts_once_whatever_the_parts():
    spoilers = Spoilers(0)
    for round in range(1, PATIENCE + 1):
        assert [spoilers.found(round, offered(2)) for _ in range(3)] == [[]] * 3
    assert [spoilers.found(PATIENCE + 1, offered(2)) for _ in range(3)] == [[2], [], []]


@pytest.mark.parametrize("empty", [(0, 1, 2), (0,)], ids=["everybody's", "its own"])
def test_what_is_nobodys_fault(empty):
    """A loss scale that is too large for all; and nobody accuses itself."""
    spoilers = Spoilers(0)
    assert not any(spoilers.found(round, offered(*empty)) for round in range(1, 100))


@given(every=st.integers(1, 60))
def test_who_spoils_now_and_then_is_named_if_it_is_often(every):
    """The n-th time that one spoils a round, with ``every`` - 1 sound ones between: named when it counts too much."""
    spoilers, grows = Spoilers(0), 1 - RELIEF * (every - 1)  # what a cycle adds
    times = 1 + int((PATIENCE - 1) / grows) + 1 if grows > 0 else 1000 // every
    named = [
        round
        for round in range(1, times * every + 1)
        if spoilers.found(round, offered(*([1] if round % every == 0 else [])))
    ]
    assert named == ([times * every] if every < 1 / RELIEF + 1 else [])


@given(spoilt=st.lists(st.sets(st.integers(0, 3)), max_size=200))
def test_only_who_spoils_a_round_now_and_too_many_before_is_named(spoilt):
    spoilers = Spoilers(0)
    for round, empty in enumerate(spoilt, 1):
        named = spoilers.found(round, offered(*empty, members=4))
        before = [one for one in spoilt[:round] if len(one) < 4]
        assert set(named) <= empty - {0}
        assert all(sum(index in one for one in before) > PATIENCE for index in named)
        assert not named or len(empty) < 4
