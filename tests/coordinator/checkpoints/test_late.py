"""People hear when no checkpoint gets complete while the run trains, and of whom a part is missing."""

import math

import pytest

from farflung.coordinator.checkpoints.late import Late, late_in_all
from farflung.coordinator.membership.faults.keepers import upload_s
from farflung.coordinator.membership.rules import Rules


def said(late, newest, due, names, until, longest=1200.0, since=0):
    """(when, sentence) of all that is said, looking every ten seconds."""
    found = ((now, late.at(newest, due, lambda: names, lambda who: longest, now)) for now in range(since, until, 10))
    return [(now, why) for now, why in found if why]


def test_it_is_said_once_and_again_only_for_another_checkpoint():
    late = Late()
    [(when, why)] = said(late, 100, 200, ("b",), 5000)
    assert when == 1210 and why == (
        "no checkpoint has become complete for 20 min, the newest is of step 100: the part has not come from b; "
        "`farflung coordinator drain` gives another node its place"
    )
    assert not said(late, 200, 200, ("b",), 9000, since=5000), "it is complete, and none is due"
    [(when, why)] = said(late, 200, 300, ("b", "c"), 12000, since=9000)
    assert when == 10210 and "the parts have not come from b and c" in why


def test_nothing_is_said_while_none_is_due_or_parts_come():
    assert not said(Late(), 100, 100, ("b",), 9000)
    assert not said(Late(), 100, 200, (), 9000)
    late = Late()
    assert not said(late, 100, 200, ("b",), 1200) and not said(late, 200, 300, ("b",), 2400, since=1200)
    assert not said(Late(), 100, 200, ("b",), 90000, longest=math.inf)


def test_who_has_sent_one_of_them_is_not_late():
    whose = {200: ("a", "b"), 300: ("b", "c")}
    assert late_in_all([200, 300], whose.get) == ("b",) and late_in_all([], whose.get) == ()


@pytest.mark.parametrize(
    ("rates", "seconds"), [({}, 3200.0), ({"a": 1e9}, 1200.0), ({"a": 1e9, "b": 1e7}, 3200.0), ({"b": 1.0}, 3200.0)]
)
def test_how_long_a_part_may_take(rates, seconds):
    sizes = {"mode": "delta", "batch": 8, "microbatch": 1, "seed": 0, "samples": 8, "layers": 4}
    rules = Rules(**sizes, layer_bytes=(1e8,) * 4)
    assert upload_s(rules, ("a", "b"), lambda name: rates.get(name, 0.0)) == seconds
    assert upload_s(Rules(**sizes), ("a",), lambda name: 1.0) == math.inf, "nobody knows its size"
