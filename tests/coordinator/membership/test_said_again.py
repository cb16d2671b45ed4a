"""Orders and reports that are lost: whoever waits for one says again what it has said, and gets it."""

from dataclasses import replace

from membership_script import Script

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.state import FLUSHING, PREPARING, TRAINING


def flushing():
    script = Script().join("a", "b", "c", "d").wait(1.5)
    script(*(s.Measured(name, name + "1") for name in "abc"))
    assert script.state.phase == FLUSHING
    return script


def test_a_flush_is_sent_again_to_who_has_not_answered():
    script = flushing()
    script.answer(s.Flushed, "ab")
    sent = [effect for effect in script.wait(24).effects if isinstance(effect, s.SendFlush)]
    assert [one.to for one in sent] == [("c", "d"), ("c", "d")]


def test_who_flushes_again_gets_the_view_and_who_prepares_again_its_start():
    script = flushing()
    script.answer(s.Flushed, "abcd")
    assert script.state.phase == PREPARING
    script.answer(s.Flushed, "a")
    assert [(one.to, one.view.number) for one in script.get(s.SendView)] == [(("a",), 1)]
    script.answer(s.Prepared, "a")
    script.answer(s.Flushed, "a")
    assert script.effects == [], "it has prepared: what it said before has come late"
    script.answer(s.Prepared, "bcd")
    assert script.state.phase == TRAINING
    script(s.Prepared("b", "b1", 1))
    assert script.get(s.SendStart) == [s.SendStart(("b",), 1, "view 1 trains")]
    script(s.Prepared("b", "b1", 7))
    assert script.effects == []


def test_who_waits_for_a_view_that_is_void_is_told_of_the_next():
    script = flushing()
    script.answer(s.Flushed, "abcd")
    script(s.Left("d", "d1", "gone"))
    assert script.state.phase == FLUSHING and script.state.number == 2
    script(s.Prepared("a", "a1", 1))
    assert [(one.to, one.view) for one in script.get(s.SendFlush)] == [(("a",), 2)]
    script.answer(s.Flushed, "a")
    script(s.Prepared("a", "a1", 1))
    assert script.effects == []


def test_that_it_has_caught_up_counts_once():
    script = Script().started().join("e").wait(2)
    script(s.Heard("e", "e1", True), s.Measured("e", "e1"), s.Tick())
    state = script.state
    state = replace(state, view=replace(state.view, shadows=(s.Shadow("e", "a", True),)))
    script.state = state
    script(s.CaughtUp("e", "e1", state.view.number), dt=5.0)
    first = script.state.nodes["e"].caught_up
    script(s.CaughtUp("e", "e1", state.view.number), dt=5.0)
    assert first is not None and script.state.nodes["e"].caught_up == first
