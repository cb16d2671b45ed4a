"""Steps that are trials: all stages cut alike, the results stay, and a trial without enough memory costs one view."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from windows import Windows, facts_of

from farflung.job.schema import Job
from farflung.node.device.out_of_memory import is_out_of_memory
from farflung.node.models.stage import StageModel
from farflung.node.pipeline.runner import StageRunner
from farflung.node.pipeline.tally import Tally
from farflung.proto.errors import FarflungError
from farflung.scheduler import Plan
from farflung.scheduler.after_trials import without
from farflung.scheduler.trials import Trial, Tuning
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

TRIALS = (Trial(2, False), Trial(1, False, ((4, 2), (2, 1))), Trial(3, False), Trial(2, True))
TUNING = Tuning(TRIALS)
STEPS = TUNING.steps + 2
PLAN = Plan(
    (("a", "b"), ("c", "d")), ((0, 1), (2, 3)), (3, 3), chosen={"train.microbatch": 2, "train.recompute": False}
)
FACTS = facts_of(samples=60, validation=10, context=8, vocabulary=17, steps=STEPS)
JOB = Job.model_validate(
    {
        "run": {"name": "tried", "seed": 5, "steps": STEPS},
        "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8},
        "data": {"text": ["none.txt"]},
        "train": {
            "batch": 12, "learning_rate": 3e-3, "microbatch": "auto", "recompute": "auto", "eval_every": 5,
        },
        "updates": {"mode": "gradient", "block": 256, "codec": "none"},
        "checkpoint": {"every": 0},
    }
)  # fmt: skip


@pytest.fixture
def cuts(monkeypatch):
    """(step, sizes of the microbatches, in flight, recompute) of each step that a node computes."""
    found, usual = [], StageRunner.step

    def step(self, number, microbatches, scale):
        again = {chunk.model.recompute for chunk in self._chunks}
        found.append((number, tuple(map(len, microbatches)), self.in_flight, *again))
        return usual(self, number, microbatches, scale)

    monkeypatch.setattr(StageRunner, "step", step)
    return found


def begun(plan):
    data, hub = Windows(FACTS), Hub(JOB, FACTS)
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    return hub


@pytest.fixture(scope="module")
def plain():
    """The losses and evaluations without trials."""
    outcome = begun(PLAN).finish(PLAN.nodes)
    return outcome.losses, outcome.evals


def assert_same(outcome, plain):
    assert outcome.losses == pytest.approx(plain[0], rel=1e-3), "summed in another order"
    assert outcome.evals == pytest.approx(plain[1], rel=1e-3) and outcome.evals
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())


def test_all_stages_cut_alike_and_what_is_learnt_is_the_same(cuts, plain):
    hub = begun(replace(PLAN, tuning=TUNING))
    assert_same(hub.finish(PLAN.nodes), plain)
    assert not hub.errors
    for step in range(1, STEPS + 1):
        at = TUNING.at(step)
        trial = TRIALS[at] if at is not None else Trial(2, False)
        mine = [rest for number, *rest in cuts if number == step]
        assert len(mine) == 4 and {sizes for sizes, _, _ in mine} == {(trial.microbatch,) * (6 // trial.microbatch)}
        assert {again for _, _, again in mine} == {trial.recompute}
        assert sorted(held for _, held, _ in mine) == ([1, 2, 2, 4] if at == 1 else [0] * 4)


def test_a_trial_that_takes_too_much_memory_is_given_up_and_its_step_is_computed_again(monkeypatch, plain):
    usual, failed = StageRunner._backward, []

    def backward(self, chunk, step, microbatch, *rest):
        if chunk.stage == 1 and microbatch == 1 and TUNING.at(step) == 2 and not failed:
            failed.append(step)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return usual(self, chunk, step, microbatch, *rest)

    monkeypatch.setattr(StageRunner, "_backward", backward)
    hub = begun(replace(PLAN, tuning=TUNING))
    while (said := hub._next()[1]).WhichOneof("kind") != "trial_failed":
        assert said.WhichOneof("kind") != "finished"
    assert said.trial_failed.step == failed[0] == 3 and said.trial_failed.view == 1
    hub.change(without(replace(PLAN, tuning=TUNING), 2, said.trial_failed.why), PLAN.nodes)
    assert_same(hub.finish(PLAN.nodes), plain)
    assert not hub.errors and hub.outcome.views == 2


def test_main_memory_that_a_model_of_a_person_s_own_asks_for_is_no_error_of_its_code(monkeypatch, plain):
    """On a CPU torch raises a plain RuntimeError, and the stage names what it finds in a person's own layers."""
    failed = []

    def short(module, inputs):
        if isinstance(module, StageModel) and module.is_last and module.training and module.recompute and not failed:
            failed.append(True)
            torch.empty(1 << 60)

    hook = register_module_forward_pre_hook(short)
    monkeypatch.setattr(StageModel, "own_failure", lambda self, error: FarflungError(f"model.build: {error}"))
    try:
        hub = begun(replace(PLAN, tuning=TUNING))
        while (said := hub._next()[1]).WhichOneof("kind") != "trial_failed":
            assert said.WhichOneof("kind") not in ("finished", "warning")
    finally:
        hook.remove()
    assert TUNING.at(said.trial_failed.step) == 3
    hub.change(without(replace(PLAN, tuning=TUNING), 3, said.trial_failed.why), PLAN.nodes)
    assert_same(hub.finish(PLAN.nodes), plain)
    assert not hub.errors and hub.outcome.views == 2


def test_main_memory_that_is_too_small_at_the_first_microbatch_is_not_the_sender_s_fault():
    runner, chunk = object.__new__(StageRunner), SimpleNamespace(stage=1, before="a")
    chunk.begin = lambda *_: torch.empty(1 << 60)
    chunk.model = SimpleNamespace(is_first=False, own_failure=lambda problem: None)
    runner._clock, runner._precision = SimpleNamespace(computing=lambda *_: nullcontext()), "fp32"
    runner._device, runner._samples = torch.device("cpu"), {}
    runner._neighbours = SimpleNamespace(spoiled=lambda sender, what: pytest.fail(f"{sender} sent {what}"))
    with pytest.raises(RuntimeError, match="memory") as caught:
        runner._compute(chunk, torch.zeros(1), torch.zeros(1), None, Tally())
    assert is_out_of_memory(caught.value)


def test_what_counts_as_too_little_memory():
    assert is_out_of_memory(torch.OutOfMemoryError("any")) and is_out_of_memory(MemoryError())
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not is_out_of_memory(RuntimeError("a shape is wrong")) and not is_out_of_memory(ValueError("out of memory"))
    named = FarflungError("a layer of own:model failed")
    assert not is_out_of_memory(named)
    named.__cause__ = caught.value
    assert is_out_of_memory(named)
