"""What people want of a run that goes on, in the membership machine: hold, release, evict, pause, change, save."""

import pytest
from membership_script import Script, holding, planner, rules

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.state import DONE, FLUSHING, PREPARING, TRAINING, WAITING
from farflung.job.data.sampling import Position
from farflung.scheduler.errors import PlanError


def changed(script, names, step=0):
    """The view change under way, to its end."""
    script(*(holding(script, name, step) for name in names if name in script.state.view.plan.nodes))
    views = script.get(s.SendView)
    if script.state.phase == FLUSHING:
        script.answer(s.Flushed, sorted(script.state.change.awaited - set(script.state.change.flushed)))
        views = script.get(s.SendView)
    if script.state.phase == PREPARING:
        script.answer(s.Prepared, sorted(script.state.change.awaited))
    script.effects = [*views, *script.effects]
    return script


def test_drain():
    script = Script().started()
    script(s.Hold("c", "drained by alice", leaves=True))
    assert script.get(s.SendLeave) == [s.SendLeave(("c",), "drained by alice", stays=False)]
    assert script.state.phase == TRAINING, "its last contribution comes first"
    script(s.Leaving("c", "c1", "drained by alice", asked=True))
    assert script.get(s.SendFlush)[0].why == "c is drained by alice"
    changed(script, "abcd", 3)
    (sent,) = script.get(s.SendView)
    assert "c" not in sent.view.plan.nodes and sent.view.plan.spares["c"] == "drained by alice"
    assert any("c" in names for names in sent.view.holders), "others may fetch from it"
    assert sent.view.position == Position(3, 24)
    assert script.get(s.SendStop) == [s.SendStop(("c",), "c is drained by alice")]
    script(s.Left("c", "c1", "c is drained by alice"))
    assert script.state.phase == TRAINING and script.state.number == 2
    script.join("c", session="2").wait(3)(s.Measured("c", "c2")).wait(3)
    assert script.state.phase == TRAINING, "it has no place while it is drained"
    script(s.Release("c", "c may train again"))
    script.wait(2)
    assert script.state.phase == FLUSHING and script.state.change.why == "c is back"


def test_drain_that_is_not_answered():
    script = Script().started()
    script(s.Hold("c", "drained", leaves=True)).wait(29)
    assert script.state.phase == TRAINING
    script.wait(2)
    assert script.state.phase == FLUSHING and script.state.change.why == "c is drained"


def test_drain_of_one_without_a_place():
    script = Script(wanted=3).started("abc")
    assert script.state.view.plan.spares == {"c": "one too many"}
    script(s.Hold("c", "drained", leaves=True))
    assert script.get(s.SendStop) == [s.SendStop(("c",), "c is drained")] and script.state.phase == TRAINING


def test_pause_of_a_node_that_comes_back():
    script = Script().started()
    script(s.Hold("a", "paused by bob"))
    assert script.get(s.SendLeave)[0].stays
    script(s.Leaving("a", "a1", "paused by bob", stays=True, asked=True))
    changed(script, "abcd", 5)
    assert not script.get(s.SendStop)
    assert script.state.view.plan.spares["a"] == "paused by bob" and "a" in script.state.nodes
    script(s.Release("a", "a may train again, resumed by bob"))
    assert script.get(s.SendFlush)[0].why == "a is back"
    changed(script, "bcd", 7)
    assert "a" in script.state.view.plan.nodes


def test_release_before_its_answer():
    script = Script().started()
    script(s.Hold("a", "paused"), s.Release("a", "resumed"), s.Leaving("a", "a1", "paused", stays=True, asked=True))
    assert script.state.phase == TRAINING and not script.get(s.SendFlush)
    script.wait(40)
    assert script.state.phase == TRAINING


def test_a_node_that_pauses_itself():
    script = Script().started()
    script(s.Leaving("a", "a1", "paused by its owner", stays=True))
    changed(script, "abcd", 5)
    assert script.state.view.plan.spares["a"] == "paused by its owner"
    script(s.Hold("a", "paused by bob"), s.Back("a", "a1")).wait(2)
    assert script.state.phase == TRAINING and script.state.view.plan.spares["a"], "a person's word counts too"
    script(s.Release("a", "resumed"))
    assert script.get(s.SendFlush)


def test_a_node_that_is_taken_away():
    script = Script().started()
    script(s.Leaving("d", "d1", "being taken away with its machine (SIGTERM)"))
    changed(script, "abcd", 5)
    assert script.get(s.SendStop)[0].to == ("d",)
    script(s.Left("d", "d1", "gone")).join("d", session="2").wait(3)(s.Measured("d", "d2")).wait(2)
    assert script.state.phase == FLUSHING, "the next life of it is welcome"


def test_leaving_in_a_view_that_is_being_prepared():
    script = Script().started()
    script(s.Left("b", "b1", "goodbye"))
    script(*(holding(script, name, 2) for name in "acd"))
    assert script.state.phase == PREPARING
    before = script.state.number
    script(s.Hold("a", "drained", leaves=True))
    assert script.state.phase == FLUSHING and script.state.number == before + 1
    script.answer(s.Flushed, "acd")
    assert "a" not in script.get(s.SendView)[0].view.plan.nodes
    script(s.Hold("a", "drained twice", leaves=True))
    assert not script.get(s.SendStop), "the others may still fetch from it"
    script.answer(s.Prepared, "acd")
    assert script.get(s.SendStop)[0].why == "a is drained twice"


