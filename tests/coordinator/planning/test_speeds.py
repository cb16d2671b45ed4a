"""Slow nodes are noticed by what they reach beside the others; a busy moment is not believed."""

import pytest
from membership_script import Script, holding, planner
from planners import planner_of

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.state import FLUSHING, TRAINING
from farflung.coordinator.planning.speeds import FEW, FIRST_PAUSE_S, FORGET_S, GROSS_STEPS, STEPS, Speeds
from farflung.job.data.facts import Facts, LayerProfile, Profile
from farflung.scheduler import Device, Layer, Workload
from farflung.scheduler.plans import Plan

LAYERS = [
    LayerProfile(name=str(n), parameters=1000, flops_per_sample=1e9, activation_elements_per_sample=10)
    for n in range(4)
]
FACTS = Facts(
    samples=100,
    validation_samples=0,
    context=16,
    vocabulary=256,
    token_dtype="uint8",
    steps=10,
    tokens_digest="",
    profile=Profile(layers=LAYERS, tied=False, family=""),
    artifacts={},
)
PLAN = Plan((("a", "b"), ("c", "d")), ((0, 1), (2, 3)), (2, 2))


def speeds(**nominal):
    return Speeds(FACTS, 2, lambda name: nominal.get(name, 1.0))


def run(made, seconds, steps=STEPS, now=0.0):
    for _ in range(steps):
        for name, value in seconds.items():
            made.step(name, value, now)
    return {name: round(made.part(name, now), 3) for name in seconds}


def test_all_as_planned():
    made = speeds(c=2.0, d=2.0)
    made.enter(PLAN)
    assert run(made, {"a": 1.0, "b": 1.0, "c": 0.5, "d": 0.5}) == dict.fromkeys("abcd", 1.0)
    assert made.news(1.0) == "" and made.factor("a", 1.0) == 1.0


def test_who_claims_to_compute_in_no_time_makes_nobody_slow():
    made = speeds()
    made.enter(PLAN)
    assert run(made, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1e-300}) == dict.fromkeys("abcd", 1.0)
    assert made.news(10.0) == ""


def test_one_is_slow():
    made = speeds()
    made.enter(PLAN)
    assert run(made, {"a": 0.1, "b": 0.1, "c": 0.5, "d": 0.1}, STEPS - 1) == dict.fromkeys("abcd", 1.0), "not yet"
    made.enter(PLAN)
    assert run(made, {"a": 1.0, "b": 1.0, "c": 5.0, "d": 1.0}) == {"a": 1.0, "b": 1.0, "c": 0.2, "d": 1.0}
    reached = 2 * 1e9 * 2 * 2 / 1e12  # layers, flops, microbatches of two samples: of one Tflop/s
    assert made.factor("a", 0.0) == pytest.approx(reached) and made.factor("c", 0.0) == pytest.approx(reached / 5)
    assert made.news(10.0) == "c computes at 20% of its speed"
    assert made.news(10.0 + FIRST_PAUSE_S / 2) == ""
    assert made.news(10.0 + FIRST_PAUSE_S) and not made.news(10.0 + 2 * FIRST_PAUSE_S), "the pause has doubled"
    assert run(made, dict.fromkeys("abcd", 1.0)) == dict.fromkeys("abcd", 1.0), "it has recovered"
    assert made.news(1000.0) == ""


def test_a_node_for_which_all_others_wait_is_believed_after_three_steps():
    """60 s a step beside 2 s: a third of each batch, for as long as nobody looked."""
    made = speeds()
    made.enter(Plan((("a",), ("b",), ("c",)), ((0, 3),), (2, 2, 2)))
    assert set(run(made, {"a": 2.0, "b": 2.0, "c": 60.0}, GROSS_STEPS - 1).values()) == {1.0}
    assert run(made, {"a": 2.0, "b": 2.0, "c": 60.0}, 1) == {"a": 1.0, "b": 1.0, "c": 0.033}
    assert made.news(300.0) == "c computes at 3% of its speed"
    assert made.factor("c", 300.0) == pytest.approx(made.factor("a", 300.0) / 30)


