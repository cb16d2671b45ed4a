"""A view change waits for a node that says that it moves as long as what it has to do can take, and no longer."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membership_script import LAYERS, Script, holding, planner

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.faults.overdue import FILES_BPS, LEAST_BPS, longest_s
from farflung.coordinator.membership.faults.waits import MOVING
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.state import FLUSHING, PREPARING, TRAINING, WAITING, Known
from farflung.scheduler.errors import PlanError

QUICK = {"flush_s": 6.0, "prepare_s": 6.0, "first_s": 6.0}
SIZES, RATES = st.floats(0, 1e13), st.floats(1e5, 1e11)


@given(st.floats(1, 1e4), SIZES, RATES, st.floats(1 / MOVING, 100.0))
def test_whoever_fetches_at_a_tenth_of_the_measured_rate_is_waited_for(least, size, bps, part):
    """Where the link carries training at all."""
    carried = max(part * bps, LEAST_BPS)
    took = 8.0 * size / carried
    assert longest_s(least, size, bps) >= took * (1 - 1e-9)
    assert longest_s(least, size, 0.0) >= took * (1 - 1e-9), "nobody measured it"


@given(st.floats(1, 1e4), SIZES, st.floats(0, 1e11))
def test_nobody_is_waited_for_longer_by_claiming_a_slow_link(least, size, bps):
    assert longest_s(least, size, bps) <= max(MOVING * least, 8.0 * size / LEAST_BPS)
    assert longest_s(least, 0.0, bps) == MOVING * least


def test_a_stage_of_70_b_over_50_mbit_is_waited_for_two_days_and_more():
    size = 70e9 / 8 * 12
    takes = 8 * size / 50e6
    assert takes > 4 * 3600 and longest_s(120.0, size, 50e6) == pytest.approx(10 * takes)


def pass_time(script, seconds, until=None, silent=()):
    """Everybody's mark grows with every heartbeat. All effects, until one of a kind is among them."""
    made, end = [], script.now + seconds
    while script.now < end and not (until and [one for one in made if isinstance(one, until)]):
        for _ in range(min(20, int(end - script.now))):
            beats = tuple(
                replace(beat, moved=script.state.nodes[beat.name].moved + (beat.name not in silent))
                for beat in script.heartbeats()
            )
            script(s.Beats(beats), s.Tick(), dt=1.0)
            made += script.effects
    return made


def of(made, kind):
    return [one for one in made if isinstance(one, kind)]


def started(bps=0.0, layer_bytes=0.0, names="abcd", **more):
    script = Script(len(names), layer_bytes=(layer_bytes,) * LAYERS, **more)
    script.machine = Membership(planner, known=Known(slowest_bps=lambda name: bps))
    script.started(names)
    script(*(s.StepFinished(name, name + "1", 1, 1, 1.0) for name in names), dt=2.0)
    return script


def flushing(**more):
    """Somebody left, and d, which says that it moves, has not answered."""
    script = started(**more)
    script(s.Left("c", "c1", "goodbye"))
    script(*(holding(script, name, 1) for name in "ab"))
    assert script.state.phase == FLUSHING
    return script


def test_who_only_says_that_it_moves_does_not_hold_a_flush_up():
    script = flushing(layer_bytes=1e12)
    assert not of(pass_time(script, MOVING * 120 - 20), s.Say) and script.state.phase == FLUSHING
    made = pass_time(script, 100, until=s.SendView)
    (said,) = [one for one in of(made, s.Say) if one.node == "d"]
    assert said.why == (
        "d is set aside: d did not answer the flush within 1200 s, which is 10 times what it takes, and reports "
        "progress; it may have a place again in 10 min"
    )
    assert of(made, s.SendView)[0].view.plan.nodes == ("a", "b") and "d" in script.state.nodes
    script.answer(s.Prepared, "ab")
    assert script.state.phase == TRAINING
    assert not of(pass_time(script, 400), s.SendFlush), "its heartbeats bring it no place"
    script(s.Left("d", "d1", "gone")).join("d", session="2")
    assert not of(pass_time(script, 60), s.SendFlush), "nor does another life"


