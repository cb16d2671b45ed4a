"""The trials of a view: what the coordinator makes of their reports, and what becomes of the view."""

import random
from dataclasses import replace

from membership_script import Script, holding, planner, view_of

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.state import FLUSHING, TRAINING
from farflung.coordinator.planning.tuner import Tuner
from farflung.coordinator.replay.kinds import VALUES, event_of, event_plain
from farflung.proto.control_pb2 import StepDone
from farflung.scheduler.after_trials import Found as F
from farflung.scheduler.after_trials import decided, without
from farflung.scheduler.plans import Plan
from farflung.scheduler.trials import Trial, Tuning

TRIALS = (Trial(2), Trial(1), Trial(4))
PLAN = Plan(
    (("a", "b"), ("c", "d")), ((0, 1), (2, 3)), (2, 2), chosen={"train.microbatch": 2}, tuning=Tuning(TRIALS, "8: no")
)
NODES, BEGIN, VIEW = "abcd", 20, 3


def reports(seconds, peak=0):
    """Of every node and trial step: d is the slowest of each; a round falls on a trial step of each."""
    for at in range(1, PLAN.tuning.steps + 1):
        index = PLAN.tuning.at(at)
        late = 5.0 if 4 <= at <= 6 else 0.0
        for node in NODES:
            took = seconds[index] * (1.0 if node == "d" else 0.5) + late
            yield node, StepDone(view=VIEW, step=BEGIN + at, seconds=took, peak_bytes=peak)


def tuner():
    made = Tuner()
    made.enter(VIEW, PLAN, BEGIN)
    return made


def said(made, found):
    verdicts = [verdict for node, report in found if (verdict := made.step(node, report)) is not None]
    assert len(verdicts) <= 1
    return verdicts[0] if verdicts else None


def test_the_slowest_node_s_seconds_count_whatever_the_order_of_reports():
    found = list(reports({0: 0.44, 1: 0.5, 2: 0.4}, peak=2_500_000_000))
    random.Random(4).shuffle(found)
    verdict = said(tuner(), found)
    assert verdict.plan.chosen == {"train.microbatch": 4} and verdict.plan.microbatches == (1, 1) and not verdict.anew
    assert verdict.why == (
        "measured: a step takes 0.4 s with microbatch 4 (up to 2.5 GB), 0.44 s with microbatch 2 (up to 2.5 GB), "
        "0.5 s with microbatch 1 (up to 2.5 GB); 8: no"
    )


def test_moments_that_move_take_no_part_of_what_is_measured_and_the_verdict_is_recorded():
    trials = Trial(2, offload="none", pieces=(2, 2)), Trial(2, offload="moments")
    chosen = {"train.microbatch": 2, "train.offload": "none"}
    plan = replace(PLAN, pieces=(2, 2), chosen=chosen, tuning=Tuning(trials))
    made = Tuner()
    made.enter(VIEW, plan, BEGIN)
    found = [
        (node, StepDone(view=VIEW, step=BEGIN + at, seconds=(0.4, 0.3)[plan.tuning.at(at)] if counts else 9.0))
        for at in range(1, plan.tuning.steps + 1)
        for node in NODES
        for counts in [plan.tuning.counts(at)]
    ]
    verdict = said(made, found)
    assert verdict.plan.chosen["train.offload"] == verdict.plan.tuning.offload == "moments"
    assert verdict.plan.pieces == () and verdict.plan.microbatches == plan.microbatches
    assert verdict.why == (
        "measured: a step takes 0.3 s with microbatch 2 (moments in main memory), 0.4 s with microbatch 2 in pieces"
    )
    for one in (plan, verdict.plan):
        assert VALUES.read(VALUES.text(one)) == Plan.from_json(one.to_json()) == one


def test_nothing_is_decided_before_all_have_reported_all_and_nothing_twice():
    found, made = list(reports({0: 0.4, 1: 0.5, 2: 0.3})), tuner()
    assert said(made, found[:-1]) is None
    assert said(made, [("z", found[-1][1]), ("d", StepDone(view=VIEW - 1, step=BEGIN + 12, seconds=1.0))]) is None
    assert said(made, found[-1:]).plan.chosen == {"train.microbatch": 4}
    assert said(made, found) is None
    made.enter(VIEW + 1, replace(PLAN, tuning=None), BEGIN)
    assert said(made, [(node, StepDone(view=VIEW + 1, step=one.step, seconds=1.0)) for node, one in found]) is None


