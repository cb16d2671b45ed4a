"""Checkpoints that nodes cannot read, and ends on which nodes do not agree: one word is not enough."""

from dataclasses import replace

from membership_script import Script, holding

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.faults.unreadable import OTHERS_S, Verdict, judged
from farflung.coordinator.membership.state import DONE, FLUSHING, PREPARING, TRAINING
from farflung.job.data.sampling import Position
from farflung.scheduler.plans import Plan

EARLIER, LATER = Position(4, 32), Position(8, 64)


def loading(names="abcd"):
    """A view that begins with the checkpoint of step 8, for stage 0 (a, c, ...) and stage 1 (b, d, ...)."""
    script = Script(wanted=len(names)).started(names)
    script(s.CheckpointComplete(EARLIER), s.CheckpointComplete(LATER), s.Save("now"))
    script(*(s.Flushed(name, name + "1", script.state.change.number) for name in names))  # nobody holds anything
    assert script.state.phase == PREPARING and script.state.pinned.checkpoint == 8
    return script


def accuse(script, *names, voice=""):
    number = script.state.change.number
    file, why = "stage-0.safetensors", "a bad header"
    return script(*(s.Unreadable(name, name + "1", number, file, why, voice) for name in names))


def test_a_checkpoint_that_is_damaged_is_put_aside_on_nobodys_word():
    script = accuse(loading(), "a")
    (look,) = script.get(s.LookAt)
    assert look.step == 8 and look.why.startswith("a cannot read stage-0.safetensors of the checkpoint of step 8")
    assert [said.why for said in script.get(s.Say)] == [look.why]
    script(s.CheckpointLost(8, EARLIER, None, "the checkpoint of step 8 is damaged"))
    assert script.state.phase == FLUSHING and set(script.state.nodes) == set("abcd")
    script(*(s.Flushed(name, name + "1", script.state.change.number) for name in "abcd"))
    assert script.get(s.SendView)[0].view.checkpoint == 4


def test_one_member_throws_no_good_checkpoint_away():
    script = accuse(loading(), "a", "a")
    assert len(script.get(s.LookAt)) == 1
    script(s.CheckpointSound(8))
    assert script.state.phase == PREPARING and not script.get(s.SendStop), "the others have not spoken"
    script.answer(s.Prepared, "bcd")
    (stop,) = script.get(s.SendStop)
    assert stop.to == ("a",) and stop.refused and "test its memory and its disk, and join again" in stop.why
    assert script.state.newest == LATER and not script.get(s.PutAside)
    script(*(s.Flushed(name, name + "1", script.state.change.number) for name in "bcd"))
    assert script.get(s.SendView)[0].view.checkpoint == 8


def test_a_lone_member_throws_no_checkpoint_away_either():
    script = accuse(loading("a"), "a")
    script(s.CheckpointSound(8))
    assert not script.get(s.PutAside) and script.get(s.SendStop)[0].to == ("a",) and script.state.newest == LATER


def test_most_members_of_a_stage_do():
    script = accuse(loading("abcdef"), "a", "c")
    script(s.CheckpointSound(8))
    (aside,) = script.get(s.PutAside)
    assert aside.step == 8 and aside.why == "a, c cannot read stage-0.safetensors: a bad header"
    script.answer(s.Prepared, "bdef")
    assert script.state.phase == PREPARING
    script(s.CheckpointLost(8, EARLIER, None, "it is put aside"))
    assert script.state.phase == FLUSHING and script.state.newest == EARLIER and len(script.state.nodes) == 6


def test_names_of_one_ticket_are_one_voice():
    script = accuse(loading("abcdef"), "a", "c", voice="ticket-1")
    script(s.CheckpointSound(8)).wait(9)
    assert script.state.phase == PREPARING, "others may yet say so"
    script.wait(2)
    assert not script.get(s.PutAside) and [one.to for one in script.get(s.SendStop)] == [("a",), ("c",)]


def test_one_that_comes_again_under_another_name_is_still_one():
    plan = Plan((("b",), ("c",)), ((0, 3),), (2, 2))
    said = {name: s.Unreadable(name, name + "1", 3, "stage-0.safetensors", "no", "ticket-1") for name in "ac"}
    found = judged(plan, 8, said, {"c"}, {"b"}, 0.0)
    assert not found.aside and set(found.wrong) == {"c"}
    found = judged(plan, 8, {**said, "a": replace(said["a"], voice="ticket-2")}, {"c"}, {"b"}, 0.0)
    assert found.aside == "a, c cannot read stage-0.safetensors: no"
    assert judged(plan, 8, said, {"c"}, set(), OTHERS_S - 1) == Verdict(), "b may yet say so"