def test_one_long_step_is_not_believed():
    """A first step compiles; a machine is busy for a moment."""
    made = speeds()
    made.enter(PLAN)
    run(made, {"a": 1.0, "b": 1.0, "c": 60.0, "d": 1.0}, 2)
    assert set(run(made, dict.fromkeys("abcd", 1.0), 4).values()) == {1.0}
    run(made, {"a": 1.0, "b": 1.0, "c": 60.0, "d": 1.0}, 1)
    assert set(run(made, dict.fromkeys("abcd", 1.0), 1).values()) == {1.0}


def test_a_smaller_share_is_less_work():
    made = speeds()
    made.enter(Plan((("a", "b"), ("c", "d")), ((0, 1), (2, 3)), (3, 1)))
    assert run(made, {"a": 3.0, "b": 3.0, "c": 5.0, "d": 1.0})["c"] == 0.2


@pytest.mark.parametrize("noise", [1.5, 0.7])
def test_noise_is_not_believed(noise):
    made = speeds()
    made.enter(PLAN)
    assert run(made, {"a": 1.0, "b": 1.0, "c": noise, "d": 1.0})["c"] == 1.0


def test_two_of_which_one_is_slow_and_who_is_left_out_is_forgotten():
    made = speeds()
    made.enter(Plan((("a",), ("b",)), ((0, 3),), (2, 2)))
    assert run(made, {"a": 1.0, "b": 4.0}) == {"a": 1.0, "b": 0.25}
    made.enter(Plan((("a",),), ((0, 3),), (4,)))
    assert made.part("b", FORGET_S - 1) == 0.25 and made.part("b", FORGET_S + 1) == 1.0
    assert made.news(5.0) == "", "it trains no more"


def test_the_planner_gives_a_slow_node_less_and_then_nothing():
    workload = Workload(layers=tuple(Layer(str(n), 1000, 3e11, 10) for n in range(4)), batch=16, microbatch=2, stages=1)
    tflops = {"a": 1.0, "b": 1.0, "c": 1.0}
    plan = planner_of(workload, lambda name: Device(name, tflops=tflops[name]), dict)
    first = plan(("a", "b", "c"), None, frozenset())
    assert sorted(first.microbatches) == [2, 3, 3]
    tflops["c"] = 0.3
    second = plan(("a", "b", "c"), first, frozenset())
    assert second.share_of("c") == 1 / 8
    tflops["c"] = 0.02
    third = plan(("a", "b", "c"), second, frozenset())
    assert "c" in third.spares and "even in its best place" in third.spares["c"]
    assert plan(("a", "b", "c"), third, frozenset()) == third


def test_replan_changes_the_view_only_for_another_plan():
    script = Script().started()
    script(s.Replan("c computes at 20% of its speed"))
    assert script.state.phase == TRAINING and not script.effects

    def without_c(names, current, broken):
        return planner([name for name in names if name != "c"], None, broken)

    script.machine = Membership(without_c)
    script(s.Replan("c computes at 20% of its speed"))
    assert script.state.phase == FLUSHING
    script(*(holding(script, name, 3) for name in "abcd"))
    assert script.get(s.SendView)[0].why.startswith("c computes at 20% of its speed")
    assert "c" in script.state.nodes, "nobody is put out for being slow"


def test_reports_of_many_nodes_are_compared_once_a_second(monkeypatch):
    nodes = [f"n{number}" for number in range(2 * FEW)]
    made = speeds()
    made.enter(Plan(tuple((name,) for name in nodes), ((0, 3),), (1,) * len(nodes)))
    compared = []
    monkeypatch.setattr(made, "_compare", compared.append)
    for step in range(20):
        for at, name in enumerate(nodes):
            made.step(name, 1.0, step + at / len(nodes))
    assert 7 <= len(compared) <= 10  # from the 12th step on
