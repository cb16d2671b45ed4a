"""The membership machine waits by progress: what moves is waited for, however long; what stands still is not."""

from dataclasses import replace

import pytest
from membership_script import Script, flushed, holding, planner, slow, view_of

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.state import DONE, FLUSHING, PREPARING, TRAINING, Known
from farflung.job.data.sampling import Position
from farflung.scheduler.errors import PlanError


def pass_time(script, seconds, moved=None, stored=None):
    """Heartbeats for so long; the marks of these nodes grow, and bytes of checkpoints arrive."""
    made = []
    for _ in range(int(seconds)):
        beats = [
            replace(beat, moved=script.state.nodes[beat.name].moved + (beat.name in (moved or ())))
            for beat in script.heartbeats()
        ]
        tick = s.Tick(script.state.stored + (stored or 0))
        script(*beats, tick, dt=1.0)
        made += script.effects
    script.effects = made
    return script


def finished(script, names="abcd"):
    return script(*(s.Finished(name, name + "1", 1, 9) for name in names))


def test_the_last_checkpoint_of_a_slow_link_is_waited_for():
    """124 M parameters at 50 Mbit/s: 238 s. And a day, if it must be."""
    script = finished(Script().started())
    pass_time(script, 238, stored=6_250_000)
    assert script.state.phase == TRAINING
    pass_time(script, 5000, stored=1)
    script(s.CheckpointComplete(Position(9, 72)))
    assert script.state.phase == DONE and not script.get(s.Say)


def test_a_last_checkpoint_that_stands_still_is_made_again_with_a_word():
    script = finished(Script().started())
    pass_time(script, 300, stored=10)
    pass_time(script, 119)
    assert script.state.phase == TRAINING
    pass_time(script, 3)
    assert "nothing has moved for 121 s" in script.get(s.Say)[0].why and script.state.phase == FLUSHING


def preparing():
    """A view goes back to a checkpoint, which everybody loads."""
    script = Script().started()
    script(s.CheckpointComplete(Position(4, 32)), s.Left("b", "b1", "gone"), s.Left("d", "d1", "gone"))
    script(*(holding(script, name, 5) for name in "ac"))
    assert script.state.phase == PREPARING and script.state.pinned.checkpoint == 4
    return script


def test_who_loads_a_large_checkpoint_is_waited_for_as_long_as_it_moves():
    script = preparing()
    script.answer(s.Prepared, "a")
    pass_time(script, 7200, moved="c")
    assert script.state.phase == PREPARING and "c" in script.state.nodes
    script.answer(s.Prepared, "c")
    assert script.state.phase == TRAINING


def test_who_stands_still_while_a_view_is_prepared_is_put_out():
    script = preparing()
    script.answer(s.Prepared, "a")
    pass_time(script, 300, moved="c")
    pass_time(script, 119)
    assert "c" in script.state.nodes
    pass_time(script, 3)
    assert "c" not in script.state.nodes
    assert script.get(s.SendStop)[0].why == "not prepared, and nothing has moved for 121 s; join again"


def test_a_slow_link_has_more_patience():
    """At 100 kbit/s a megabyte takes 84 s, and only then does a mark change."""
    script = preparing()
    script.machine = Membership(planner, known=Known(rate_bps=lambda name: 1e5))
    script.answer(s.Prepared, "a")
    pass_time(script, 800)
    assert "c" in script.state.nodes
    pass_time(script, 50)
    assert "c" not in script.state.nodes


@pytest.mark.parametrize(("stepped", "patience"), [(False, 600), (True, 120)])
def test_the_first_step_of_a_node_is_not_measured_by_none(stepped, patience):
    """The first step takes 121 s, for it compiles: no limit that begins at 0 puts the node out."""
    script = Script().started().wait(2)
    if stepped:
        script(*(s.StepFinished(name, name + "1", 1, 1, 1.0) for name in "abcd"))
    script(s.Left("c", "c1", "goodbye"))
    script(*(holding(script, name, 1) for name in "ab"))
    pass_time(script, patience - 1)
    assert script.state.phase == FLUSHING and "d" in script.state.nodes
    pass_time(script, 3)
    assert "d" not in script.state.nodes


