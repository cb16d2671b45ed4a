"""An optimiser that a person's function makes: it moves a section as torch does, and its state is the section's."""

import functools
import sys
import types

import pytest
import torch
from windows import Windows, facts_of

from farflung.job.files import load_job
from farflung.job.schema import Job
from farflung.node.state.optimizers.called import CalledOptimizer
from farflung.node.state.optimizers.make_optimizer import make_optimizer
from farflung.node.state.sections.moments import Kept
from farflung.node.state.sections.section import Layout, Section
from farflung.proto.errors import FarflungError, JobError
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

SHAPES = {"0.weight": (3, 4), "0.bias": (4,), "1.weight": (4, 2)}


def adamw(groups):
    return torch.optim.AdamW(groups, betas=(0.8, 0.9), eps=1e-6)


def faster_vectors(groups):
    return torch.optim.SGD([{**one, "lr": one["lr"] * (10 if "0.bias" in one["names"] else 1)} for one in groups], 0.9)


def section_of(optimizer):
    made = Section(Layout.of("stage-0", SHAPES), False, Kept(optimizer.moments), torch.device("cpu"))
    made.x.copy_(torch.randn(made.x.shape, generator=torch.Generator().manual_seed(1)))
    return made


@pytest.mark.parametrize("make", [adamw, faster_vectors])
def test_it_moves_a_section_as_torch_does_and_goes_on_where_its_state_goes(make):
    """Every second step is another node's, which has the vectors alone."""
    optimizers = [CalledOptimizer("m:f", make, 1e-2, 0.1) for _ in range(2)]
    section = section_of(optimizers[0])
    plain = {name: torch.nn.Parameter(values.clone()) for name, values in section.layout.views(section.x)}
    matrices = {"params": [plain["0.weight"], plain["1.weight"]], "names": [], "lr": 1e-2, "weight_decay": 0.1}
    vectors = {"params": [plain["0.bias"]], "names": ["0.bias"], "lr": 1e-2, "weight_decay": 0.0}
    wanted = make([matrices, vectors])
    ratios = [group["lr"] / 1e-2 for group in wanted.param_groups]
    for count, rate in enumerate((1e-2, 5e-3, 2e-2, 1e-2), 1):
        section.grad.copy_(torch.randn(section.grad.shape, generator=torch.Generator().manual_seed(count)))
        for name, values in section.layout.views(section.grad):
            plain[name].grad = values.clone()
        for group, ratio in zip(wanted.param_groups, ratios, strict=True):
            group["lr"] = rate * ratio
        wanted.step()
        optimizers[count % 2].step(section, count, rate)
        for name, values in section.layout.views(section.x):
            torch.testing.assert_close(values, plain[name].detach())
        other = section_of(optimizers[0])
        other.x.copy_(section.x)
        for name, vector in section.moments.items():
            other.moments[name].copy_(vector)
        section = other


def nothing(groups):
    return None


def fails(groups):
    raise ValueError("no")


def half(groups):
    return torch.optim.SGD(groups[:1])