def test_a_trial_that_takes_too_much_memory_is_left_out_and_the_others_begin_again():
    made = tuner()
    assert made.failed("b", VIEW, BEGIN + 1, "no") is None, "the plan's own choice"
    assert made.failed("b", VIEW - 1, BEGIN + 3, "no") is None and made.failed("z", VIEW, BEGIN + 3, "no") is None
    verdict = made.failed("b", VIEW, BEGIN + 3, "has too little memory for it")
    assert verdict.anew and verdict.plan == without(PLAN, 2, "b has too little memory for it")
    again = made.failed("d", VIEW, BEGIN + 3, "the same")  # the first may have come before the view trained
    assert again.anew and again.plan == without(PLAN, 2, "d the same")
    made.enter(VIEW + 1, verdict.plan, BEGIN)
    assert made.failed("d", VIEW, BEGIN + 3, "the same") is None


def test_views_that_are_shorter_than_the_trials_decide_together():
    """The first cycle of each counts nothing: three views of 8 steps have counted what one of 12 has."""
    made, found = Tuner(), list(reports({0: 0.44, 1: 0.5, 2: 0.4}))
    verdicts = []
    for view in range(VIEW, VIEW + 4):
        made.enter(view, PLAN, BEGIN)
        for node, one in found[: 8 * len(NODES)]:
            report = StepDone(view=view, step=one.step, seconds=one.seconds % 5.0)
            verdicts += [(view, verdict) for verdict in [made.step(node, report)] if verdict is not None]
    ((view, verdict),) = verdicts
    assert (
        view == VIEW + 2 and verdict.plan.chosen == {"train.microbatch": 4} and "0.4 s with microbatch 4" in verdict.why
    )
    assert verdict.anew, "the view would go on trying, and a node that fails in a trial waits for another view"


def test_a_verdict_in_the_last_steps_changes_no_view():
    """A step with microbatch 4 wins 0.04 of 0.44 s: 22 steps make up for a change that costs two."""
    found = list(reports({0: 0.44, 1: 0.5, 2: 0.4}))
    assert all(made.step(*one, left=23) is None for made in [tuner()] for one in found[:-1])
    for left, changes in ((23, True), (21, False), (0, False)):
        made = tuner()
        (verdict,) = (one for node, report in found if (one := made.step(node, report, left)) is not None)
        assert (verdict.plan.chosen == {"train.microbatch": 4}) == changes and not verdict.anew
        assert (verdict.plan == PLAN) != changes, "a run with more steps would begin the trials again"
        assert (f"; the {left} steps that are left would not make up for a view change" in verdict.why) != changes
        assert verdict.why.startswith("measured: a step takes 0.4 s with microbatch 4, 0.44 s with microbatch 2")
        assert all(made.step(node, report, left) is None for node, report in found), "it is said once"
    same = tuner()
    (kept,) = (one for step in reports({0: 0.4, 1: 0.5, 2: 0.4}) if (one := same.step(*step, left=0)) is not None)
    assert kept.plan.tuning.measured and "view change" not in kept.why, "what stays needs no view"


def test_other_places_or_trials_begin_anew():
    made, found = tuner(), list(reports({0: 0.4, 1: 0.5, 2: 0.3}))
    assert said(made, found[:-1]) is None
    for other in (replace(PLAN, pipelines=PLAN.pipelines[::-1]), without(PLAN, 2, "no")):
        made.enter(VIEW + 1, other, BEGIN)
        made.enter(VIEW, PLAN, BEGIN)
        assert said(made, found[-4:]) is None


def test_views_in_which_nothing_counts_are_named_once():
    made, found = Tuner(), list(reports({0: 0.44, 1: 0.5, 2: 0.4}))[: 3 * len(NODES)]
    verdicts = []
    for view in range(VIEW, VIEW + 6):
        made.enter(view, PLAN, BEGIN)
        for node, one in found:
            report = StepDone(view=view, step=one.step, seconds=one.seconds)
            verdicts += [(view, verdict) for verdict in [made.step(node, report)] if verdict is not None]
    ((view, verdict),) = verdicts
    assert view == VIEW + 3 and verdict.plan == PLAN and not verdict.anew
    assert verdict.why == (
        "the last 3 views ended within the 12 steps that try microbatch 2, microbatch 1, microbatch 4: "
        "nothing is decided yet"
    )


# ---- the machine ---------------------------------------------------------------------------------


def trains():
    """Four nodes that train a plan with trials; the planner would give it again."""
    script = Script()
    script.machine = Membership(lambda names, current, broken: replace(planner(names, current, broken), **KEPT))
    return script.started()


KEPT = {"chosen": PLAN.chosen, "tuning": PLAN.tuning}


def test_a_better_choice_is_a_view_with_the_same_places():
    script = trains()
    before = script.state.view
    better = decided(before.plan, {0: F(0.4), 1: F(0.2), 2: F(0.4)})
    script(s.Tuned(before.number, better, "1 is faster"))
    assert script.state.phase == FLUSHING and script.get(s.SendFlush)[0].why == "1 is faster"
    sent = view_of(script, "abcd", 5)
    assert sent.plan == better and sent.plan.pipelines == before.plan.pipelines and "1 is faster" in sent.why
    assert script.state.tuned is None


