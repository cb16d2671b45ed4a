"""Links are believed to be what training shows of them; who shares a line is not taken for slow."""

import pytest
from planners import planner_of

from farflung.coordinator.planning.link_rates import LEAST_REPORTS, LinkRates
from farflung.coordinator.planning.speeds import FIRST_PAUSE_S, FORGET_S
from farflung.proto.control_pb2 import Sent
from farflung.scheduler import Device, Layer, Workload
from farflung.scheduler.workloads.ladder import workload_fields

PAIRS = [(one, other) for one in "abcd" for other in "abcd" if one != other]


def rates(mbit=100.0):
    return LinkRates(lambda source, target: mbit * 1e6)


def show(made, pair, mbit, beside=1.0, arrived_beside=1.0, reports=LEAST_REPORTS, now=0.0):
    for _ in range(reports):
        made.step(pair[0], [Sent(peer=pair[1], bytes=1, rate_bps=mbit * 1e6, beside=beside)], now)
        made.step(pair[1], [Sent(peer=pair[0], arrived_beside=arrived_beside)], now)
    return {known: round(rate / 1e6) for known, rate in made.believed(now).items()}


def test_some_steps_must_agree():
    made = rates()
    assert show(made, "ab", 10, reports=LEAST_REPORTS - 1) == {}
    assert show(made, "ab", 10, reports=1) == {("a", "b"): 10}, "in this direction"
    assert show(made, "ab", 90, reports=8) == {}, "as measured again, but for noise"
    assert show(made, "ab", 400, reports=8) == {("a", "b"): 400}


@pytest.mark.parametrize(("out", "into"), [(4.0, 1.0), (1.0, 4.0)], ids=["its sender's", "its receiver's"])
def test_a_quarter_of_a_line_is_no_slow_link(out, into):
    assert show(rates(), "ab", 25, out, into) == {}
    assert show(rates(), "ab", 10, out, into) == {("a", "b"): 40}, "but the line is slower than it was"


def test_one_step_that_is_an_exception_changes_nothing():
    made = rates()
    show(made, "ab", 100)
    assert show(made, "ab", 5, reports=1) == {}


def test_a_link_that_nobody_uses_may_have_recovered_and_a_new_life_is_another():
    made = rates()
    assert show(made, "ab", 10)
    assert made.believed(FORGET_S + 1) == {}
    assert show(made, "ab", 10, now=FORGET_S + 2)
    made.forget("b")
    assert made.believed(FORGET_S + 2) == {}


def test_news_once_and_then_more_and_more_rarely():
    made = rates()
    show(made, "ab", 80)
    assert made.news(1.0) == "", "not enough for another plan"
    show(made, "ab", 10, reports=8, now=1.0)
    assert made.news(1.0) == "a > b carries 10 Mbit/s, not 100 Mbit/s"
    assert made.news(1.0 + FIRST_PAUSE_S / 2) == ""
    assert made.news(1.0 + FIRST_PAUSE_S) and not made.news(1.0 + 2 * FIRST_PAUSE_S), "the pause has doubled"
    made.enter(lambda source, target: 10e6 if (source, target) == ("a", "b") else 100e6)
    assert made.news(1000.0 - FORGET_S) == "", "the new plan counts with it"


def planning(**job):
    links, made = dict.fromkeys(PAIRS, (0.01, 100e6)), rates()

    def known():
        return {**links, **{pair: (0.01, rate) for pair, rate in made.believed(0.0).items()}}

    layers = tuple(Layer(str(n), 500_000, 1e10, 100_000) for n in range(4))
    workload = Workload(**{"layers": layers, "batch": 16, **job})
    return made, planner_of(workload, lambda name: Device(name, tflops=1.0), known)


def test_the_plan_leaves_a_link_that_has_become_slow_and_nobody_moves_for_noise():
    made, planner = planning(stages=2, pipelines=2)
    plan = planner(tuple("abcd"), None, frozenset())
    one, other = plan.pipelines[0]
    for number, mbit in enumerate((95, 108, 91, 104)):
        for pair in PAIRS:
            show(made, pair, mbit + number, reports=2)
    assert planner(tuple("abcd"), plan, frozenset()) is plan
    show(made, (one, other), 1, reports=8)
    changed = planner(tuple("abcd"), plan, frozenset())
    assert changed is not plan and (one, other) not in changed.pipelines


def test_rounds_hide_behind_compute_on_the_link_as_it_is_now():
    made, planner = planning(stages=1, pipelines=4, mode="delta", **workload_fields("delta", "auto", "auto", 1, 1))
    plan = planner(tuple("abcd"), None, frozenset())
    for pair in PAIRS:
        show(made, pair, 4)
    slow = planner(tuple("abcd"), plan, frozenset())
    assert slow.pipelines == plan.pipelines and (slow.codecs, slow.overlap) != (plan.codecs, plan.overlap)