def test_who_was_put_out_for_it_counts_when_others_find_the_same():
    """The members of a stage get its weights from one of them: they find out one after the other."""
    script = accuse(loading("abcdef"), "a")
    script(s.CheckpointSound(8)).wait(11)
    script(*(s.Flushed(name, name + "1", script.state.change.number) for name in script.state.change.awaited))
    stage = script.state.pinned.plan.group(0)
    accuse(script, stage[0])
    script(s.CheckpointSound(8))
    assert [one.step for one in script.get(s.PutAside)] == [8]


def test_who_can_read_it_after_all_takes_the_word_back():
    script = accuse(loading(), "a")
    script(s.CheckpointSound(8))
    script.answer(s.Prepared, "abcd")
    assert script.state.phase == TRAINING and set(script.state.nodes) == set("abcd")


def test_words_about_another_view_or_another_beginning_are_not_heard():
    script = loading()
    script(s.Unreadable("a", "a1", 1, "stage-0.safetensors", "a bad header"))
    assert not script.get(s.LookAt)
    script.answer(s.Prepared, "abcd")
    script(s.Unreadable("a", "a1", script.state.number, "stage-0.safetensors", "a bad header"))
    assert not script.get(s.LookAt) and script.state.phase == TRAINING


def finish(script, step, content):
    view = script.state.view
    for name in view.plan.nodes:
        mark = (s.Fingerprint(f"stage-{view.plan.stage_of(name)}", step, content(name)),)
        script(s.Finished(name, name + "1", view.number, step, mark))


def again(script, checkpoint):
    """Everybody answers the flush, and takes up at this checkpoint."""
    names = sorted(script.state.change.awaited)
    script(*(holding(script, name, 9) for name in names))
    (sent,) = script.get(s.SendView)
    assert sent.view.checkpoint == checkpoint
    script.answer(s.Prepared, names)
    assert script.state.phase == TRAINING


def test_a_tie_at_the_end_goes_back_to_a_checkpoint_and_trains_on():
    script = Script().started()
    script(s.CheckpointComplete(EARLIER))
    finish(script, 9, lambda name: 666 * (name == "c"))
    assert script.state.phase == FLUSHING and not script.get(s.Fail)
    assert any("at the end, a and c hold different weights of stage-0" in said.why for said in script.get(s.Say))
    again(script, 4)
    finish(script, 9, lambda name: 7)
    script(s.CheckpointComplete(Position(9, 72)))
    assert script.state.phase == DONE and script.get(s.Finish)[0].step == 9


def test_the_checkpoint_of_an_end_on_which_they_do_not_agree_is_nobodys():
    script = Script().started()
    script(s.CheckpointComplete(EARLIER), s.CheckpointComplete(Position(9, 72)))
    finish(script, 9, lambda name: 666 * (name == "c"))
    names = sorted(script.state.change.awaited)
    script(*(holding(script, name, 9) for name in names))
    assert script.state.phase == FLUSHING, "it is not known yet which checkpoint is left"
    script(s.CheckpointLost(9, EARLIER, None, "it is put aside"))
    assert script.get(s.SendView)[0].view.checkpoint == 4


def test_the_checkpoint_of_a_beginning_on_which_they_do_not_agree_is_nobodys():
    script = Script().started()
    script(s.CheckpointComplete(EARLIER), s.CheckpointComplete(LATER), s.Save("now"))
    script(*(holding(script, name, 8) for name in "abcd"))
    view = script.state.pinned
    marks = {name: s.Fingerprint(f"stage-{view.plan.stage_of(name)}", 8, 666 * (name == "c")) for name in "abcd"}
    script(*(s.Prepared(name, name + "1", view.number, (marks[name],)) for name in "abcd"))
    assert [one.step for one in script.get(s.PutAside)] == [8]


def test_who_never_agrees_at_the_end_is_planned_apart_and_the_run_ends():
    script = Script().started()
    script(s.CheckpointComplete(EARLIER))
    for number in (1, 2):
        finish(script, 9, lambda name, number=number: 100 * number + 666 * (name == "c"))
        assert script.state.phase == FLUSHING
        again(script, 4)
    assert ("a", "c") in script.state.broken
    finish(script, 9, lambda name: 300 + 666 * (name == "c"))  # this planner does not know how to part them
    assert script.state.phase == DONE and script.get(s.Fail)


def test_a_tie_at_the_end_is_not_hidden_by_one_who_is_outvoted_elsewhere():
    script = Script(wanted=8).started("abcdefgh")
    script(s.CheckpointComplete(EARLIER), s.CheckpointComplete(Position(9, 72)))
    finish(script, 9, lambda name: {"c": 666, "f": 5, "h": 5}.get(name, 1))
    assert script.state.phase == FLUSHING
