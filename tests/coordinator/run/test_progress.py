"""Sums of steps and evaluations over the nodes."""

import math

import pytest

from farflung.coordinator.run.reports.border import absurd
from farflung.coordinator.run.reports.ledger import Progress
from farflung.coordinator.store.rows import SetRow
from farflung.proto.control_pb2 import EvalDone, SetDone, StepDone
from farflung.scheduler.plans import Plan

PLAN = Plan((("a", "b"), ("c", "d")), ((0, 1), (2, 3)), (2, 2))


def report(step, view=1, **keys):
    return StepDone(view=view, step=step, **{"seconds": 0.5, "bytes_updates": 3, "bytes_dense": 30, **keys})


def test_a_step_is_the_sum_of_all_nodes():
    progress = Progress()
    progress.enter(1, PLAN, 0, 0.0)
    assert progress.step("a", report(1, seconds=0.9, notes='{"hits": 1}'), 1.0) == []
    assert progress.step("c", report(1), 1.0) == []
    assert progress.step("b", report(1, loss_sum=20.0, tokens=10, samples=2), 1.0) == []
    assert progress.step("a", report(2), 1.0) == [], "a fast node may be a step ahead"
    (row,) = progress.step("d", report(1, loss_sum=40.0, tokens=10, samples=2, notes="no json"), 2.0)
    assert (row.step, row.view, row.loss, row.samples, row.tokens) == (1, 1, 3.0, 4, 20)
    assert (row.seconds, row.bytes_updates, row.bytes_dense) == (0.9, 12, 120)
    assert row.notes == '{"a": {"hits": 1}}' and row.hit_rate is None
    progress.step("b", report(2, notes='{"aqsgd_hit_rate": 0.5}'), 1.0)
    progress.step("c", report(2), 1.0)
    (row,) = progress.step("d", report(2, notes='{"aqsgd_hit_rate": 0.75}'), 2.0)
    assert row.hit_rate == 0.625
    assert progress.step("x", report(2), 1.0) == [] and progress.step("b", report(2, view=9), 1.0) == []


@pytest.mark.parametrize("rate", ['"much"', "null", "NaN", "1e999", "-1", "[]"])
def test_a_hit_rate_that_is_none_does_not_count(rate):
    progress = Progress()
    progress.enter(1, PLAN, 0, 0.0)
    for name in "abc":
        progress.step(name, report(1, notes='{"aqsgd_hit_rate": 0.5}'), 1.0)
    (row,) = progress.step("d", report(1, notes=f'{{"aqsgd_hit_rate": {rate}}}'), 1.0)
    assert row.hit_rate == 0.5


def test_notes_that_nobody_can_read_are_refused():
    for bracket in "[{":
        assert absurd(report(1, notes=50 * bracket), 1, "abcd") == ""
        assert absurd(report(1, notes=5000 * bracket), 1, "abcd") == "its notes have more than 100 lists and tables"


def test_a_view_change_closes_what_was_finished_and_drops_the_rest():
    progress = Progress()
    progress.enter(1, PLAN, 0, 0.0)
    for name in "abc":
        progress.step(name, report(1), 1.0)
        progress.step(name, report(2), 1.0)
    (row,) = progress.enter(2, PLAN, 1, 3.0)
    assert row.step == 1 and row.view == 1 and row.loss is None and row.bytes_updates == 9
    assert progress.step("d", report(2), 1.0) == []


def test_evaluations_need_every_pipeline():
    progress = Progress()
    progress.enter(1, PLAN, 0, 0.0)
    first = EvalDone(view=1, step=5, loss_sum=10.0, tokens=10, correct=5, predictions=10)
    assert progress.evaluation("a", first, 1.0) is None, "not a last stage"
    assert progress.evaluation("b", first, 1.0) is None
    row, sets = progress.evaluation(
        "d", EvalDone(view=1, step=5, loss_sum=20.0, tokens=5, correct=5, predictions=10), 1.0
    )
    assert sets == [] and (row.step, row.loss, row.tokens, row.accuracy) == (5, 2.0, 15, 0.5)
    progress.evaluation("b", EvalDone(view=1, step=6), 1.0)
    assert progress.evaluation("d", EvalDone(view=1, step=6, loss_sum=1.0, tokens=1), 1.0)[0].accuracy is None


