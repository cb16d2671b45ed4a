"""Adafactor: against transformers' own, its sums on any device, and its short moments wherever state goes."""

import os
from pathlib import Path

import pytest
import torch
import transformers

from farflung.job.checks.train import train_mistakes
from farflung.job.schema import Job
from farflung.node.pipeline.inside.rank_sections import RankSections
from farflung.node.state.optimizers import adafactor
from farflung.node.state.optimizers.adafactor import Adafactor, folded
from farflung.node.state.optimizers.make_optimizer import make_optimizer
from farflung.node.state.optimizers.optimizers import kept_moments, step_all
from farflung.node.state.sections import section as sections
from farflung.node.state.sections.moments import Kept
from farflung.node.state.sections.room import Room
from farflung.node.state.sections.section import Layout, Section
from farflung.proto.words.moments import factored
from farflung.scheduler.workloads.jobs import moment_bytes

CPU = torch.device("cpu")
SHAPES = {
    "embedding": (31, 6),
    "up": (10, 6),
    "down": (6, 10),
    "norm": (6,),
    "experts": (3, 8, 6),
    "one row": (1, 9),
    "one column": (7, 1),
    "convolution": (4, 3, 1, 3),
}
KEPT = Kept(("v",), factored=True)


def job_of(**train):
    return Job.model_validate(
        {
            "run": {"steps": 20},
            "model": {"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 8},
            "data": {"text": ["none"]},
            "train": {"batch": 4, "microbatch": 2, "optimizer": "adafactor", **train},
        }
    )


def section_of(shapes=None, kept=KEPT):
    made = Section(Layout.of("stage-0", shapes or SHAPES), True, kept, CPU)
    made.x.normal_(generator=torch.Generator().manual_seed(3))
    return made


def trained(optimizer, section, steps=4):
    random = torch.Generator().manual_seed(7)
    for step in range(1, steps + 1):
        section.grad.normal_(generator=random).mul_(10.0 ** (step % 3 - 1))
        section.grad[:12].zero_()  # rows of an embedding that no token had
        optimizer.step(section, step, 1e-2)
    return section


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_twenty_steps_are_those_of_transformers(decay):
    """Vectors, which farflung never decays, are in a group of their own there."""
    job = job_of(weight_decay=decay)
    optimizer = make_optimizer(job)
    section = section_of(kept=kept_moments(job, optimizer))
    ours = dict(section.layout.views(section.x))
    theirs = {name: torch.nn.Parameter(values.clone()) for name, values in ours.items()}
    matrices = [one for one in theirs.values() if one.dim() > 1]
    groups = [
        {"params": matrices, "weight_decay": decay},
        {"params": [one for one in theirs.values() if one.dim() == 1], "weight_decay": 0.0},
    ]
    reference = transformers.Adafactor(groups, lr=1e-2, scale_parameter=False, relative_step=False, warmup_init=False)
    random = torch.Generator().manual_seed(5)
    for step in range(1, 21):
        # From 1e-3 to 10: updates are clipped at some steps and not at others.
        section.grad.normal_(generator=random).mul_(10.0 ** (step % 5 - 3))
        for name, grad in section.layout.views(section.grad):
            theirs[name].grad = grad.clone()
        optimizer.step(section, step, 1e-2)
        reference.step()
        for name, values in ours.items():
            assert torch.allclose(values, theirs[name].data, rtol=1e-6, atol=1e-6), (step, name)


def test_a_matrix_keeps_a_row_and_a_column():
    section = section_of()
    found = {name: tuple(values.shape) for name, values in section.of_moments.views(section.moments["v"])}
    assert found == {
        "embedding": (37,),
        "up": (16,),
        "down": (16,),
        "norm": (6,),
        "experts": (3, 14),
        "one row": (1, 9),
        "one column": (7, 1),
        "convolution": (4, 3, 1, 3),
    }
    assert all(torch.Size(factored(shape)).numel() <= torch.Size(shape).numel() for shape in SHAPES.values())


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 1000])
def test_sums_by_halves_are_sums(count):
    values = torch.randn(count, 5, generator=torch.Generator().manual_seed(count)).double()
    assert torch.allclose(folded(values.clone(), 0), values.sum(0))
    assert torch.allclose(folded(values.T.clone(), 1), values.sum(0))


def test_pieces_of_any_size_give_the_same_bits(monkeypatch):
    """A GPU takes larger ones than a CPU."""
    shapes = {"wide": (40, 700), "long": (900, 30), "experts": (2, 70, 90)}
    whole = trained(Adafactor(0.1), section_of(shapes))
    monkeypatch.setattr(adafactor, "STRETCH", 64)
    monkeypatch.setattr(adafactor, "_NARROW", 8)
    pieces = trained(Adafactor(0.1), section_of(shapes))
    assert torch.equal(whole.x, pieces.x) and whole.fingerprint(True) == pieces.fingerprint(True)
    assert bool(torch.isfinite(whole.x).all())


