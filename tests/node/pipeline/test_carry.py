"""Tensors of a card between ranks over gloo, which takes only those of main memory.

The ranks here are one process: what one call gives to gloo the next one gets from it.
"""

from types import SimpleNamespace

import pytest
import torch
from far_device import Far, far_device

from farflung.node.pipeline.inside import carry


class Gloo:
    """Of torch.distributed what is used, and as strict as gloo. ``sent``: the last tensor that was sent."""

    def __init__(self, backend="gloo"):
        self.backend, self.sent = backend, None

    def get_backend(self):
        return self.backend

    def send(self, tensor, rank):
        self._check(tensor)
        self.sent = tensor.clone()

    def recv(self, tensor, rank):
        self._check(tensor)
        tensor.copy_(self.sent)

    def broadcast(self, tensor, rank):
        self.recv(tensor, rank)

    def reduce(self, tensor, rank):
        self._check(tensor)
        tensor.add_(self.sent)

    def _check(self, tensor):
        assert tensor.is_contiguous()
        assert isinstance(tensor, Far) == (self.backend == "nccl"), "gloo sends no tensor of a card"


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_what_a_card_holds_arrives_on_a_card(monkeypatch, backend):
    gloo = Gloo(backend)
    monkeypatch.setattr(carry, "dist", gloo)
    with far_device() as device:
        values = torch.arange(6.0).view(2, 3).to(device)
        carry.send(values.t(), 1)
        into = torch.zeros(3, 2, device=device)
        carry.receive(into, 1)
        assert torch.equal(into, values.t())
        carry.broadcast(into.zero_())
        assert torch.equal(into, values.t())
        carry.reduce(into)
        assert torch.equal(into, 2 * values.t())


def test_main_memory_is_sent_as_it_is(monkeypatch):
    given = []
    monkeypatch.setattr(
        carry,
        "dist",
        SimpleNamespace(get_backend=lambda: "gloo", broadcast=lambda tensor, rank: given.append(tensor)),
    )
    values = torch.ones(3)
    carry.broadcast(values)
    assert given[0] is values
