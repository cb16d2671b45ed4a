"""Who joins while others train: they go on until the joiner can take a place, and an old session is shut out."""

from membership_script import Script, holding, silence

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.state import FLUSHING, TRAINING


def test_joined_and_never_came():
    script = Script().started()
    script(s.Joined("e", "e1", "e:1"))
    silence(script, "e", 100)
    assert "e" in script.state.nodes
    silence(script, "e", 30)
    assert "e" not in script.state.nodes and "did not come within 120 s" in script.state.why


def test_joiner_measures_while_the_others_train():
    script = Script().started()
    script.join("e", "f").wait(1.5)
    assert [one.to for one in script.get(s.SendMeasure)] == ["e", "f"]
    assert len(script.get(s.SendMeasure)[0].peers) == 5
    assert script.state.phase == TRAINING
    script(s.Measured("e", "e1"), s.Measured("f", "f1"))
    assert script.get(s.SendFlush)[0].why == "e, f joined"
    assert script.state.change.awaited == frozenset("abcdef")


def test_joiner_that_the_plan_does_not_want_is_told_and_costs_nothing():
    script = Script().started()
    script.join("e").wait(1.5)
    script(s.Measured("e", "e1"))
    assert script.state.phase == TRAINING
    assert script.get(s.SendNotice)[0].why == "e is a spare: one too many"
    script.wait(3)
    assert not script.effects
    script(s.Left("a", "a1", "gone"))
    assert script.state.change.awaited == frozenset("bcde")


def test_joiner_that_still_loads_its_libraries_is_not_waited_for():
    script = Script().started()
    script.join("e", "f")
    beats = [s.Heard(beat.name, beat.session, beat.name not in "ef") for beat in script.heartbeats()]
    for _ in range(10):
        script(*beats, s.Tick(), dt=0.5)
        assert not script.effects
    script(s.Left("a", "a1", "gone"))
    assert script.state.change.awaited == frozenset("bcd")
    script(*(holding(script, name, 5) for name in "bcd")).answer(s.Prepared, "bcd").wait(1.5)
    assert [one.to for one in script.get(s.SendMeasure)] == ["e", "f"]


def test_new_session_fences_the_old():
    script = Script().started()
    script(s.Joined("a", "a2", "a:2"))
    assert s.Fence("a", "a1", "a came back as a new session") in script.effects
    assert script.state.phase == FLUSHING and "a" not in script.state.change.awaited
    script(s.Flushed("a", "a1", 2, 5))
    assert not script.state.change.flushed
