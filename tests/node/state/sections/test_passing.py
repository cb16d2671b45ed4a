"""Moments in main memory, pieces of which pass through a device."""

import os
from collections import Counter

import pytest
import torch
from far_device import FAR, Far, far, far_device, near

from farflung.node.device import side_stream
from farflung.node.device.side_stream import AtOnce, streams_of
from farflung.node.state.optimizers import optimizers
from farflung.node.state.optimizers.adafactor import Adafactor
from farflung.node.state.optimizers.optimizers import AdamW, Lamb
from farflung.node.state.sections import section as sections
from farflung.node.state.sections.moments import STRETCH, Kept
from farflung.node.state.sections.section import Layout, Section

CPU = torch.device("cpu")
SHAPES = {"matrix": (3, STRETCH), "bias": (77,), "other": (40, 50)}
KINDS = {
    "AdamW": AdamW((0.9, 0.95), 1e-8, 0.1),
    "LAMB": Lamb((0.9, 0.95), 1e-8, 0.1),
    "Adafactor": Adafactor(0.1),
}


def steps(optimizer, kept: Kept, device: torch.device, waits: Counter[str] | None = None) -> Section:
    section = Section(Layout.of("stage-0", SHAPES), True, kept, device)
    random = torch.Generator().manual_seed(7)
    section.g.copy_(torch.randn(section.g.shape, generator=random))
    for step in range(1, 4):
        section.grad.copy_(torch.randn(section.g.shape, generator=random))
        if waits is not None:
            waits.clear()
        optimizer.step(section, step, 1e-2)
    return section


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["AdamW", "LAMB", "Adafactor"])
def test_the_bits_are_those_of_moments_that_are_there_and_the_host_waits_once(monkeypatch, kind, dtype):
    root, optimizer = optimizers.root, KINDS[kind]
    monkeypatch.setattr(optimizers, "root", lambda x: far(root(near(x))) if isinstance(x, Far) else root(x))
    finished, waits = [], Counter()
    monkeypatch.setattr(AtOnce, "finish", lambda streams, mark: finished.append(mark))
    monkeypatch.setattr(sections, "PIECE", 2 * STRETCH)  # a matrix is cut
    with far_device(waits):
        there = steps(optimizer, Kept(optimizer.moments, dtype, factored=optimizer.factored), FAR)
        assert not finished
        away = steps(optimizer, Kept(optimizer.moments, dtype, True, optimizer.factored), FAR, waits)
        assert len(finished) == 3, "once a step, when all is back"
        assert not any(isinstance(one, Far) for one in away.moments.values())
        if kind == "AdamW":
            assert not waits
        same = [torch.equal(near(there.moments[name]), one) for name, one in away.moments.items()]
        assert all(same) and torch.equal(near(there.x), near(away.x))


def test_what_is_no_card_has_no_streams():
    assert isinstance(streams_of(CPU), AtOnce) and not streams_of(CPU).is_async
    assert isinstance(streams_of(FAR), AtOnce) and streams_of(FAR).is_async


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_on_a_card_the_bits_are_those_without_streams(monkeypatch, dtype):
    """Pieces of a few milliseconds each, so that copies and arithmetic do overlap."""
    device = torch.device(os.environ.get("FARFLUNG_GPU", "cuda:0"))
    monkeypatch.setattr(sections, "PIECE", 8 * STRETCH)
    monkeypatch.setitem(SHAPES, "matrix", (64, STRETCH))
    optimizer = KINDS["AdamW"]
    beside = steps(optimizer, Kept(optimizer.moments, dtype, True), device)
    monkeypatch.setattr(side_stream, "CudaStreams", lambda device: AtOnce())
    streams_of.cache_clear()
    after = steps(optimizer, Kept(optimizer.moments, dtype, True), device)
    streams_of.cache_clear()
    assert torch.equal(beside.x, after.x) and beside.fingerprint(True) == after.fingerprint(True)