def test_evict():
    script = Script().started()
    script(s.Evict("b", "evicted by alice"))
    assert script.effects[0] == s.SendStop(("b",), "b was evicted by alice", refused=True)
    assert [type(effect) for effect in script.effects].index(s.SendStop) < [
        type(effect) for effect in script.effects
    ].index(s.Fence)
    assert script.state.phase == FLUSHING and "b" not in script.state.change.awaited


def test_pause_and_go_on():
    script = Script().started()
    script(s.Pause("paused by alice: the power is needed"))
    assert script.get(s.SendFlush)[0].to == tuple("abcd")
    script(*(holding(script, name, 6) for name in "abcd"))
    assert script.state.phase == WAITING and script.state.why == "paused by alice: the power is needed"
    script.wait(60).join("e").wait(5)
    assert script.state.phase == WAITING and set(script.state.nodes) == set("abcde"), "nobody is silent"
    script(s.Left("d", "d1", "goodbye"))
    assert script.state.why == "paused by alice: the power is needed"
    script(s.GoOn("resumed by alice")).wait(2)
    script(s.Measured("e", "e1"))
    script(*(holding(script, name, 6) for name in "abc"))
    script.answer(s.Flushed, "e")
    assert script.state.pinned.position == Position(6, 48)


def test_pause_while_a_view_is_made():
    script = Script().started()
    script(s.Left("b", "b1", "goodbye"), s.Pause("paused"))
    script(*(holding(script, name, 2) for name in "acd"))
    assert script.state.phase == WAITING
    script(s.GoOn("resumed")).wait(1)
    script(*(holding(script, name, 2) for name in "acd"))
    assert script.state.phase == PREPARING
    script(s.Pause("paused again"))
    assert script.state.phase == FLUSHING
    script(*(holding(script, name, 2) for name in "acd"))
    assert script.state.phase == WAITING and script.state.why == "paused again"
    script(s.GoOn("resumed")).wait(1)
    script(*(holding(script, name, 2) for name in "acd"))
    script.answer(s.Prepared, "acd")
    assert script.state.phase == TRAINING and script.state.view.position == Position(2, 16)


def test_another_job_comes_with_a_view():
    script = Script().started()
    script(s.Changed('{"a": 1}', "train.learning_rate 0.1 -> 0.2, set by alice"))
    changed(script, "abcd", 4)
    assert script.state.view.job == '{"a": 1}'
    assert script.state.view.why.startswith("train.learning_rate 0.1 -> 0.2, set by alice")
    script(s.Left("d", "d1", "goodbye"))
    changed(script, "abc", 5)
    assert script.state.view.job == '{"a": 1}'


def test_save_is_asked_for_until_it_is_there():
    script = Script().started()
    script(s.Save("the coordinator ends"))
    changed(script, "abcd", 4)
    assert script.state.view.save
    script(s.Left("d", "d1", "goodbye"))
    changed(script, "abc", 5)
    assert script.state.view.save
    script(s.CheckpointComplete(Position(5, 40)), s.Left("b", "b1", "goodbye"))
    changed(script, "ac", 6)
    assert not script.state.view.save


def test_what_comes_after_the_last_step_changes_nothing():
    script = Script().started()
    script(*(s.Finished(name, name + "1", 1, 9) for name in "abcd"))
    script(s.Pause("paused"), s.Leaving("a", "a1", "SIGTERM"), s.Changed("{}", "set"))
    assert script.state.phase == TRAINING
    script(s.CheckpointComplete(Position(9, 72)))
    assert script.state.phase == DONE


def test_without_whom_nobody_could_train():
    def strict(names, current, broken):
        if len(names) < 4:
            raise PlanError("the model does not fit")
        return planner(names, current, broken)

    script = Script().started()
    assert script.machine.cannot_do_without(script.state, "a") == ""
    script.machine = Membership(strict)
    assert script.machine.cannot_do_without(script.state, "a") == "the model does not fit"
    script(s.Leaving("a", "a1", "paused by its owner", stays=True))
    changed(script, "abcd", 3)
    assert script.state.phase == WAITING
    assert script.state.why == "no plan for a, b, c, d: the model does not fit"
    script.wait(5)
    assert script.state.phase == WAITING
    script(s.Back("a", "a1"))
    assert script.state.phase == FLUSHING


def test_only_one_and_it_is_paused():
    script = Script(wanted=1)
    script.state = script.state.__class__(rules(1))
    script.join("a").wait(2)(s.Measured("a", "a1"))
    script.answer(s.Flushed, "a").answer(s.Prepared, "a")
    assert script.state.phase == TRAINING
    script(s.Leaving("a", "a1", "paused by its owner", stays=True))
    changed(script, "a", 3)
    assert script.state.phase == WAITING and script.state.why == "no plan for a: a is paused by its owner"
    script.wait(2)
    assert script.state.why == "waiting for 1 more node; nobody in; a is paused by its owner"
    script(s.Back("a", "a1"))
    assert script.state.phase == FLUSHING


@pytest.mark.parametrize("event", [s.Hold("x", "drained", True), s.Release("x", "resumed"), s.Evict("x", "evicted")])
def test_a_name_that_is_not_here(event):
    script = Script().started()
    script(event)
    assert script.state.phase == TRAINING and not script.effects


def test_nobody_is_put_out_while_it_computes():
    script = Script().started().wait(60)
    script(s.StepFinished("d", "d1", 1, 1, seconds=60.0), s.Left("c", "c1", "goodbye"))
    script(*(holding(script, name, 1) for name in "ab")).wait(500)
    assert script.state.phase == FLUSHING and "d" in script.state.nodes, "its step may take as long again"
    script.wait(110)
    assert "d" not in script.state.nodes
