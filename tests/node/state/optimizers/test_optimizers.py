"""Optimisers and schedules against torch's own, or what they were published as."""

from itertools import pairwise

import pytest
import torch
import transformers

from farflung.job.files import load_job
from farflung.job.schema import Job, Train
from farflung.node.state.optimizers.learning_rates import learning_rate
from farflung.node.state.optimizers.make_optimizer import make_optimizer
from farflung.node.state.optimizers.muon import COEFFICIENTS, orthogonal
from farflung.node.state.optimizers.optimizers import kept_moments
from farflung.node.state.sections.section import Layout, Section
from farflung.proto.errors import JobError

SHAPES = {
    "model.embed_tokens.weight": (11, 6),
    "model.layers.0.mlp.up_proj.weight": (10, 6),
    "model.layers.0.mlp.down_proj.weight": (6, 10),
    "model.layers.0.norm.weight": (6,),
    "model.layers.1.mlp.experts.up_proj": (3, 8, 6),
}
STEPS = 5


def job_of(**train):
    return Job.model_validate(
        {
            "model": {"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 8},
            "data": {"text": ["none"]},
            "train": {"batch": 4, "microbatch": 2, **train},
            "updates": {"mode": "delta"},
        }
    )


def moved(job, reference):
    """The largest difference to ``reference(parameters, rates)``, which gives the optimisers of one step."""
    optimizer, device = make_optimizer(job), torch.device("cpu")
    section = Section(Layout.of("stage-0", SHAPES), True, kept_moments(job, optimizer), device)
    torch.manual_seed(3)
    section.x.copy_(torch.randn(section.layout.numel))
    ours = dict(section.layout.views(section.x))
    theirs = {name: torch.nn.Parameter(value.clone()) for name, value in ours.items()}
    stepped = reference(theirs)
    for count in range(1, STEPS + 1):
        section.grad.copy_(torch.randn(section.layout.numel))
        for name, grad in section.layout.views(section.grad):
            theirs[name].grad = grad.clone()
        optimizer.step(section, count, 0.01)
        stepped()
    return {name: float((ours[name] - theirs[name].data).abs().max()) for name in SHAPES}


def lion(parameters):
    """As the paper's listing has it, without decay of vectors."""
    moments = {name: torch.zeros_like(one) for name, one in parameters.items()}

    def step():
        for name, one in parameters.items():
            update = torch.sign(0.9 * moments[name] + 0.1 * one.grad)
            decay = 0.1 * one.data if one.dim() > 1 else 0.0
            one.data -= 0.01 * (update + decay)
            moments[name] = 0.99 * moments[name] + 0.01 * one.grad

    return step


def test_lion_is_the_papers():
    found = moved(job_of(optimizer="lion", betas=[0.9, 0.99], weight_decay=0.1), lion)
    assert max(found.values()) < 1e-6


def test_muon_is_torchs_for_matrices_of_blocks_and_adamw_for_all_else():
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon to compare with")

    def both(parameters):
        """An expert is a matrix of its own there."""
        experts = {name: one for name, one in parameters.items() if one.dim() == 3}
        single = {name: [torch.nn.Parameter(part.clone()) for part in one.data] for name, one in experts.items()}
        hidden = [one for name, one in parameters.items() if ".mlp." in name and name not in experts]
        hidden += [part for parts in single.values() for part in parts]
        muon = torch.optim.Muon(hidden, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
        adamw = torch.optim.AdamW(
            [
                {"params": [parameters["model.embed_tokens.weight"]], "weight_decay": 0.1},
                {"params": [parameters["model.layers.0.norm.weight"]], "weight_decay": 0.0},
            ],
            lr=0.01,
            betas=(0.9, 0.95),
        )

        def step():
            for name, parts in single.items():
                for part, grad in zip(parts, parameters[name].grad, strict=True):
                    part.grad = grad.clone()
            muon.step()
            adamw.step()
            for name, parts in single.items():
                parameters[name].data.copy_(torch.stack([part.data for part in parts]))

        return step

    found = moved(job_of(optimizer="muon", weight_decay=0.1), both)
    assert found["model.embed_tokens.weight"] < 1e-6 and found["model.layers.0.norm.weight"] < 1e-6
    assert max(found.values()) < 2e-3  # the iteration is in bf16; a step is 0.2 * sqrt(10) * 0.01 = 6e-3 of each row


def test_muon_iterates_in_fp32_on_a_cpu():
    """One without instructions for bf16 takes 10 to 50 times as long in bf16."""
    matrices = torch.randn(3, 12, 8, generator=torch.Generator().manual_seed(1))
    a, b, c = COEFFICIENTS
    exact = matrices.double().mT
    exact = exact / exact.flatten(1).norm(dim=1)[:, None, None]
    for _ in range(5):
        gram = exact @ exact.mT
        exact = a * exact + (b * gram + c * gram @ gram) @ exact
    assert torch.allclose(orthogonal(matrices).double(), exact.mT, atol=1e-5)


@pytest.mark.parametrize(
    ("decay", "theirs"),
    [
        ("cosine", lambda o: transformers.get_cosine_schedule_with_warmup(o, 10, 100)),
        ("linear", lambda o: transformers.get_linear_schedule_with_warmup(o, 10, 100)),
        ("none", lambda o: transformers.get_constant_schedule_with_warmup(o, 10)),
        ("inverse_sqrt", lambda o: transformers.get_inverse_sqrt_schedule(o, 10)),
        (
            "wsd",
            lambda o: transformers.get_wsd_schedule(
                o, num_warmup_steps=10, num_decay_steps=20, num_stable_steps=70, decay_type="linear"
            ),
        ),
    ],
)
def test_schedules_are_those_of_transformers(decay, theirs):
    train = Train(learning_rate=0.5, warmup_steps=10, decay=decay, cooldown_steps=20 if decay == "wsd" else 0)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = theirs(optimizer)
    for step in range(1, 101):
        optimizer.step()
        schedule.step()
        assert learning_rate(train, step, 100) == pytest.approx(schedule.get_last_lr()[0], abs=1e-9)


def test_a_cooldown_is_a_line_to_the_floor_from_where_the_rate_is():
    train = Train(
        learning_rate=1.0, decay="inverse_sqrt", warmup_steps=4, cooldown_steps=10, min_learning_rate_ratio=0.1
    )
    rates = [learning_rate(train, step, 100) for step in range(1, 101)]
    assert rates[3] == 1.0 and rates[89] == pytest.approx(0.1 + 0.9 * (4 / 90) ** 0.5)
    falls = [before - after for before, after in pairwise(rates[89:])]
    assert falls == pytest.approx([falls[0]] * 10) and rates[99] == pytest.approx(0.1)
    stable = Train(learning_rate=1.0, decay="wsd")
    assert learning_rate(stable, 90, 100) == 1.0 and learning_rate(stable, 95, 100) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ('optimizer = "muon"', "'muon' multiplies matrices.*needs updates.mode"),
        ('decay = "cosine"\ncooldown_steps = 3', "cooldown_steps has no meaning with decay = 'cosine'"),
    ],
)
def test_what_makes_no_sense_is_said(tmp_path, train, message):
    (tmp_path / "a.txt").write_text("x")
    shape = 'family = "gpt2"\nlayers = 1\nwidth = 8\nheads = 2\ncontext = 8'
    job = f'[run]\nsteps = 9\n[data]\ntext = "a.txt"\n[model]\n{shape}\n[train]\n{train}\n'
    (tmp_path / "job.toml").write_text(job)
    with pytest.raises(JobError, match=message):
        load_job(tmp_path / "job.toml")


@pytest.mark.parametrize("decay", ["cosine", "linear", "wsd", "inverse_sqrt", "none"])
def test_a_step_beyond_the_last_has_the_last_one_s_rate(decay):
    """Where people shorten a run that goes on, and where nodes make one more epoch than the facts were made for."""
    train = Train(batch=4, microbatch=2, decay=decay, learning_rate=0.5, min_learning_rate_ratio=0.1)
    assert learning_rate(train, 25, 24) <= learning_rate(train, 24, 24)
    assert learning_rate(train, 25, 24) >= 0.05
