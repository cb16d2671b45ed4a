"""Which block's weights are sent for before it is computed, and that those that are used are the right ones."""

import os

import pytest
import torch
import torch.utils.checkpoint
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from farflung.node.device.side_stream import AtOnce
from farflung.node.state import device_weights
from farflung.node.state.ahead import Ahead
from farflung.node.state.device_weights import DeviceWeights

BLOCKS = 5
UPWARDS, DOWNWARDS = tuple(range(BLOCKS)), tuple(reversed(range(BLOCKS)))


def arrivals(ahead, *passes, stage=0):
    return [ahead.arrives((stage, at)) for one in passes for at in one]


@pytest.mark.parametrize("passes", [(UPWARDS, DOWNWARDS) * 3, (UPWARDS,) * 3 + (DOWNWARDS,) * 3], ids=["1f1b", "gpipe"])
def test_each_pass_waits_for_its_first_block_alone(passes):
    found = [one.here for one in arrivals(Ahead([BLOCKS]), *passes)]
    assert found == [at > 0 for _ in passes for at in range(BLOCKS)]
    assert not any(one.drop for one in arrivals(Ahead([BLOCKS]), *passes))


def test_stages_that_take_turns():
    ahead = Ahead([BLOCKS, 2])
    found = [one.here for _ in range(2) for s, n in ((0, BLOCKS), (1, 2)) for one in arrivals(ahead, range(n), stage=s)]
    assert found.count(False) == 4
    assert [one.begin for one in arrivals(Ahead([1]), [0], [0])] == [None, None]


STAGE_AND_BLOCK = st.tuples(st.integers(0, 1), st.integers(0, 3))


@given(order=st.lists(STAGE_AND_BLOCK, max_size=60), forgets=st.sets(st.integers(0, 59)))
def test_in_any_order_what_is_here_was_sent_for_and_at_most_one_is_under_way(order, forgets):
    ahead, coming = Ahead([4, 4]), None
    for count, block in enumerate(order):
        if count in forgets:
            ahead.forget()
            coming = None
        arrival = ahead.arrives(block)
        assert arrival.here == (coming == block)
        assert arrival.drop == (coming if coming != block else None)
        coming = arrival.begin
        assert coming != block and (coming is None or coming[0] == block[0])


class Streams(AtOnce):
    """Notes what is given to which lane, and after which mark."""

    def __init__(self):
        super().__init__(True)
        self.said, self.marks = [], 0

    def on(self, lane, after=()):
        self.said.append((lane, *after))
        return super().on(lane, after)

    def mark(self, lane):
        self.marks += 1
        return f"{lane} {self.marks}"


def model(device="cpu", blocks=3, width=4):
    layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(blocks))).to(device)
    for at, one in enumerate(layers.parameters()):
        one.data.copy_(torch.randn(one.shape, generator=torch.Generator().manual_seed(at)))
    return layers, {name: one.detach().clone().cpu() for name, one in layers.named_parameters()}


def test_a_block_is_computed_after_its_weights_came_and_they_come_into_memory_that_nobody_uses(monkeypatch):
    streams = Streams()
    monkeypatch.setattr(device_weights, "streams_of", lambda device: streams)
    layers, weights = model()
    sample = torch.randn(2, 4)
    wanted = layers(sample)
    held = DeviceWeights(dict(layers.named_parameters()), torch.device("cpu"), [list(layers)])
    held.take(weights)
    with torch.no_grad():
        assert torch.equal(layers(sample), wanted)
    assert streams.said == [("up", "compute 1"), ("compute", "up 2"), ("up", "compute 3"), ("compute", "up 4")]
    weights["0.weight"].zero_()
    held.take(weights)  # what comes next is read anew
    with torch.no_grad():
        assert not torch.equal(layers(sample), wanted)


def test_weights_that_change_between_passes_are_never_old_ones():
    """A pass that is broken off has sent for a block, whose weights then change."""
    layers, weights = model()
    held = DeviceWeights(dict(layers.named_parameters()), torch.device("cpu"), [list(layers)])
    held.take(weights)
    with torch.no_grad():
        layers[0](torch.ones(1, 4))
        weights["1.bias"].fill_(9.0)
        held.take(weights)
        layers[1].register_forward_pre_hook(lambda *_: seen.append(float(layers[1].bias[0])))
        seen: list[float] = []
        layers(torch.ones(1, 4))
    assert seen == [9.0]


@pytest.mark.gpu
def test_on_a_card_every_pass_has_the_bits_of_weights_that_are_there():
    device = torch.device(os.environ.get("FARFLUNG_GPU", "cuda:0"))
    layers, weights = model(device, blocks=6, width=2048 if device.type == "cuda" else 64)
    sample = torch.randn(64, layers[0].in_features, generator=torch.Generator().manual_seed(5)).to(device)

    def passed():
        kept = sample
        for layer in layers:
            kept = torch.utils.checkpoint.checkpoint(lambda x, layer=layer: layer(x).tanh(), kept, use_reentrant=False)
        grads = torch.autograd.grad(kept.sum(), list(layers.parameters()))
        return kept.detach().cpu(), [one.cpu() for one in grads]

    wanted = passed()
    pinned = {name: one.pin_memory() if device.type == "cuda" else one for name, one in weights.items()}
    held = DeviceWeights(dict(layers.named_parameters()), device, [list(layers)])
    for _ in range(5):
        held.take(pinned)
        output, grads = passed()
        assert torch.equal(output, wanted[0])
        assert all(torch.equal(one, other) for one, other in zip(grads, wanted[1], strict=True))
