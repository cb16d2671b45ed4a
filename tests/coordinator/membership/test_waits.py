"""A member that computes nothing while its heartbeats tell of action: it is found by whom the others wait for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from membership_script import Script, holding, planner

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.faults.waits import explaining, may_wait_for
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.state import TRAINING, WAITING
from farflung.scheduler.plans import Plan

A, B, C, D, Z = "abcdz"


def edges(**said):
    return {name: frozenset(peers) for name, peers in said.items()}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (edges(a="z", b="z"), "z"),  # it says that it computes
        (edges(a="b", b="c", c="z"), "z"),  # through others
        (edges(a="bz", b="az"), "z"),  # publishers of each other's parts
        (edges(a="z", b="z", z="a"), "az"),  # word against word: b may wait for the sum that a waits for
        (edges(a="z", b="a", z="a"), "az"),
        (edges(a="z", b="z", z=""), "z"),
        (edges(a="z", b="z", c="z", z="c"), "cz"),
        (edges(a="z", c="b"), ""),  # b and z compute: nobody can tell
        (edges(a="b", b="a", c="d", d="c"), ""),
        ({}, ""),
    ],
)
def test_who_explains_a_standstill(said, found):
    assert explaining(said) == frozenset(found)


PLANS = st.integers(1, 3).flatmap(
    lambda stages: st.integers(2 if stages == 1 else 1, 4).map(lambda pipelines: grid(stages, pipelines))
)


def grid(stages, pipelines):
    rows = tuple(tuple(f"n{row}-{stage}" for stage in range(stages)) for row in range(pipelines))
    return Plan(rows, tuple((stage, stage) for stage in range(stages)), (1,) * pipelines)


@st.composite
def standstills(draw):
    """A plan, whom of it everybody waits for, and what each says: the truth, but for that one."""
    plan = draw(PLANS)
    liar = draw(st.sampled_from(plan.nodes))
    said, done = {}, [liar]
    for name in draw(st.permutations([name for name in plan.nodes if name != liar])):
        # Whom it waits for waits for the liar; beside that, it may wait for what others wait for as well.
        waits_for = {draw(st.sampled_from(done))}
        waits_for |= set(draw(st.lists(st.sampled_from(plan.nodes), max_size=3))) - {name}
        said[name] = frozenset(waits_for)
        done.append(name)
    said[liar] = frozenset(draw(st.lists(st.sampled_from(plan.nodes), max_size=3))) - {liar}
    return plan, liar, said


@given(standstills())
def test_one_liar_puts_out_nobody_else(found):
    """It is among those who explain the standstill whatever it says, so nobody else ever is alone."""
    _, liar, said = found
    assert liar in explaining(said)


@given(standstills())
def test_one_that_says_that_it_computes_is_the_only_one(found):
    _, liar, said = found
    assert explaining({**said, liar: frozenset()}) == {liar}


@given(PLANS)
def test_a_node_waits_for_its_group_its_neighbours_and_who_commits(plan):
    for gradient in (True, False):
        for name in plan.nodes:
            peers = may_wait_for(plan, name, gradient)
            assert name not in peers and peers <= set(plan.nodes)
            assert {one for stage in plan.stages_of(name) for one in plan.group(stage)} - {name} <= peers
            assert {one for one in plan.neighbours(name) if one} <= peers
            # Whoever commits waits for those who wait for it.
            first = plan.nodes[0] if gradient else plan.pipelines[plan.pipeline_of(name)][0]
            assert name == first or (first in peers and name in may_wait_for(plan, first, gradient))


# ---- the machine, by whose clock the run stands still ---------------------------------------------

WAIT_FOR_Z = {"a": "d", "b": "d", "c": "d"}
"""In the script's plan a and b are one pipeline, c and d the other; everybody waits for d."""


def trained(wanted=4, names="abcd", **more):
    script = Script(wanted, **more).started(names)
    stand(script, 2, {})
    return stepped(script, 1)


def stepped(script, step, names=None):
    view = script.state.view
    for name in names or view.plan.nodes:
        script(s.StepFinished(name, name + "1", view.number, step, 2.0))
    return script