def test_a_step_takes_no_longer_than_it_was_waited_for():
    """A member that claims an hour for a step would else have everybody's patience for as long."""
    script = Script().started().wait(3)
    script(s.StepFinished("d", "d1", 1, 1, seconds=3600.0))
    assert 2.0 <= script.state.slowest_s <= 5.0
    script(s.StepFinished("d", "d1", 1, 2, seconds=3600.0), dt=1.0)
    assert script.state.slowest_s <= 5.0


def test_steps_that_are_reported_at_once_took_as_long_as_they_did():
    """The coordinator was away for a hundred steps of a minute: whoever computes one now is waited for all the same."""
    script = Script().started().wait(60)
    script(*(s.StepFinished(name, name + "1", 1, 1, 60.0) for name in "abcd"))
    before = script.state.slowest_s
    for step in range(2, 100):
        script(*(s.StepFinished(name, name + "1", 1, step, 60.0) for name in "abcd"), dt=0.0)
    assert script.state.slowest_s == before > 50.0


def test_before_the_first_step_the_plan_says_how_long_one_takes():
    script = Script()
    script.machine = Membership(planner, known=Known(step_s=lambda plan: 90.0))
    assert script.started().state.slowest_s == 90.0
    script.wait(20)
    script(s.StepFinished("d", "d1", 1, 1, seconds=20.0))
    assert script.state.slowest_s == 81.0


# ---- joiners ------------------------------------------------------------------------------------------


def test_a_joiner_that_moves_is_given_all_the_time_that_it_takes():
    script = slow(seconds=4000.0)
    view_of(script, "ab", 5, flushed(script, "c", 0))
    pass_time(script, 4000, moved="c")
    assert script.state.phase == TRAINING and script.state.nodes["c"].behind and not script.get(s.SendFlush)
    script(s.CaughtUp("c", "c1", 2))
    assert script.get(s.SendFlush)[0].why == "c joined and has caught up"


def test_a_joiner_that_cannot_catch_up_stays_a_spare_and_nobody_stands_still():
    script = slow(seconds=4000.0)
    view_of(script, "ab", 5, flushed(script, "c", 0))
    script(s.CaughtUp("c", "c1", 2, failed="round 9 is not kept any more"))
    assert not script.get(s.SendFlush) and script.get(s.Say)[0].why == (
        "c stays a spare: it cannot catch up with the others: round 9 is not kept any more; alone it would fetch for "
        "4000 s: the others would wait for a link 67 times as fast"
    )
    pass_time(script, 4000)
    assert script.state.phase == TRAINING and not script.get(s.SendFlush)
    script(s.Save("somebody wants one"))
    view = view_of(script, "ab", 9, flushed(script, "c", 0))
    assert view.plan.nodes == ("a", "b") and "not kept any more" in view.plan.spares["c"] and view.shadows == ()


def test_a_joiner_whose_snapshot_stands_still_stays_a_spare():
    script = slow(seconds=4000.0)
    view_of(script, "ab", 5, flushed(script, "c", 0))
    pass_time(script, 500, moved="c")
    pass_time(script, 125)
    assert "nothing has moved for 121 s" in script.get(s.Say)[0].why and not script.get(s.SendFlush)


def waited_for():
    """A joiner cannot follow, and what it fetches takes longer than it should have: the others wait."""
    script = slow(seconds=30.0)
    view_of(script, "ab", 5, flushed(script, "c", 0))
    script(s.CaughtUp("c", "c1", 2, failed="round 9 is not kept any more"))
    script(*(holding(script, name, 9) for name in "ab"), flushed(script, "c", 0))
    script.answer(s.Prepared, "ab")
    assert script.state.phase == PREPARING
    return script


def test_nobody_waits_long_for_one_that_cannot_follow():
    script = pass_time(waited_for(), 59, moved="c")
    assert script.state.phase == PREPARING
    pass_time(script, 2, moved="c")
    assert script.state.phase == FLUSHING and "c stays a spare" in script.get(s.Say)[0].why
    view = view_of(script, "ab", 9, flushed(script, "c", 0))
    assert view.plan.nodes == ("a", "b")


def test_all_wait_for_one_that_they_cannot_do_without():
    script, asked = waited_for(), []

    def need_all(names, current, broken):
        asked.append(names)
        if len(names) < 3:
            raise PlanError("too few")
        return planner(names, current, broken, 1)

    script.machine = Membership(need_all, lambda *_: 30.0)
    pass_time(script, 3000, moved="c")
    assert script.state.phase == PREPARING and "c" in script.state.nodes and len(asked) == 1
