"""A person's own loop and the trainer's thread: what one of them has in hand the other leaves alone."""

import threading
from types import SimpleNamespace

import torch
from torch import nn

from farflung.node.training.external.external_loop import OwnLoop
from farflung.node.training.external.external_model import OwnModel


class HeldUp(dict):
    """Parameters that are not gone through before another thread has ended, or has had long enough for it."""

    thread: threading.Thread

    def values(self):
        self.thread.join(0.5)
        return super().values()


def test_the_loop_s_gradients_are_gone_before_the_trainer_lays_the_sum_there():
    """Else the loop's thread, late, takes the sum away, and the optimiser leaves those parameters out of the step."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loop = OwnLoop(OwnModel(model, optimizer), optimizer)
    put = []
    state = SimpleNamespace(sections={}, gradients=SimpleNamespace(put=lambda *one: put.append(one[0])))
    clock = SimpleNamespace(codec=0.0, wire=0.0, waiting=0.0, compute=0.0)
    pause = threading.Event()
    loop.trainer = SimpleNamespace(state=state, clock=clock, pump=pause.wait)
    there = []

    def trainer():
        loop.step(1, [[0]], 1.0)
        for one in model.parameters():
            there.append(one.grad)
            one.grad = torch.ones_like(one)

    loop.model.parameters = HeldUp(loop.model.parameters)
    loop.model.parameters.thread = thread = threading.Thread(target=trainer, daemon=True)
    thread.start()
    assert loop.take().samples == [0]
    model(torch.ones(1, 3)).sum().backward()
    loop.give(1.0)
    thread.join()
    assert sorted(put) == ["bias", "weight"] and there == [None, None]
    assert all(one.grad is not None for one in model.parameters())
