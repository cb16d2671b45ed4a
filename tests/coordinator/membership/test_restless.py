"""Who comes and goes, or pauses and returns, all the time, does not keep the others from their work."""

from hypothesis import given, settings
from hypothesis import strategies as st
from membership_script import Script, holding, planner, rules, steps

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.faults.restless import MOST, ROWS, WITHIN_S, joined_at, noted, quiet
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.state import FLUSHING, PREPARING, TRAINING, WAITING, State


@given(st.lists(st.floats(0, 400), max_size=60))
def test_nobody_is_set_aside_who_moves_seldom_and_whoever_does_not_is(pauses):
    state, now, times = State(rules()), 0.0, []
    for pause in pauses:
        now += pause
        times = [*(at for at in times if now - at < WITHIN_S), now]
        state, why = noted(state, "a", now)
        assert bool(why) == (len(times) > MOST)
        if why:
            assert f"set aside: it joined or paused {MOST + 1} times" in why
            assert state.held_up_by["a"].until >= now + 600
            times = []
    assert all(len(known) <= MOST for known in state.comings.values())


def test_of_thousands_of_names_only_those_of_late_are_remembered():
    state = State(rules())
    for number in range(2000):
        state, _ = noted(state, f"n{number}", float(number))
    assert len(state.comings) <= WITHIN_S


@settings(max_examples=50)
@given(st.lists(st.floats(0.01, 0.99), min_size=40, max_size=80))
def test_a_row_of_joins_puts_a_beginning_off_for_a_while_alone(pauses):
    state, now = joined_at(State(rules()), 0.0), 0.0
    for pause in pauses:
        now += pause
        assert quiet(state, 1.0, now) == (now - state.row_since >= ROWS)
        state = joined_at(state, now)
    assert state.row_since == 0.0
    assert quiet(state, 1.0, now + 1.5)
    assert joined_at(state, now + 5.0).row_since == now + 5.0


def settle(script, step=4, limit=40):
    """Everybody who is there answers, until a view trains; how many view changes that took."""
    before = script.state.number
    for _ in range(limit):
        if script.state.phase == TRAINING:
            break
        change, phase = script.state.change, script.state.phase
        if phase == FLUSHING:
            for name in sorted(change.awaited - set(change.flushed)):
                place = script.state.view is not None and name in script.state.view.plan
                answer = holding(script, name, step) if place else s.Flushed(name, session(script, name), change.number)
                if script.state.phase == FLUSHING:
                    script(answer)
        elif phase == PREPARING:
            for name in sorted(change.awaited - set(change.prepared)):
                if script.state.phase == PREPARING:
                    script(s.Prepared(name, session(script, name), change.number))
        script.wait(0.5)
    assert script.state.phase == TRAINING
    return script.state.number - before


def session(script, name):
    return script.state.nodes[name].session


def trained():
    script = Script(wanted=2)
    script.machine = Membership(lambda names, current, broken: planner(names, current, broken, 1))
    script.started("abc")
    steps(script, 3)
    return script


def test_who_pauses_and_returns_all_the_time_is_set_aside_and_the_others_train():
    script, said = trained(), []
    for _ in range(40):
        script(s.Leaving("c", "c1", "paused by its owner", stays=True))
        said += script.get(s.Say)
        settle(script)
        script(s.Back("c", "c1"))
        script.wait(2)
        settle(script)
    number = script.state.number
    assert [one.node for one in said] == ["c"] and f"it joined or paused {MOST + 1} times" in said[0].why
    assert set(script.state.view.plan.nodes) == {"a", "b"} and number < 2 * (MOST + 3)


def test_who_joins_again_all_the_time_is_set_aside_and_the_others_train():
    script = trained()
    for life in range(2, 40):
        script.join("c", session=str(life))
        settle(script)
        script(s.Measured("c", f"c{life}"), s.Heard("c", f"c{life}"))
        script.wait(2)
        settle(script)
    assert set(script.state.view.plan.nodes) == {"a", "b"} and script.state.number < 2 * (MOST + 3)
    assert "set aside" in script.state.nodes["c"].stuck
    script(s.Readmit("c", "c is readmitted"))
    script.wait(2)
    settle(script)
    assert "c" in script.state.view.plan.nodes


def test_a_report_that_comes_again_is_no_second_pause():
    script = trained()
    for _ in range(40):
        script(s.Leaving("c", "c1", "paused by its owner", stays=True))
    assert not script.state.held_up_by


def test_names_that_join_in_a_row_do_not_keep_a_run_from_its_beginning():
    script = Script(wanted=2)
    script.join("a", "b")
    for number in range(60):
        script(s.Joined(f"x{number}", f"x{number}1", "x:1"))
        script(s.Beats(tuple(script.heartbeats())), s.Tick(), dt=0.5)
        for name in "ab":
            script(s.Measured(name, name + "1"))
        if script.state.phase != WAITING:
            break
    assert script.state.phase == FLUSHING and script.now <= ROWS + 2