def test_offloaded_moments_change_no_bit(monkeypatch):
    near = trained(Adafactor(0.1), section_of())

    def elsewhere(moments, device):
        return {name: values.to(device, torch.float32, copy=True) for name, values in moments.items()}

    monkeypatch.setattr(sections, "opened", elsewhere)  # as from another device, whose every read is a copy
    far = trained(Adafactor(0.1), section_of(kept=Kept(("v",), offload=True, factored=True)))
    assert torch.equal(near.x, far.x) and near.fingerprint(True) == far.fingerprint(True)


def test_the_ranks_of_an_island_keep_short_moments_of_their_sections():
    """In memory that all of them map."""
    layouts = [Layout.of(f"stage-0.{n}", {f"{name}{n}": shape for name, shape in SHAPES.items()}) for n in range(3)]
    rooms = [Section.room_of(layout, KEPT) for layout in layouts]
    alone = [Section(layout, True, KEPT, CPU) for layout in layouts]
    shared = [Section(layout, True, KEPT, CPU, False, room) for layout, room in zip(layouts, rooms, strict=True)]
    ranks = [
        RankSections(
            [
                Section(layout, True, KEPT, CPU, False, Room(room.size, os.dup(room.file)))
                for layout, room in zip(layouts, rooms, strict=True)
            ],
            Adafactor(0.1),
            rank,
            2,
        )
        for rank in range(2)
    ]
    random = torch.Generator().manual_seed(2)
    for step in (1, 2):
        for one, other in zip(alone, shared, strict=True):
            one.grad.normal_(generator=random)
            other.grad.copy_(one.grad)
        step_all(Adafactor(0.1), alone, step, 1e-2, 0.5)
        for rank in ranks:
            rank.step(step, 1e-2, 0.5)
    for one, other in zip(alone, shared, strict=True):
        assert bool(one.x.any()) and torch.equal(one.x, other.x) and torch.equal(one.moments["v"], other.moments["v"])


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"moments": "bf16"}, "is for adamw, lamb, lion and muon, not for adafactor"),
        ({"betas": [0.9, 0.99]}, "train.betas has no meaning with adafactor"),
        ({"eps": 1e-6}, "train.eps has no meaning with adafactor"),
        ({"momentum": 0.9}, "train.momentum belongs to sgd; adafactor has no first moment"),
    ],
)
def test_what_has_no_meaning_is_said(train, message):
    (found,) = [sentence for _, sentence in train_mistakes(job_of(**train)) if "adafactor" in sentence]
    assert message in found
    assert not [sentence for _, sentence in train_mistakes(job_of()) if "adafactor" in sentence]


@pytest.mark.parametrize("lora", [None, {"rank": 8}, {"rank": 4, "dora": True}])
def test_plans_count_enough_for_it_and_little(lora):
    wide, inner = 256, 1024
    if lora is None:
        shapes = [(wide, 3 * wide), (3 * wide,), (wide, wide), (wide, inner), (inner,), (inner, wide), *[(wide,)] * 6]
    else:
        shapes = [(lora["rank"], wide), (3 * wide, lora["rank"]), *([(3 * wide,)] if "dora" in lora else [])]
    weights, moments = (sum(torch.Size(one).numel() for one in these) for these in (shapes, map(factored, shapes)))
    counted = moment_bytes({"optimizer": "adafactor"}, lora)
    assert 4 * moments / weights <= counted <= 4 * moments / weights + 1.1


@pytest.fixture
def restarts(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4]))
    from benchmarks import restarts

    monkeypatch.setattr(restarts, "AT", 6)
    monkeypatch.setattr(restarts, "STEPS", 10)
    return restarts


@pytest.mark.usefixtures("nobody_late")
@pytest.mark.parametrize("mode", ["gradient", "delta"])
def test_a_restart_from_a_checkpoint_goes_on_as_if_nothing_had_been(restarts, tmp_path, mode):
    job = restarts.job_of(mode, {"codec": "none"}, 1, 10)
    job = job.model_copy(update={"train": job.train.model_copy(update={"optimizer": "adafactor"})})
    made = restarts.begun(job, tmp_path, {}, restarts.PLAN)
    whole = made.finish(restarts.PLAN.nodes).losses
    restarts.settle(made, 6)
    file, _ = made.shards[6, "stage-0.safetensors"]
    assert b"optimizer.v." in bytes(file)
    again = restarts.again(job, tmp_path, made).finish(restarts.PLAN.nodes).losses
    assert [again[step] for step in range(7, 11)] == pytest.approx([whole[step] for step in range(7, 11)], abs=1e-6)