def stand(script, seconds, said, moves=(), until=None):
    """All heartbeats tell of action, and members say for whom they wait; all effects."""
    made, view = [], script.state.view.number
    for half in range(int(2 * seconds)):
        script.now += 0.5
        reports = []
        if half % 20 == 0:
            reports = [s.Waits(name, name + "1", view, tuple(peers), name in moves) for name, peers in said.items()]
        beats = tuple(s.Heard(name, node.session) for name, node in script.state.nodes.items())
        script(s.Beats(beats), *reports, s.Tick())
        made += script.effects
        if until is not None and [one for one in made if isinstance(one, until)]:
            break
    return made


def of(made, kind):
    return [one for one in made if isinstance(one, kind)]


def test_who_computes_nothing_and_claims_action_is_replaced():
    script = trained()
    assert not stand(script, 120, WAIT_FOR_Z) and script.state.phase == TRAINING
    made = stand(script, 5, WAIT_FOR_Z)
    (said,) = of(made, s.Say)
    assert said.why == (
        "no step has ended for 120 s, and the others wait for d: in 30 s they go on without the node that holds them up"
    )
    assert [one.to for one in of(made, s.SendNotice)] == [("d",)] and script.state.phase == TRAINING
    (flush,) = of(stand(script, 40, WAIT_FOR_Z, until=s.SendFlush), s.SendFlush)
    assert flush.to == ("a", "b", "c"), "it is not waited for"
    assert "d is set aside: no step has ended for 15" in flush.why and "a and b and c waited for it" in flush.why
    script(*(holding(script, name, 1) for name in "abc"))
    (view,) = script.get(s.SendView)
    assert "d" not in view.view.plan.nodes and "d" in script.state.nodes


def test_it_does_not_come_back_by_saying_that_it_acts_nor_in_another_life():
    script = trained()
    stand(script, 200, WAIT_FOR_Z, until=s.SendFlush)
    script(*(holding(script, name, 1) for name in "abc"))
    script.answer(s.Prepared, sorted(script.state.change.awaited))
    assert script.state.phase == TRAINING
    script(s.Joined("d", "d2", "d:1"), s.Hello("d", "d2", 0), s.Measured("d", "d2"))
    for step in range(2, 60):
        made = stand(script, 10, {})
        assert not of(made, s.SendFlush), "nobody makes a view for it"
        stepped(script, step)
    stand(script, 30, {}, until=s.SendFlush)
    assert not script.state.nodes["d"].stuck and script.state.phase != TRAINING


def test_a_step_ends_the_question():
    script = trained()
    stand(script, 125, WAIT_FOR_Z)
    assert script.state.standstill is not None
    stepped(script, 2)
    assert not stand(script, 100, WAIT_FOR_Z) and script.state.standstill is None


def test_its_own_reports_of_steps_are_no_steps_of_the_run():
    script, made = trained(), []
    for step in range(2, 6):
        made += stand(script, 60, WAIT_FOR_Z, until=s.SendFlush)
        if script.state.phase != TRAINING:
            break
        stepped(script, step, "d")
    assert of(made, s.SendFlush)[0].to == ("a", "b", "c")


def test_word_against_word_are_planned_apart_and_the_next_time_it_is_known():
    script = trained()
    made = stand(script, 200, {"a": "c", "b": "d", "c": "d", "d": "c"}, until=s.SendFlush)
    (flush,) = of(made, s.SendFlush)
    assert script.state.broken == {("c", "d")} and "planned apart" in flush.why
    script(*(holding(script, name, 1) for name in "abcd"))
    script.answer(s.Prepared, "abcd")
    stepped(script, 2)
    assert script.state.phase == TRAINING and script.state.suspected == {"c": 1, "d": 1}
    made = stand(script, 200, {"a": "b", "b": "d", "c": "b", "d": "b"}, until=s.SendFlush)
    assert of(made, s.SendFlush)[0].to == ("a", "b", "c")


def test_who_was_in_question_is_forgotten_when_it_is_known_who_it_was():
    script = trained()
    stand(script, 200, {"a": "c", "b": "d", "c": "d", "d": "c"}, until=s.SendFlush)
    script(*(holding(script, name, 1) for name in "abcd"))
    script.answer(s.Prepared, "abcd")
    stepped(script, 2)
    stand(script, 200, WAIT_FOR_Z, until=s.SendFlush)
    assert script.state.suspected == {} and set(script.state.held_up_by) == {"d"}


