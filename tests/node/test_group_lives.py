"""A loop of one's own whose membership ends begins another, as a node does."""

import pytest
import torch
from torch import nn

from farflung.api.lives import Lives
from farflung.node.device.limits import Wish
from farflung.node.ipc.pipe import IoEnded
from farflung.node.rejoin import Backoff, RunOver
from farflung.node.training.external.external_loop import LoopOwner, Order, OwnLoop
from farflung.node.training.external.external_model import OwnModel
from farflung.proto.errors import NotNow, Parted, Refused, RunFailed, Unreachable


def lives(ends=(), wish=None):
    """Whether each of these ends is followed by a life; what was said, and the pauses."""
    said, pauses = [], []

    def pause(seconds, owner):
        pauses.append(seconds)
        return wish

    one = Lives(LoopOwner(), said.append, backoff=Backoff(chance=lambda: 0.5), pause=pause)
    return [one.again(end, 1.0) for end in ends], said, pauses


def test_a_crash_in_native_code_is_followed_by_another_life_three_times_an_hour():
    crash = IoEnded("the node's I/O process was ended by SIGSEGV")
    again, said, pauses = lives([crash] * 4)
    assert again == [True, True, True, False] and pauses == [0.0] * 3
    assert said[0] == f"{crash.message}: this node joins again under its key, with what the others hold"


def test_what_waiting_mends_is_waited_for_with_growing_pauses():
    again, said, pauses = lives([Parted("its session is over"), Unreachable("nothing listens"), NotNow("full")])
    assert again == [True] * 3 and pauses == pytest.approx([1.0, 2.0, 4.0]) and len(said) == 3


@pytest.mark.parametrize(
    "end", [None, RunOver("the run is over"), Refused("evicted"), RunFailed("step 3"), KeyboardInterrupt(), OSError()]
)
def test_what_waiting_does_not_mend_ends_it(end):
    assert lives([end]) == ([False], [], [])


def test_a_loop_that_leaves_wants_no_other_life():
    assert lives([Parted("its session is over")], Wish("leaving"))[0] == [False]


def test_a_gradient_for_a_trainer_that_has_ended_counts_for_nobody():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loop = OwnLoop(OwnModel(model, optimizer), optimizer)
    loop._order = first = Order(4, [1], 1.0, (), None, loop.life)
    assert loop.take() is first
    loop.owner.waits(0.0)  # the trainer waited long ago
    loop._order = None
    loop.begin_again()
    assert loop.owner.wish() is None, "the next trainer waits for nobody yet"
    model(torch.ones(1, 3)).sum().backward()
    loop.give(0.5)
    assert first.tally is None and all(one.grad is None for one in model.parameters())
    loop._order = second = Order(9, [2], 1.0, (), None, loop.life)
    assert loop.take() is second and second.life == first.life + 1
