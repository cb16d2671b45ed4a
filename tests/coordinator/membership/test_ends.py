"""The end of a run: the last checkpoint is waited for, and a node that goes once it has finished."""

from membership_script import Script, holding

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.resuming.last_checkpoint import AGAIN_S
from farflung.coordinator.membership.state import DONE, FLUSHING, TRAINING, WAITING
from farflung.job.data.sampling import Position


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


def test_without_its_last_checkpoint_a_run_is_not_done():
    """It is made again in another view, until it comes."""
    script = Script().started()
    for view in (1, 2, 3):
        script(*(s.Finished(name, name + "1", view, 9) for name in "abcd")).wait(119)
        assert script.state.phase == TRAINING
        script.wait(2)
        assert "the checkpoint of step 9 did not arrive; the newest is of step 0" in script.get(s.Say)[0].why
        assert "--give-up" in script.get(s.Say)[0].why and script.state.phase == FLUSHING
        script(*(holding(script, name, 9) for name in "abcd"))
        assert script.state.pinned.save and script.state.pinned.position.step == 9
        script.answer(s.Prepared, "abcd")
    script(*(s.Finished(name, name + "1", 4, 9) for name in "abcd"))
    script(s.CheckpointComplete(Position(9, 72)))
    assert script.state.phase == DONE and not script.state.saving


def test_a_disk_that_is_full_at_the_end_is_said_at_once_and_tried_again():
    script = Script().started()
    script(s.NotStored(9, "cannot write stage-0 of step 9: No space left on device"))
    assert not script.effects
    script(*(s.Finished(name, name + "1", 1, 9) for name in "abcd"))
    [said] = script.get(s.Say)
    assert "(cannot write stage-0 of step 9: No space left on device): the run is not done" in said.why
    script(s.NotStored(9, "cannot write stage-1 of step 9: No space left on device")).wait(AGAIN_S - 1)
    assert script.state.phase == TRAINING and not script.get(s.Say) and "No space left" in script.state.why
    script.wait(2)
    assert script.state.phase == FLUSHING and not script.get(s.Say)
    script(*(holding(script, name, 9) for name in "abcd"))
    assert script.state.pinned.save
    script.answer(s.Prepared, "abcd")
    script(*(s.Finished(name, name + "1", 2, 9) for name in "abcd"), s.CheckpointComplete(Position(9, 72)))
    assert script.state.phase == DONE


def test_a_run_that_is_done_and_loses_all_nodes_before_its_last_checkpoint_waits_for_others():
    script = Script().started()
    script(*(s.Finished(name, name + "1", 1, 9) for name in "abcd"))
    script(*(s.Left(name, name + "1", "gone") for name in "abcd"))
    assert script.state.phase == WAITING


def test_done_without_the_last_checkpoint_for_who_gives_it_up():
    script = Script(give_up=True).started()
    script(*(s.Finished(name, name + "1", 1, 9) for name in "abcd")).wait(121)
    assert "the checkpoint of step 9 did not arrive; the newest is of step 0" in script.get(s.Say)[0].why
    assert script.state.phase == DONE