def test_a_liar_that_changes_what_it_says_is_the_one_who_is_left():
    script = trained()
    stand(script, 119, WAIT_FOR_Z)
    stand(script, 12, {**WAIT_FOR_Z, "d": "c"})
    assert script.state.standstill.suspects == {"c", "d"}
    stand(script, 12, {**WAIT_FOR_Z, "d": "b"})
    made = stand(script, 30, {**WAIT_FOR_Z, "d": "c"}, until=s.SendFlush)
    assert of(made, s.SendFlush)[0].to == ("a", "b", "c")


@pytest.mark.parametrize(
    ("more", "said", "moves", "seconds"),
    [
        ({}, {}, (), 1000),  # nobody waits for anybody: a loop of one's own, a long step of all
        ({}, {"a": "d", "c": "b"}, (), 1000),  # two compute
        ({}, {**WAIT_FOR_Z, "d": "c"}, ("c", "d"), 1100),  # bytes arrive: a large round over a slow link
        ({}, {**WAIT_FOR_Z, "d": ""}, (), 1100),  # it waits for the coordinator
        ({"eval_every": 1, "evaluation": 100.0}, WAIT_FOR_Z, (), 690),  # 100 steps' samples, three times 2 s each
    ],
)
def test_what_takes_long_is_waited_for(more, said, moves, seconds):
    script = trained(**more)
    assert not stand(script, seconds, said, moves) and script.state.phase == TRAINING


@pytest.mark.parametrize(
    ("more", "said", "moves"),
    [
        ({}, WAIT_FOR_Z, ("a",)),
        ({}, {**WAIT_FOR_Z, "d": ""}, ()),
        ({"eval_every": 2, "evaluation": 100.0}, WAIT_FOR_Z, ()),
        ({"eval_every": 1, "evaluation": 100.0}, WAIT_FOR_Z, ()),
    ],
)
def test_but_not_for_ever(more, said, moves):
    script = trained(**more)
    assert of(stand(script, 1300, said, moves, until=s.SendFlush), s.SendFlush)[0].to == ("a", "b", "c")


def test_a_first_step_may_take_ten_minutes():
    script = Script().started()
    assert not stand(script, 595, WAIT_FOR_Z)
    assert of(stand(script, 60, WAIT_FOR_Z, until=s.SendFlush), s.SendFlush)


def test_who_never_says_that_it_has_finished_holds_nobody_up_at_the_end():
    script = trained()
    script(*(s.Finished(name, name + "1", script.state.view.number, 1) for name in "abc"))
    made = stand(script, 200, {}, until=s.SendFlush)
    assert of(made, s.SendFlush)[0].to == ("a", "b", "c")


def test_what_a_spare_or_one_of_an_old_view_says_is_not_heard():
    script = trained(names="abcde")
    assert "e" not in script.state.view.plan.nodes
    script(s.Waits("e", "e1", script.state.view.number, ("a",)), s.Waits("a", "a1", 7, ("b",)))
    assert script.state.waits == {}
    assert not stand(script, 300, {"e": "a"})


def test_without_it_nobody_can_train_and_it_may_try_again():
    from farflung.scheduler.errors import PlanError

    script = trained(wanted=2, names="ab")

    def needs_two(names, current, broken):
        if len(names) < 2:
            raise PlanError("2 stages need 2 nodes")
        return planner(names, current, broken)

    script.machine = Membership(needs_two)
    stand(script, 200, {"a": "b"}, until=s.SendFlush)
    script(holding(script, "a", 1))
    assert script.state.phase == WAITING and "b is set aside" in script.state.why
    stand(script, 5, {}, until=s.SendFlush)
    assert script.state.change.awaited == {"a", "b"}


def test_a_person_lets_it_back():
    script = trained()
    stand(script, 200, WAIT_FOR_Z, until=s.SendFlush)
    script(*(holding(script, name, 1) for name in "abc"))
    script.answer(s.Prepared, sorted(script.state.change.awaited))
    script(s.Readmit("d", "d is readmitted"))
    stand(script, 5, {}, until=s.SendFlush)
    assert script.state.change is not None and "d" in script.state.change.awaited


def test_the_coordinators_own_stall_is_nobodys():
    script = trained()
    stand(script, 100, WAIT_FOR_Z)
    script.now += 500
    script(s.Tick())
    assert not stand(script, 100, WAIT_FOR_Z)
