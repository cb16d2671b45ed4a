"""Members whose histories or weights differ: judged by most, at most once in a while, and never trained on."""

from dataclasses import replace

from membership_script import Script, holding

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.state import FLUSHING, TRAINING
from farflung.job.data.sampling import Position


def told(script, name, step, chain):
    """An answer to the flush with the chain hash of the node's stage."""
    stage = script.state.view.plan.stage_of(name)
    return replace(holding(script, name, step), sections=(s.Section(f"stage-{stage}", step, chain),))


def test_histories_that_differ_are_judged():
    script = Script(6).started("abcdef")
    why = "e and a hold different histories of a section"
    script(s.Accused("e", "e1", "a", "h differs", diverged=True))
    assert script.get(s.SendFlush) == [s.SendFlush(tuple("abcdef"), 2, why)] and not script.get(s.Dial)
    script(*(told(script, name, 5, 8 if name == "a" else 7) for name in "abcdef"))
    assert "a has another chain of rounds" in script.get(s.Say)[0].why
    view = script.get(s.SendView)[0].view
    assert view.holders[0] == ("c", "e") and view.sections[0] == s.Section("stage-0", 5, 7)
    assert why in view.why and ("a", "a1") not in script.state.eligible
    script.answer(s.Prepared, "abcdef")
    assert script.state.phase == TRAINING and ("a", "a1") in script.state.eligible


def test_histories_are_judged_at_most_once_in_10_s():
    script = Script().started()
    script(s.Accused("a", "a1", "c", "h differs", diverged=True))
    script(*(told(script, name, 5, 7) for name in "abcd")).answer(s.Prepared, "abcd")
    script(s.Accused("b", "b1", "d", "h differs", diverged=True), dt=1)
    assert script.state.phase == TRAINING and not script.effects
    script(s.Accused("d", "d1", "b", "h differs", diverged=True)).wait(8)
    assert script.state.phase == TRAINING
    script.wait(2)
    assert script.state.phase == FLUSHING and "b and d hold different histories" in script.state.why


def test_a_difference_with_a_node_outside_the_view_is_nothing():
    script = Script().started()
    script(s.Accused("a", "a1", "x", "h differs", diverged=True), s.Accused("a", "a1", "a", "", diverged=True))
    assert script.state.phase == TRAINING and not script.effects


def test_a_tie_of_histories_goes_back_to_the_checkpoint():
    script = Script().started()
    script(s.CheckpointComplete(Position(4, 32)), s.Accused("a", "a1", "c", "h differs", diverged=True))
    script(*(told(script, name, 5, 8 if name == "a" else 7) for name in "abcd"))
    view = script.get(s.SendView)[0].view
    assert view.checkpoint == 4 and "(a against c): from the checkpoint of step 4" in view.why


def test_nobody_is_judged_after_a_view_that_did_not_start():
    script = Script().started()
    script(s.Left("d", "d1", "gone"))
    script(*(told(script, name, 5, 7) for name in "abc"))
    script(s.Left("b", "b1", "gone"))
    assert script.state.phase == FLUSHING
    script.join("e").wait(1.5)
    answers = told(script, "a", 5, 7), told(script, "c", 5, 8)
    script(*answers)
    assert not script.get(s.SendView) or all(one.chain == 0 for one in script.get(s.SendView)[0].view.sections)
    assert not any("chain" in said.why for said in script.get(s.Say))


def test_disagreement_is_not_trained():
    script = Script().started()
    script(s.CheckpointComplete(Position(4, 32)))
    script(s.Left("d", "d1", "gone"))
    script(*(holding(script, name, 5) for name in "abc"))
    marks = [(s.Fingerprint("stage-0", 5, 1),), (s.Fingerprint("stage-1", 5, 1),), (s.Fingerprint("stage-0", 5, 2),)]
    script(*(s.Prepared(name, name + "1", 2, mark) for name, mark in zip("abc", marks, strict=True)))
    assert script.get(s.Say)[0].why == "a and c hold different weights of stage-0 after round 5"
    assert script.state.phase == FLUSHING and script.state.number == 3
    script(*(holding(script, name, 5) for name in "abc"))
    assert script.get(s.SendView)[0].view.checkpoint == 4
