"""What the sections of ``benchmarks.fidelity`` share: a small model of text, its members, rows of a table.

`compared` chooses each method's learning rate on seed 0, which is not in the table, and gives the mean and its 95 %
interval over three others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import nn

from farflung.compress.primitives.vectors import vector

LINE = "| --- | --- | --- | --- | --- |"


class Characters(nn.Module):
    """A model of text, byte by byte: 16 bytes before, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, 24)
        self.layers = nn.Sequential(nn.Linear(24 * 16, 96), nn.GELU(), nn.Linear(96, 128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(self.embed(x).flatten(1))
        return out


@lru_cache(maxsize=1)
def text() -> torch.Tensor:
    """The bytes of the demo's plays, which ``python -m farflung.examples.shakespeare examples`` writes."""
    files = sorted((Path(__file__).parents[1] / "examples" / "shakespeare").glob("*.txt"))
    if not files:
        raise SystemExit("there are no plays: python -m farflung.examples.shakespeare examples")
    return torch.tensor([byte & 127 for one in files for byte in one.read_bytes()])


def workers(count: int, how: str, size: int = 1 << 14) -> list[torch.Tensor]:
    """Vectors of as many workers: the same, with noise of its own size, or independent."""
    base = vector("student3", size)
    if how == "the same":
        return [base] * count
    own = [vector("student3", size, 1 + rank) for rank in range(count)]
    return own if how == "independent" else [base + one for one in own]


def interval(values: list[float]) -> float:
    """Half the 95 % interval of a mean of a few (Student's t)."""
    t = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}[len(values)]
    return t * stdev(values) / len(values) ** 0.5


SEEDS = (1, 2, 3)
Run = Callable[[float, int], float]
"""(learning rate, seed) -> the last validation loss."""


def compared(methods: dict[str, tuple[str, Run]], rates: tuple[float, ...]) -> Iterator[str]:
    """A row for each method: (note, run), the first being the one that others are compared with."""
    base: list[float] = []
    for name, (note, run) in methods.items():
        best = min(rates, key=lambda rate: run(rate, 0))
        losses = [run(best, seed) for seed in SEEDS]
        base = base or losses
        more = [one - first for one, first in zip(losses, base, strict=True)]
        apart = f"{mean(more):+.4f} ± {interval(more):.4f}" if losses is not base else ""
        yield f"| {name} | {note} | {best:g} | {mean(losses):.4f} | {apart} |"


class Members:
    """Copies of one model that learn from windows of their own; values are flat vectors."""

    def __init__(self, seed: int, count: int = 4) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self.data, self.model = text(), Characters()
        self.cut = len(self.data) * 9 // 10
        self.parameters = list(self.model.parameters())
        self.start = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.random = [torch.Generator().manual_seed(1000 * seed + rank) for rank in range(count)]

    def load(self, x: torch.Tensor) -> None:
        at = 0
        for p in self.parameters:
            p.data.copy_(x[at : at + p.numel()].view_as(p))
            at += p.numel()

    def _loss(self, random: torch.Generator, first: int, last: int, count: int) -> torch.Tensor:
        rows = self.data[torch.randint(first, last - 17, (count,), generator=random)[:, None] + torch.arange(17)]
        return nn.functional.cross_entropy(self.model(rows[:, :16]), rows[:, 16])

    def gradient(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        self.load(x)
        own = torch.autograd.grad(self._loss(self.random[rank], 0, self.cut, 16), self.parameters)
        return torch.cat([one.reshape(-1) for one in own])

    def validation(self, x: torch.Tensor) -> float:
        self.load(x)
        with torch.no_grad():
            return float(self._loss(torch.Generator().manual_seed(99), self.cut, len(self.data), 4000))


class Adam:
    """Adam of one flat vector, with bias correction."""

    def __init__(self, count: int, rate: float) -> None:
        self.m, self.v, self.rate, self.steps = torch.zeros(count), torch.zeros(count), rate, 0

    def step(self, gradient: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.m.lerp_(gradient, 0.1)
        self.v.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        size = (self.v / (1 - 0.99**self.steps)).sqrt_() + 1e-8
        return -self.rate / (1 - 0.9**self.steps) * self.m / size