def test_sets_are_added_up_over_pipelines():
    """A pipeline that has no sample of a set does not name it; with nothing held out the first set stands for it."""
    progress = Progress(0, ["wiki", "code"])
    progress.enter(1, PLAN, 0, 0.0)
    wiki = [SetDone(number=1, loss_sum=loss, tokens=4, correct=2) for loss in (4.0, 12.0)]
    progress.evaluation("b", EvalDone(view=1, step=5, sets=[wiki[0], SetDone(number=2, loss_sum=3.0, tokens=2)]), 1.0)
    row, sets = progress.evaluation("d", EvalDone(view=1, step=5, sets=[wiki[1]]), 1.0)
    assert [(one.step, one.name, one.loss, one.accuracy, one.tokens) for one in sets] == [
        (5, "wiki", 2.0, 0.5, 8),
        (5, "code", 1.5, 0.0, 2),
    ]
    assert sets[0].shown == {"loss": 2.0, "perplexity": math.exp(2.0), "accuracy": 0.5}
    assert (row.loss, row.accuracy, row.tokens) == (2.0, 0.5, 8)
    assert SetRow(1, "far", 1e4, 0.0, 1).shown["perplexity"] is None, "no number has room for it"


def test_an_evaluation_that_the_end_of_a_view_skipped_is_missed():
    progress = Progress()
    progress.enter(1, PLAN, 0, 0.0)
    assert not progress.lacks_evaluation(5)
    progress.evaluation("b", EvalDone(view=1, step=5, loss_sum=1.0, tokens=1), 1.0)
    progress.enter(2, PLAN, 6, 1.0)
    assert progress.lacks_evaluation(5) and progress.lacks_evaluation(6) and not progress.lacks_evaluation(0)
    for name in "bd":  # the view begins with one
        progress.evaluation(name, EvalDone(view=2, step=6, loss_sum=1.0, tokens=1), 1.0)
    progress.enter(3, PLAN, 9, 1.0)
    assert not progress.lacks_evaluation(5)
    progress.enter(4, PLAN, 5, 1.0)  # back to a checkpoint: what was evaluated there stays
    assert not progress.lacks_evaluation(5)


def test_what_is_said_again_counts_once():
    progress = Progress()
    progress.enter(1, PLAN, 0, 0.0)
    for name in "abca":
        progress.step(name, report(1, samples=1), 1.0)
    (row,) = progress.step("d", report(1, samples=1), 1.0)
    assert row.samples == 4
    assert [progress.step(name, report(1, samples=1), 1.0) for name in "abcd"] == [[]] * 4
    done = EvalDone(view=1, step=1, loss_sum=1.0, tokens=1)
    assert [progress.evaluation(name, done, 1.0) is None for name in "bdbd"] == [True, False, True, True]


def test_another_coordinator_goes_on_adding_up():
    progress = Progress(whole=8)
    progress.restore(3, PLAN, 10, 8)
    for step in (10, 11):  # 10 was known, and is said again
        rows = [progress.step(name, report(step, view=3), 1.0) for name in "abcd"]
    assert [row.step for row in rows[-1]] == [11]
    assert (progress.ledger.view, progress.ledger.step, progress.ledger.eval) == (3, 11, 8)


def test_a_step_that_is_whole_counts_whole_whoever_reports_it():
    progress = Progress(whole=8)
    progress.enter(1, PLAN, 0, 0.0)
    progress.step("b", report(1, samples=4, loss_sum=2.0, tokens=4), 1.0)
    first, second = progress.enter(2, PLAN, 2, 3.0)  # nobody lived to report step 2
    assert (first.samples, first.loss, second.step, second.samples, second.loss) == (8, 0.5, 2, 8, None)
    assert progress.enter(3, PLAN, 1, 4.0) == []  # back to a checkpoint
    assert [row.step for row in progress.enter(4, PLAN, 2, 5.0)] == [2]
