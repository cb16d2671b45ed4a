"""A measurement after the plan was asked for is news where the plan guessed wrong; old measurements count less."""

import random

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planners import measured

from farflung.coordinator.membership.questions import Question
from farflung.coordinator.planning.counted import CHANGED, Counted
from farflung.coordinator.planning.planner import Search, search
from farflung.proto.control_pb2 import Sent, StepDone
from farflung.scheduler import Device, Layer, Network, Plan, Workload
from farflung.scheduler.networks.guesses import LEAST, OLD_S, cautious, confidence_of, slowest_lines

RATES = st.sampled_from([1e6, 3e6, 1e7, 1e8, 1e9])
PAIRS = [(one, other) for one in "abcd" for other in "abcd" if one != other]
LINKS = st.dictionaries(st.sampled_from(PAIRS), RATES, max_size=8)


@given(LINKS)
def test_a_guess_is_what_the_plan_counted_with(links):
    """The pure guess and the scheduler's network say the same of every link."""
    network = Network.measured([Device(name) for name in "abcd"], {}, links)
    counted = Counted(links, "abcd", 0.0)
    for source, target in PAIRS:
        assert counted.rate(source, target) == network.link(source, target).bandwidth


@given(LINKS, st.integers(0, 3))
def test_of_many_nodes_too(links, seed):
    names = [*"abcd", *(f"n{number}" for number in range(40))]
    dice = random.Random(seed)
    links = {**links, **{(one, dice.choice("abcd")): dice.choice([1e7, 1e8]) for one in names[4:20]}}
    network = Network.measured([Device(name) for name in names], {}, links)
    counted = Counted(links, names, 0.0)
    for source in names[:8]:
        for target in names[2:30]:
            if source != target:
                assert counted.rate(source, target) == network.link(source, target).bandwidth


@given(LINKS, LINKS)
def test_late_measurements_are_news_once_and_only_where_a_guess_was_wrong(before, after):
    counted = Counted(before, "abc", 10.0)
    when = dict.fromkeys(before, 9.0) | dict.fromkeys(after, 11.0)
    wrong = {
        pair
        for pair, rate in after.items()
        if "d" not in pair and not counted.rate(*pair) / CHANGED < rate < counted.rate(*pair) * CHANGED
    }
    said = counted.late({**before, **after}, when)
    assert bool(said) == bool(wrong)
    for pair in sorted(wrong)[:3]:
        assert f"{pair[0]} > {pair[1]} was measured late" in said
    assert counted.late({**before, **after}, when) == ""


def test_an_unmeasured_link_is_guessed_as_the_slowest_line_and_a_late_measurement_asks_for_a_plan():
    names, known = measured(3)
    known.found({("n0", "n1"): (0.01, 20e6), ("n0", "n2"): (0.01, 300e6)}, 0.0)
    asked = known.search(Question(tuple(names), None, frozenset()), names, 1.0)
    known.enter(search(asked), 2.0)
    assert known.news(3.0) == ("", {})
    known.found({("n1", "n2"): (0.01, 21e6)}, 4.0)
    assert known.news(5.0) == ("", {}), "as guessed"
    known.found({("n1", "n2"): (0.01, 900e6)}, 6.0)
    assert known.news(7.0) == ("n1 > n2 was measured late: 900 Mbit/s, not the 20 Mbit/s guessed", {})
    assert known.news(8.0) == ("", {}), "once"
    known.search(Question(tuple(names), None, frozenset()), names, 9.0)
    known.enter(Plan((("n0",),), ((0, 3),), (8,)), 10.0)
    known.found({("n1", "n2"): (0.01, 100e6)}, 11.0)
    assert known.news(12.0)[0].endswith("not the 900 Mbit/s counted with")


def test_a_measurement_that_comes_while_the_plan_is_searched_is_late():
    names, known = measured(2)
    found = search(known.search(Question(tuple(names), None, frozenset()), names, 1.0))
    known.found({("n0", "n1"): (0.01, 2e6)}, 1.5)
    known.enter(found, 2.0)
    assert known.news(3.0)[0] == "n0 > n1 was measured late: 2 Mbit/s, not the 100 Mbit/s guessed"


def test_training_shows_a_link_that_nobody_measured():
    names, known = measured(2)
    known.enter(search(known.search(Question(tuple(names), None, frozenset()), names, 1.0)), 2.0)
    for now in range(3, 9):
        known.step("n0", StepDone(sent=[Sent(peer="n1", rate_bps=5e6)]), now)
    said, links = known.news(9.0)
    assert said == "n0 > n1 carries 5 Mbit/s, not 100 Mbit/s" and links[("n0", "n1")][1] == 5e6


def test_what_training_shows_is_new_and_a_burst_gets_old():
    names, known = measured(3)
    known.found({("n0", "n1"): (0.01, 100e6), ("n0", "n2"): (0.01, 100e6)}, 0.0)
    known.enter(Plan((("n0",), ("n1",)), ((0, 3),), (4, 4)), 1.0)
    for now in range(3590, 3600):
        known.step("n0", StepDone(sent=[Sent(peer="n1", rate_bps=100e6)]), now)
    asked = known.search(Question(tuple(names), None, frozenset()), names, 3600.0)
    ages = {pair[:2]: age for pair, age in zip(asked.measured, asked.ages, strict=True)}
    assert ages == {("n0", "n1"): 0.0, ("n0", "n2"): 3600.0}


@pytest.mark.parametrize("known", ["b", "c"])
def test_of_two_links_measured_alike_the_plan_takes_the_one_that_it_knows(known):
    workload = Workload(tuple(Layer(str(n), 1, 1e9, 500_000) for n in range(2)), batch=8, stages=2, pipelines=1)
    devices = tuple(Device(name, tflops=1.0) for name in "abc")
    links = (("b", "c", 0.01, 10e6), ("a", "b", 0.01, 50e6), ("a", "c", 0.01, 50e6))
    ages = tuple(0.0 if set(link[:2]) == {"a", known} else 7200.0 for link in links)
    asked = Search(workload, Question(tuple("abc"), None, frozenset()), devices, links, ages=ages)
    assert set(search(asked).pipelines[0]) == {"a", known}


@given(st.lists(RATES, min_size=9, max_size=9), st.floats(0, 1e6), st.floats(0, 1e6))
def test_age_only_lowers_and_never_below_the_slowest_line(rates, young, old):
    young, old = sorted((young, old))
    matrix = numpy.array(rates).reshape(3, 3)
    lines = slowest_lines(matrix, 1e8)
    new, mid, aged = (
        cautious(matrix, numpy.full((3, 3), sure), lines) for sure in (1.0, confidence_of(young), confidence_of(old))
    )
    off = ~numpy.eye(3, dtype=bool)
    assert (new == matrix).all()
    assert (aged <= mid).all() and (mid <= matrix).all()
    assert (aged >= numpy.minimum(matrix, lines))[off].all() and (aged >= LEAST * matrix).all()
    assert LEAST < confidence_of(OLD_S) == (1 + LEAST) / 2 < 1.0