class Counting(torch.optim.SGD):
    """Keeps the count of its steps beside the state."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group["lr"] /= 2
        return super().step(closure)


class Counted(torch.optim.SGD):
    k = 0

    def step(self, closure=None):
        self.k += 1


class Third(torch.optim.SGD):
    def step(self, closure=None):
        if self.param_groups[0]["lr"] == 3.0:
            raise RuntimeError("the third")


def test_a_step_that_fails_is_said_to_be_the_optimisers():
    optimizer = CalledOptimizer("m:f", Third, 1.0, 0.0)
    section = section_of(optimizer)
    optimizer.step(section, 1, 1.0)
    with pytest.raises(FarflungError, match="that of m:f failed at step 2: RuntimeError: the third"):
        optimizer.step(section, 2, 3.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Counting, "Counting changes its 'k' of group 0, 'k' of group 1 at a step, which no member can be given"),
        (Counted, "Counted changes its 'k' at a step"),
        (torch.optim.Rprop, "Rprop begins with 'step_size' that is not 0"),
        (functools.partial(torch.optim.Adagrad, initial_accumulator_value=0.5), "Adagrad begins with 'sum'"),
        (torch.optim.Adafactor, "Adafactor keeps '(row|col)_var', which no member can be given"),
        (torch.optim.LBFGS, "failed: ValueError|takes no step by itself"),
        (nothing, "gave NoneType, no torch.optim.Optimizer"),
        (fails, "m:f failed: ValueError: no"),
        (half, "moves 1 of 2 parameters"),
    ],
)
def test_what_members_cannot_share_is_refused(make, message):
    with pytest.raises(FarflungError, match=message):
        CalledOptimizer("m:f", make, 1e-2, 0.0)


@pytest.mark.parametrize("name", ["Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "RAdam", "RMSprop", "SGD"])
def test_torchs_own_that_begin_with_zeros_are_taken(name):
    assert CalledOptimizer("m:f", getattr(torch.optim, name), 1e-2, 0.1).moments or name == "SGD"


def job_of(optimizer):
    return Job.model_validate(
        {
            "run": {"seed": 3, "steps": 4},
            "model": {"family": "gpt2", "layers": 1, "width": 16, "heads": 2, "context": 8},
            "data": {"text": ["none"]},
            "train": {"batch": 8, "microbatch": 2, "optimizer": optimizer, "eval_every": 0, "learning_rate": 1e-2},
            "updates": {"mode": "delta", "every": 2, "block": 256},
            "checkpoint": {"every": 0},
        }
    )


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("own_optimizers")
    made.make = lambda groups: torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    monkeypatch.setitem(sys.modules, "own_optimizers", made)
    return "own_optimizers:make"


@pytest.mark.usefixtures("nobody_late")
def test_a_run_with_it_is_one_with_the_same_optimiser_of_farflung(module):
    plan = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 1), (2, 2)), microbatches=(2, 2))
    losses = []
    for optimizer in ("adamw", module):
        facts = facts_of(24, 2, 8, 29, 4)
        hub = Hub(job_of(optimizer), facts)
        for name in plan.nodes:
            hub.start(name, Windows(facts))
        hub.begin(plan, plan.nodes, checkpoint=0)
        losses.append(hub.finish(plan.nodes).losses)
        assert not hub.errors
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_only_modules_that_are_allowed_are_called(module):
    job = job_of(module)
    assert job.calls == [module] and job.modules == {"own_optimizers"}
    with pytest.raises(FarflungError, match=r"runs code of the module 'own_optimizers' \(train.optimizer\)"):
        make_optimizer(job, ())
    assert make_optimizer(job, ["own_optimizers"]).moments == ("exp_avg", "exp_avg_sq")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", 'needs updates.mode = "delta"'),
        ('moments = "bf16"\n', "train.moments = 'bf16' is for adamw, lamb, lion and muon, not for m:f"),
        ("offload = true\n", "train.offload has no meaning with"),
    ],
)
def test_what_does_not_go_with_it(tmp_path, words, message):
    (tmp_path / "a.txt").write_text("text")
    model = '[model]\nfamily = "gpt2"\nlayers = 1\nwidth = 16\nheads = 2\ncontext = 8'
    train = f'[train]\noptimizer = "m:f"\n{words}'
    (tmp_path / "job.toml").write_text(f'[run]\nsteps = 1\n[data]\ntext = "a.txt"\n{model}\n{train}')
    with pytest.raises(JobError, match=message):
        load_job(tmp_path / "job.toml")


def test_a_function_that_exits_is_named():
    """``sys.exit`` is no Exception, and went past what names a person's own code."""

    def leaves(groups):
        sys.exit("no GPU here")

    with pytest.raises(FarflungError, match="m:leaves failed: SystemExit: no GPU here"):
        CalledOptimizer("m:leaves", leaves, 1e-2, 0.1)

    class Leaving(torch.optim.SGD):
        def step(self, closure=None):
            if self.param_groups[0]["params"][0].numel() > 4:
                raise SystemExit(3)
            return super().step(closure)

    optimizer = CalledOptimizer("m:f", lambda groups: Leaving(groups), 1e-2, 0.1)
    with pytest.raises(FarflungError, match="that of m:f failed at step 1: SystemExit: 3"):
        optimizer.step(section_of(optimizer), 1, 1e-2)


def test_the_words_that_are_allowed_name_a_function_too():
    tables = {"run": {"steps": 1}, "model": {"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 8}}
    with pytest.raises(ValueError, match=r'onebit_adam or a function, "package\.module:function"'):
        Job.model_validate({**tables, "data": {"text": ["a"]}, "train": {"optimizer": "adamv"}})
