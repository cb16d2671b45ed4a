"""A run whose evaluations get no better ends, in words and in steps."""

from types import SimpleNamespace

from farflung.coordinator.run.judging.early_stop import EarlyStop, last_step, worn_out
from farflung.proto.errors import JobError

EVALS = [(10, 3.0), (20, 2.0), (30, 2.5), (40, 2.0)]


def test_only_a_lower_loss_is_better():
    assert worn_out(EVALS, 0) == worn_out([], 2) == worn_out(EVALS, 3) == worn_out(EVALS[:2], 1) == ""
    assert worn_out(EVALS, 2) == (
        "in 2 evaluations the validation loss was never below the 2.0000 of step 20 (eval.patience)"
    )
    assert worn_out([*EVALS, (50, 1.9)], 2) == ""


def test_the_last_step_is_one_that_nobody_has_trained():
    assert last_step(100, 1.0, 1000) == 103
    assert last_step(100, 0.001, 10**6) == 2101
    assert last_step(100, 60.0, 1000) == 102
    assert last_step(997, 1.0, 1000) is None, "it ends there anyway"


class Steps:
    reached, step_seconds, last_step = 40, 1.0, 1000


def early(patience, answer=lambda command: "done"):
    rows = [SimpleNamespace(step=step, loss=loss) for step, loss in EVALS]
    job = SimpleNamespace(eval=SimpleNamespace(patience=patience))
    context = SimpleNamespace(job=job, store=SimpleNamespace(evals=SimpleNamespace(all=lambda: rows)))
    commands, warnings = [], []

    def command(one):
        commands.append(one)
        return answer(one)

    return EarlyStop(context, Steps, command, lambda node, said: warnings.append(said)), commands, warnings


def test_it_is_set_once():
    stop, commands, warnings = early(2)
    stop.evaluated()
    stop.evaluated()
    assert [(one.kind, one.argument) for one in commands] == [("set", "run.steps=43")] and not warnings
    assert "never below the 2.0000 of step 20" in commands[0].why
    for patience in (0, 3):
        stop, commands, _ = early(patience)
        stop.evaluated()
        assert not commands


def test_what_stands_in_the_way_is_said():
    def refuses(command):
        raise JobError("aqsgd wants two epochs")

    stop, _, warnings = early(1, refuses)
    stop.evaluated()
    assert warnings[0].endswith("and yet the run goes on: aqsgd wants two epochs")
