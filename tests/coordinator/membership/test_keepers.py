"""A member that does not send its part of the last checkpoint does not keep the run from its end."""

from hypothesis import given
from hypothesis import strategies as st
from membership_script import LAYERS, Script, holding, planner

from farflung.coordinator.checkpoints.acceptance import lacking
from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.faults.keepers import blamed
from farflung.coordinator.membership.faults.overdue import LEAST_BPS
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.state import DONE, FLUSHING, TRAINING, Known
from farflung.job.data.sampling import Position
from farflung.scheduler.plans import Plan

GRID = st.tuples(st.integers(1, 4), st.integers(1, 4)).map(
    lambda size: Plan(
        tuple(tuple(f"n{row}-{stage}" for stage in range(size[0])) for row in range(size[1])),
        tuple((stage, stage) for stage in range(size[0])),
        (1,) * size[1],
    )
)


@given(GRID, st.data())
def test_only_keepers_whose_stage_others_hold_are_blamed(plan, data):
    keepers = [plan.keeper(stage) for stage in range(len(plan.stages))]
    late = data.draw(st.sets(st.sampled_from(keepers)))
    found = blamed(plan, late)
    assert set(found) <= late
    for name in found:
        assert set(plan.group(plan.stage_of(name))) - late, "somebody is left who holds it"
    if len(set(keepers)) > 1 and late == set(keepers):
        assert not found, "the coordinator's own line"
    if len(late) == 1 and len(plan.pipelines) > 1 and len(set(keepers)) > 1:
        assert set(found) == late


def test_whose_file_is_late_is_what_the_coordinator_sees():
    view = Script().started().state.view
    here = {(view.number, 9, "stage-0.safetensors")}
    assert lacking(view, 9, lambda *which: which in here) == (view.plan.keeper(1),)
    assert lacking(view, 9, lambda *which: True) == ()


def at_the_end(bps=1e8, **more):
    script = Script(**more)
    script.machine = Membership(planner, known=Known(slowest_bps=lambda name: bps))
    script.started()
    return script(*(s.Finished(name, name + "1", 1, 9) for name in "abcd"))


def wait(script, seconds, late, grows=0):
    """Heartbeats; bytes of checkpoints arrive, so many a second; until something is decided."""
    for _ in range(int(seconds)):
        script(*script.heartbeats(), s.Tick(script.state.stored + grows, late), dt=1.0)
        if script.state.phase != TRAINING:
            break
    return script


def test_who_sends_nothing_has_no_place_when_it_is_made_again():
    script = at_the_end()
    keeper = script.state.view.plan.keeper(1)
    assert wait(script, 119, (keeper,)).state.phase == TRAINING
    wait(script, 3, (keeper,))
    assert script.state.phase == FLUSHING and keeper not in script.state.change.awaited
    said = {one.node: one.why for one in script.get(s.Say)}
    assert said[keeper] == f"{keeper} is set aside: its part of the last checkpoint does not come, and others have it"
    others = sorted(script.state.change.awaited)
    script(*(holding(script, name, 9) for name in others))
    assert keeper not in script.state.pinned.plan.nodes and script.state.pinned.save
    script.answer(s.Prepared, others)
    script(*(s.Finished(name, name + "1", 2, 9) for name in script.state.view.plan.nodes))
    script(s.CheckpointComplete(Position(9, 72)))
    assert script.state.phase == DONE


def test_who_sends_it_a_byte_at_a_time_is_waited_for_ten_times_as_long_as_it_takes():
    size = 25e6
    script = at_the_end(layer_bytes=(size,) * LAYERS, bps=8e6)
    keeper = script.state.view.plan.keeper(0)
    assert 8 * LAYERS * size / LEAST_BPS == 800.0
    assert wait(script, 1195, (keeper,), grows=1).state.phase == TRAINING
    wait(script, 10, (keeper,), grows=1)
    assert script.state.phase == FLUSHING and keeper not in script.state.change.awaited
    assert "had 1200 s, ten times what it takes" in script.state.change.why


def test_a_large_one_over_a_slow_link_is_waited_for():
    """10 GB at 50 Mbit/s: 27 minutes, and ten times as long if it must be."""
    script = at_the_end(layer_bytes=(2.5e9,) * LAYERS, bps=50e6)
    assert wait(script, 3000, ("a",), grows=1).state.phase == TRAINING


def test_where_every_stage_is_late_nobody_is_blamed():
    script = at_the_end()
    keepers = tuple(script.state.view.plan.keeper(stage) for stage in (0, 1))
    wait(script, 125, keepers)
    assert script.state.phase == FLUSHING and script.state.change.awaited == set("abcd")
