"""Who is put out for what its contributions do: the table of judges' words (coordinator/membership/judged.py)."""

import random

from hypothesis import given
from hypothesis import strategies as st

from farflung.coordinator.membership.faults.judged import ENOUGH, FINE, LIMIT, LOOK_ROUNDS, Judged, value_of

NAMES = tuple("abcdefgh")
GOOD, BAD = (1.0, 0.1), (-1.0, -0.8)


def play(table, liars, useless, rounds=100, spares=(), says=None, seed=0, share=0.1):
    """A run of so many rounds, in which honest judges see what is so: who is out, whom all looked at, by the round."""
    chance, members, out, looks, looked = random.Random(seed), list(NAMES), {}, [], {}
    for number in range(1, rounds + 1):
        for by in (*members, *spares):
            if by in spares or by in looked or chance.random() < share or any(looked.values()):
                seen = {}
                for name in members:
                    if name != by:
                        own = chance.gauss(0.0 if name in useless else 1.0, 0.25)
                        held = chance.gauss(-0.3 if name in useless else 0.0, 0.25)
                        seen[name] = (own, held)
                        if by in liars:
                            seen[name] = says(chance, name) if says else (BAD if name not in liars else GOOD)
                for finding in table.count(by, tuple(members), (1, number), number, seen) or ():
                    if finding.out:
                        out[finding.out] = number
                        members.remove(finding.out)
                        assert "of no use" in finding.why
                    else:
                        looks.append(finding.look)
                        looked = {finding.look: LOOK_ROUNDS}
        looked = {name: left - 1 for name, left in looked.items() if left > 1 and name in members}
    return out, looks


def test_useless_members_are_out_and_the_others_stay():
    for seed in range(20):
        table = Judged()
        out, _ = play(table, liars="fgh", useless="fgh", seed=seed)
        assert set(out) == set("fgh"), (seed, out)


def test_nobody_is_out_where_all_are_honest():
    for seed in range(20):
        assert play(Judged(), liars="", useless="", seed=seed)[0] == {}


def test_three_of_eight_that_lie_put_nobody_out_and_are_soon_not_heard():
    for seed in range(20):
        table = Judged()
        out, looks = play(table, liars="fgh", useless="", seed=seed, says=lambda chance, name: BAD)
        assert out == {}, (seed, out)
        assert len(looks) <= 12


def test_spares_make_the_members_look_and_have_no_vote():
    for seed in range(5):
        spares = tuple(f"s{i}" for i in range(20))
        out, looks = play(Judged(), liars=spares, useless="", spares=spares, seed=seed, share=0.02)
        assert out == {} and 1 <= len(looks) <= 100 // LOOK_ROUNDS + 1
        out, looks = play(Judged(), liars="", useless="h", spares=("s",), seed=seed, share=0.0)
        assert set(out) == {"h"} and out["h"] <= 60 and set(looks) == {"h"}


def say(table, now, name, score, judges="abcdefg"):
    found = []
    for by in judges:
        found += table.count(by, NAMES, (1, now), now, {name: (score, 0.0)}) or ()
    return found


def looks_at(table, name, score, rounds):
    return [now for now in rounds for one in say(table, now, name, score, "ab") if one.look]


def test_a_look_that_found_too_little_to_be_sure_goes_on_at_once():
    """Where scores tell little: what is usual is 0.7, and the members' word is 0.05."""
    table = Judged()
    for now in range(1, 40):
        for other in "abcdefg":
            say(table, now, other, 0.7)
    began = [now for now in range(41, 80) for one in say(table, now, "h", 0.05) if one.look]
    assert len(began) >= 2 and began[1] - began[0] <= LOOK_ROUNDS + 6, began


def test_a_look_keeps_nobody_from_being_looked_at_longer_than_it_lasts_and_a_pause():
    table = Judged()
    (first,) = looks_at(table, "g", -1.0, range(1, 6))
    for now in range(6, 6 + 2 * LOOK_ROUNDS):
        say(table, now, "g", 0.9, "cdef")
    (second,) = looks_at(table, "h", -1.0, range(6 + 2 * LOOK_ROUNDS, 16 + 2 * LOOK_ROUNDS))
    assert second - first <= 3 * LOOK_ROUNDS


words = st.tuples(st.floats(-2, 2), st.floats(-2, 2))


@given(st.data())
def test_whatever_a_minority_says_an_honest_member_stays(data):
    """Honest judges say of an honest member what is fine; the others say anything, of any round, at any time."""
    count = data.draw(st.integers(4, 9))
    names = NAMES[:count] if count <= 8 else (*NAMES, "i")
    liars = names[: (count - 1) // 2]
    table, now = Judged(), 0
    for _ in range(data.draw(st.integers(0, 40))):
        by = data.draw(st.sampled_from((*names, "spare")))
        lies = by in liars or by == "spare"
        number = data.draw(st.integers(0, 2**62)) if lies else now
        said = {name: data.draw(words) if lies or name in liars else (1.0, 0.0) for name in names}
        for finding in table.count(by, names, (1, number), now, said) or ():
            assert finding.out not in set(names) - set(liars)
        now += data.draw(st.integers(0, 3))


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_a_score_is_from_minus_two_to_one(own, held):
    assert -2 <= value_of(own, held) <= 1
    assert value_of(own, held) <= value_of(own + 1, held)


def test_a_word_needs_enough_scores_of_ones_own():
    """Four of seven are a majority, once each has so many."""
    table, out = Judged(), []
    for number in range(1, 4 * ENOUGH):
        for by in NAMES[:4]:
            out += [(number, one) for one in table.count(by, NAMES, (1, number), number, {"h": BAD}) or () if one.out]
        if out:
            break
    ((number, finding),) = out
    assert finding.out == "h" and number == ENOUGH
    assert "4 of 7 members find what it sends of no use" in finding.why


def test_a_judge_is_heard_once_of_a_round_and_never_of_itself():
    table = Judged()
    assert table.count("a", NAMES, (1, 5), 5, {"a": BAD, "b": GOOD}) == []
    assert table.score("a") is None and table.score("b") == 1.0
    assert table.count("a", NAMES, (1, 5), 5, {"b": BAD}) is None
    assert table.count("a", NAMES, (1, 4), 5, {"b": BAD}) is None
    assert LIMIT < FINE < 1


def test_a_look_goes_on_in_the_view_that_replaces_the_one_it_began_in():
    """Those who judge there have not heard of it: a view ends with the very round that puts another one out."""
    table, looks = Judged(), []
    for number in range(1, 9):
        looks += [one.look for one in table.count("ab"[number % 2], NAMES, (1, number), number, {"h": BAD})]
    assert looks == ["h"]
    (again,) = table.count("c", NAMES, (2, 9), 9, {"d": GOOD})
    assert again.look == "h" and again.why == "the members go on to look at h in view 2"
    assert table.count("d", NAMES, (2, 9), 9, {"c": GOOD}) == []
    assert Judged().count("c", NAMES, (2, 9), 9, {"d": GOOD}) == []
    assert table.count("e", NAMES[:7], (3, 10), 10, {"d": GOOD}) == [], "it is out"
