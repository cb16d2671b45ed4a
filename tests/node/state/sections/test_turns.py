"""Parts that pass through a device: whatever its lanes do first, none is read too early or overwritten too soon."""

import random

from hypothesis import given
from hypothesis import strategies as st

from farflung.node.state.sections.turns import COMPUTE, FETCH, STORE, turns


@given(parts=st.integers(0, 12), slots=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_whatever_goes_first_each_part_is_computed_once_and_goes_back(parts, slots, seed):
    """Each lane does its turns in order; which lane begins or ends something next is chance."""
    chance, order = random.Random(seed), list(turns(parts, slots))
    waiting = {do: [turn for turn in order if turn.do == do] for do in (FETCH, COMPUTE, STORE)}
    under_way, done, slot = {}, set(), {}
    while any(waiting.values()) or under_way:
        can = [("end", do) for do in under_way]
        can += [
            ("begin", do) for do, todo in waiting.items() if todo and do not in under_way and done >= set(todo[0].after)
        ]
        assert can, "the lanes wait for one another for ever"
        what, do = chance.choice(can)
        if what == "begin":
            turn = under_way[do] = waiting[do].pop(0)
            assert [one.slot for one in under_way.values()].count(turn.slot) == 1, "two use one slot at a time"
            holds = {FETCH: (None,), COMPUTE: ((turn.part, FETCH),), STORE: ((turn.part, COMPUTE),)}[do]
            assert slot.get(turn.slot) in holds, "what is there is not what it needs"
        else:
            turn = under_way.pop(do)
            done.add((do, turn.part))
            slot[turn.slot] = None if do == STORE else (turn.part, do)
    assert done == {(do, part) for do in (FETCH, COMPUTE, STORE) for part in range(parts)}


def test_the_next_part_comes_and_the_last_one_goes_while_one_is_computed():
    order = [(turn.do, turn.part, turn.slot) for turn in turns(4)]
    assert order == [
        (FETCH, 0, 0), (FETCH, 1, 1), (COMPUTE, 0, 0), (STORE, 0, 0),
        (FETCH, 2, 0), (COMPUTE, 1, 1), (STORE, 1, 1),
        (FETCH, 3, 1), (COMPUTE, 2, 0), (STORE, 2, 0),
        (COMPUTE, 3, 1), (STORE, 3, 1),
    ]  # fmt: skip
    free = {turn.part: turn.after for turn in turns(4) if turn.do == FETCH}
    assert free == {0: (), 1: (), 2: ((STORE, 0),), 3: ((STORE, 1),)}


def test_with_one_slot_nothing_is_there_beside_it():
    assert [turn.do for turn in turns(2, 1)] == [FETCH, COMPUTE, STORE] * 2