def test_the_choice_in_force_stays_without_a_view_change_and_is_stored():
    script = trains()
    before = script.state.view
    same = decided(before.plan, {0: F(0.4), 1: F(0.4), 2: F(0.4)})
    script(s.Tuned(before.number, same, "2 is as fast"))
    assert script.state.phase == TRAINING and script.state.number == before.number
    assert script.state.view.plan == same and "2 is as fast" in script.state.why
    (kept,) = script.get(s.KeepView)
    assert kept.view == script.state.view and "2 is as fast" in kept.view.why
    assert script.get(s.Say)[0].why == "2 is as fast"


def test_what_keeps_trials_from_ending_is_in_the_view_s_why():
    script = trains()
    before = script.state.view
    script(s.Tuned(before.number, before.plan, "the last 3 views ended early"))
    assert script.state.phase == TRAINING and script.state.view.plan == before.plan
    assert script.state.view.why == f"{before.why}; the last 3 views ended early"
    assert script.get(s.Say)[0].why == "the last 3 views ended early"


def test_a_node_that_waits_gets_another_view_even_with_the_same_choice():
    script = trains()
    less = without(script.state.view.plan, 2, "no")
    script(s.Tuned(script.state.view.number, less, "4 is too large", anew=True))
    assert view_of(script, "abcd", 5).plan == less


def test_who_is_gone_by_then_has_no_place():
    script = trains()
    better = decided(script.state.view.plan, {0: F(0.4), 1: F(0.2), 2: F(0.4)})
    script(s.Tuned(script.state.view.number, better, "1 is faster"))
    script(s.Left("d", "d1", "gone"))
    sent = view_of(script, "abc", 5)
    assert "d" not in sent.plan.nodes and sent.plan.nodes and script.state.tuned is None


def test_a_node_that_is_lost_during_trials_is_remembered_even_if_it_is_back_at_once():
    script, asked = trains(), []

    def counting(names, current, broken):
        asked.append(current.tuning.broken)
        return replace(planner(names, current, broken), **KEPT)

    script.machine = Membership(counting)
    script(s.Joined("d", "d2", "d:1"))
    assert script.state.phase == FLUSHING
    script(*(holding(script, name, 5) for name in "abc"))
    assert set(asked) == {1}


def test_a_plan_of_the_job_before_is_not_taken():
    script = trains()
    better = decided(script.state.view.plan, {0: F(0.4), 1: F(0.2), 2: F(0.4)})
    script(s.Tuned(script.state.view.number, better, "1 is faster"), s.Changed("{}", "another codec"))
    assert view_of(script, "abcd", 5).plan == replace(planner("abcd", None, ()), **KEPT)


def test_who_comes_back_meanwhile_may_be_another_machine_and_is_planned_anew():
    script, asked = trains(), []

    def counting(names, current, broken):
        asked.append(names)
        return replace(planner(names, current, broken), **KEPT)

    script.machine = Membership(counting)
    better = decided(script.state.view.plan, {0: F(0.4), 1: F(0.2), 2: F(0.4)})
    script(s.Tuned(script.state.view.number, better, "1 is faster"))
    script(s.Left("d", "d1", "gone"), s.Joined("d", "d2", "d:1"), s.Hello("d", "d2", 0), s.Measured("d", "d2"))
    script(*(s.Left(name, name + "1", "gone") for name in "abc")).join(*"abc", session="2")
    script(*(s.Measured(name, name + "2") for name in "abc")).wait(40)
    script(*(s.Flushed(name, name + "2", script.state.change.number, 5, 5) for name in "abcd"))
    assert asked and script.state.phase == "preparing" and script.state.pinned.plan.chosen == KEPT["chosen"]


def test_who_gives_up_its_place_meanwhile_is_a_spare_and_the_others_train():
    script = trains()
    better = decided(script.state.view.plan, {0: F(0.4), 1: F(0.2), 2: F(0.4)})
    script(s.Tuned(script.state.view.number, better, "1 is faster"), s.Leaving("d", "d1", "its owner stops it"))
    sent = view_of(script, "abcd", 5)
    assert set(sent.plan.nodes) <= set("abc") and "d" in sent.plan.spares and script.state.tuned is None


def test_verdicts_of_views_that_are_over_change_nothing():
    script = trains()
    better = decided(script.state.view.plan, {0: F(0.4), 1: F(0.2), 2: F(0.4)})
    for number in (script.state.view.number - 1, script.state.view.number + 1):
        assert script(s.Tuned(number, better, "late")).state.phase == TRAINING and not script.effects


def test_a_recording_holds_verdicts_whole():
    events = [s.Tuned(3, PLAN, "why", anew) for anew in (False, True)]
    assert [event_of(event_plain(one)) for one in events] == events
    kept = s.KeepView(trains().state.view, "why")
    assert VALUES.value(VALUES.plain(kept)) == kept
