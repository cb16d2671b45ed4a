"""Gradients that go to main memory while the next one is computed."""

import os
from typing import ClassVar

import pytest
import torch
from torch import nn

from farflung.node.device.side_stream import AtOnce
from farflung.node.state.sections import leaving
from farflung.node.state.sections.gradients import Gradients


class Late(AtOnce):
    """Copies from the device are done only when somebody waits for them, as on a card that is slow."""

    def __init__(self):
        super().__init__(True)
        self.marks, self.waited = 0, []

    def mark(self, lane):
        self.marks += 1
        return (lane, self.marks)

    def finish(self, mark):
        self.waited.append(mark)
        Copied.until(mark[1])

    def room(self, like):
        return Copied(torch.full_like(like.values, torch.nan), self)

    def place(self, like):
        return Copied(like, self)


class Copied:
    """A tensor in main memory into which copies come late."""

    under_way: ClassVar = []

    def __init__(self, values, streams):
        self.values, self.streams = values, streams

    def copy_(self, gradient, non_blocking):
        assert non_blocking
        Copied.under_way.append((self.streams.marks + 1, self.values, gradient))

    def add_(self, other):
        self.values.add_(other.values)

    @staticmethod
    def until(number):
        """Copies are done in order, up to that mark."""
        while Copied.under_way and Copied.under_way[0][0] <= number:
            _, values, gradient = Copied.under_way.pop(0)
            values.copy_(gradient)


@pytest.fixture
def late(monkeypatch):
    streams = Late()
    Copied.under_way = []
    monkeypatch.setattr(leaving, "streams_of", lambda device: streams)
    return streams


def test_the_host_waits_once_for_all_that_is_first(late):
    on_way, flat = leaving.Leaving(), torch.zeros(4, 3)
    for number in range(4):
        on_way.send(f"{number}", torch.full((3,), float(number + 1)), late.place(flat[number]), False)
        assert not late.waited
    on_way.land()
    assert len(late.waited) == 1 and torch.equal(flat[:, 0], torch.arange(1.0, 5.0))
    on_way.land()
    assert len(late.waited) == 1


def test_what_is_added_or_told_of_is_there_before(late):
    on_way, flat, told = leaving.Leaving(), torch.zeros(3, 2), []
    for adds in (False, True):
        on_way.land()
        on_way.tell = (lambda name: told.append((name, float(flat[int(name), 0])))) if adds else None
        for number in range(3):
            on_way.send(f"{number}", torch.full((2,), float(number + 1)), late.place(flat[number]), adds)
    assert told == [("0", 2.0), ("1", 4.0)]
    on_way.land()
    assert told == [("0", 2.0), ("1", 4.0), ("2", 6.0)]


def test_a_step_that_is_given_up_writes_nothing_into_the_next(late):
    on_way, flat = leaving.Leaving(), torch.zeros(2)
    on_way.send("0", torch.ones(2), late.place(flat), True)
    on_way.drop()
    assert not Copied.under_way and not flat.any()
    on_way.send("0", torch.full((2,), 5.0), late.place(flat), False)
    on_way.land()
    assert torch.equal(flat, torch.full((2,), 5.0))


def passes(device, apart, width=16, count=3):
    """The gradients of so many passes over a few layers, and what was told in the last one."""
    torch.manual_seed(3)
    layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).to(device)
    parameters = dict(layers.named_parameters())
    places = {name: torch.full(one.shape, 7.0, device="cpu" if apart else device) for name, one in parameters.items()}
    if apart and device.type == "cuda":
        places = {name: one.pin_memory() for name, one in places.items()}
    gradients, told = Gradients(parameters, places, apart), []
    for step in range(2):
        gradients.begin()
        for number in range(count):
            sample = torch.randn(8, width, generator=torch.Generator().manual_seed(number + step)).to(device)
            if number < count - 1:
                layers(sample).square().sum().backward()
                continue
            with gradients.told(lambda name: told.append((name, places[name].cpu().clone()))):
                layers(sample).square().sum().backward()
        gradients.end()
        assert sorted(name for name, _ in told[-len(places) :]) == sorted(places)
        for name, values in told[-len(places) :]:
            assert torch.equal(values, places[name].cpu()), "it was told before it was there"
    return {name: one.cpu() for name, one in places.items()}


def test_the_bits_are_those_of_gradients_that_stay():
    near, away = (passes(torch.device("cpu"), apart) for apart in (False, True))
    assert all(torch.equal(near[name], away[name]) for name in near)


@pytest.mark.gpu
def test_on_a_card_they_are_too():
    device = torch.device(os.environ.get("FARFLUNG_GPU", "cuda:0"))
    near, away = (passes(device, apart, width=1024 if device.type == "cuda" else 16) for apart in (False, True))
    assert all(torch.equal(near[name], away[name]) for name in near)