def preparing(script, checkpoint=False, late="b"):
    """d left; the holders a and c need nothing, b gets layers of which it held none."""
    if checkpoint:
        script(s.CheckpointComplete(replace(script.state.newest, step=1)))
    script(s.Left("d", "d1", "goodbye"), s.Left("b", "b1", "goodbye")) if checkpoint else script(
        s.Left("d", "d1", "goodbye")
    )
    names = "ac" if checkpoint else "abc"
    script(*(holding(script, name, 1) for name in names))
    assert script.state.phase == PREPARING and (script.state.pinned.checkpoint >= 0) == checkpoint
    script.answer(s.Prepared, [name for name in names if name != late])
    return script


def test_a_holder_that_only_says_that_it_moves_does_not_hold_a_view_up():
    """It has nothing to fetch, however large the model is."""
    script = preparing(started(bps=50e6, layer_bytes=1e12), late="a")
    assert "a" in script.state.pinned.holders[0]
    assert not of(pass_time(script, MOVING * 120 - 20), s.SendFlush)
    flush = of(pass_time(script, 100, until=s.SendFlush), s.SendFlush)[0]
    assert "a is set aside: a did not prepare view 2 within 1200 s" in flush.why and "a" not in flush.to


def test_who_loads_a_large_checkpoint_over_a_slow_line_is_waited_for():
    """Four layers of 0.3 GB at 50 Mbit/s: three minutes, if nobody shares the coordinator's line."""
    script = preparing(started(bps=50e6, layer_bytes=3e8, **QUICK), checkpoint=True, late="c")
    assert not of(pass_time(script, MOVING * 4 * 8 * 3e8 / 50e6 - 40), s.SendFlush)
    assert script.state.phase == PREPARING
    assert of(pass_time(script, 100, until=s.SendFlush), s.SendFlush)[0].to == ("a",)


def test_a_fast_node_may_wait_for_the_coordinators_line():
    fast = preparing(started(bps=1e10, layer_bytes=3e8, **QUICK), checkpoint=True, late="c")
    assert not of(pass_time(fast, MOVING * 4 * 8 * 3e8 / FILES_BPS - 40), s.SendFlush)


def test_what_silence_there_was_of_the_coordinator_is_nobodys_delay():
    script = flushing(**QUICK)
    pass_time(script, MOVING * 10 * script.state.slowest_s - 20)
    script.now += 7200.0  # its machine slept
    assert not of(pass_time(script, 100), s.Say) and script.state.phase == FLUSHING


def test_who_cannot_be_done_without_is_named_and_waited_for():
    def needs_three(names, current, broken):
        if len(names) < 3:
            raise PlanError("too few")
        return planner(names, current, broken)

    script = flushing(**QUICK)
    script.machine = Membership(needs_three)
    (said,) = of(pass_time(script, 1000), s.Say)
    assert said.node == "d" and "nobody can train without it, so all wait" in said.why
    assert script.state.phase == FLUSHING and "d" in script.state.change.awaited


@settings(max_examples=25)
@given(st.data())
def test_a_liar_in_any_place_delays_every_change_by_a_bounded_time(data):
    """Honest nodes answer at once, one says in every phase that it moves and answers when it likes, or never."""
    size = data.draw(st.sampled_from([0.0, 1e7, 2e7]))
    run = started(layer_bytes=size, **QUICK)
    liar = data.draw(st.sampled_from("abcd"))
    other = data.draw(st.sampled_from([name for name in "abcd" if name != liar]))
    answers = data.draw(st.sampled_from([(), (s.Flushed,)]))
    bound = max(MOVING * 10 * run.state.slowest_s, 4 * 8 * size / LEAST_BPS) + 50.0
    run(s.Left(other, other + "1", "goodbye"))
    begun = run.now
    while run.state.phase != TRAINING:
        change, phase = run.state.change, run.state.phase
        assert run.now - begun <= 2 * bound and phase != WAITING
        kind = s.Flushed if phase == FLUSHING else s.Prepared
        had = change.flushed if kind is s.Flushed else change.prepared
        for name in sorted(change.awaited - set(had)):
            if (name != liar or kind in answers) and run.state.change is not None:
                run(holding(run, name, 1) if kind is s.Flushed else s.Prepared(name, name + "1", change.number))
        if run.state.phase == phase:
            pass_time(run, 20)
    assert liar not in run.state.view.plan.nodes and set(run.state.view.plan.nodes) == set("abcd") - {liar, other}
    assert "reports progress" in run.state.nodes[liar].stuck
