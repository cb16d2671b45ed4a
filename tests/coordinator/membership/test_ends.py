"""The end of a run: the last checkpoint is waited for, and a node that goes once it has finished."""

from membership_script import Script, holding

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.members import (
    DONE,
    TRAINING,
)
from farflung.job.sampling import Position


def test_done():
    script = Script().started()
    print_ = (s.Fingerprint("stage-0", 9, 1),)
    script(*(s.Finished(name, name + "1", 1, 9, print_) for name in "abcd"))
    script(s.Left("a", "a1", "done with it"))
    assert script.state.phase == TRAINING and not script.get(s.SendFlush)
    assert script.state.why == "all 9 steps are trained; waiting for the last checkpoint"
    script(s.CheckpointComplete(Position(9, 72)))
    assert script.get(s.Finish) == [s.Finish(9, "the run is done: 9 steps")]
    assert script.state.phase == DONE


def test_a_finished_node_that_goes_away_is_replaced_while_others_have_not_finished():
    script = Script().started()
    script(*(s.Finished(name, name + "1", 1, 9) for name in "abc"))
    script(s.Left("a", "a1", "killed"))
    assert script.get(s.SendFlush) == [s.SendFlush(("b", "c", "d"), 2, "a left: killed")]
    script(*(holding(script, name, 9) for name in "bcd"))
    assert script.get(s.SendView)[0].view.position.step == 9
    script.answer(s.Prepared, "bcd")
    assert script.state.phase == TRAINING and not script.state.finished
    script(*(s.Finished(name, name + "1", 2, 9) for name in script.state.view.plan.nodes))
    script(s.CheckpointComplete(Position(9, 72)))
    assert script.state.phase == DONE


def test_done_without_the_last_checkpoint():
    script = Script().started()
    script(*(s.Finished(name, name + "1", 1, 9) for name in "abcd")).wait(119)
    assert script.state.phase == TRAINING
    script.wait(2)
    assert "the checkpoint of step 9 did not arrive; the newest is of step 0" in script.get(s.Say)[0].why
    assert script.state.phase == DONE
