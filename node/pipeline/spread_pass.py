"""One microbatch in a stage of an island: which rank computes which samples, and the joined results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor

from ..models.stage import Pass, StageModel
from .inside.grid import Grid
from .inside.words import Words
from .island import Island

Made = TypeVar("Made")


class SpreadPass:
    """One microbatch in an island's stage number ``stage``, as ``Pass`` is on one device.

    Samples are divided as evenly as possible; losses and gradients are sums over samples, so an uneven division changes
    no result. If a microbatch has fewer samples than the island's grid has rows, the last devices are idle; with
    ``inside = "fsdp"`` they must join every pass, so they compute the first sample again, and the result is dropped.
    With ``inside = "tp"`` the ranks of a row compute the same samples, and the outputs of the first of them are used.
    """

    def __init__(
        self,
        island: Island,
        stage: int,
        model: StageModel,
        inputs: Tensor,
        targets: Tensor,
        places: Tensor | None = None,
    ) -> None:
        self._island, self._is_last, self._together = island, model.is_last, island.shards is not None
        island._passes += 1
        self._number = island._passes
        self._grid = Grid(island.ranks, 1) if island.shards is None else island.shards.grid
        ends = [end for end in cut(len(inputs), self._grid.rows) if end[0] < end[1]]
        self._sizes = [stop - start for start, stop in ends]
        if self._together:
            ends += [(0, 1)] * (self._grid.rows - len(ends))
        self._ranks = range(1, len(ends) * self._grid.columns)
        """The hands that take part."""
        own = model if island.shards is None else island.shards.models[stage]
        own.train(model.training)
        draws = [None if model.draw is None else model.draw.part(*part) for part in ends]
        shares = [
            [values[start:stop] for values in (inputs, *([targets] if model.is_last else []))]
            + ([] if places is None else [places[start:stop]])
            for start, stop in ends
        ]
        for rank in self._ranks:
            row, _ = self._grid.place(rank)
            draw = draws[row]
            words = {"number": self._number, "stage": stage, "train": model.training, "places": places is not None}
            drawn = {"draw": None if draw is None else asdict(draw), "silent": not self._speaks(rank)}
            island.order(rank, "forward", *shares[row], **words, **drawn)
        own.draw = draws[0]
        goals = shares[0][1] if model.is_last else targets

        def begin() -> Pass:
            return Pass(own, shares[0][0], goals, None if places is None else shares[0][-1])

        self._own, answers = self._with_hands(begin)
        answers = [answer for answer in answers if self._speaks(answer["rank"])]
        outputs = [self._own.output.detach(), *(answer["value"] for answer in answers)]
        self.output = torch.stack(outputs).sum(0) if model.is_last else torch.cat(outputs)
        self.correct = self._own.correct + sum(answer["correct"] for answer in answers)

    def backward(self, gradient: Tensor, scale: float = 0.0) -> Tensor | None:
        """As `Pass.backward`."""
        pieces = [gradient] if self._is_last else [*torch.split(gradient, self._sizes)]
        for rank in self._ranks:
            row, _ = self._grid.place(rank)
            counts = row < len(self._sizes)
            piece = pieces[min(row, len(pieces) - 1)]
            piece = piece if counts else torch.zeros_like(gradient if self._is_last else gradient[:1])
            words = {"number": self._number, "scale": scale if counts else 0.0, "silent": not self._speaks(rank)}
            self._island.order(rank, "backward", piece, **words)
        own, answers = self._with_hands(lambda: self._own.backward(pieces[0], scale))
        if own is None:
            return None
        return torch.cat([own, *(answer["value"] for answer in answers if self._speaks(answer["rank"]))])

    def _speaks(self, rank: int) -> bool:
        """Whether the result of rank ``rank`` is used."""
        row, column = self._grid.place(rank)
        return row < len(self._sizes) and column == 0

    def _with_hands(self, compute: Callable[[], Made]) -> tuple[Made, list[Words]]:
        """The result of ``compute`` in the first process, and the hands' answers. The answers are read even if
        ``compute`` fails, so that the next order gets its own answers.

        Raises:
            RuntimeError, IndexError: the first process failed, or else a hand.
            RunFailed: a pass of all ranks failed on the first, and the others still wait for it.
        """
        problem: Exception | None = None
        try:
            made = compute()
        except (RuntimeError, IndexError) as own_problem:
            problem = own_problem
        try:
            if problem is not None and self._together:
                self._island.hurry(self._ranks, problem)
            answers = self._island.answers(self._ranks)
        except RuntimeError as other:
            problem = problem or other
        if problem is not None:
            if self._together:
                self._island.void()
            raise problem
        return made, answers


def cut(count: int, ranks: int) -> list[tuple[int, int]]:
    """(begin, end) of each rank's part of ``count`` samples, as even as possible."""
    sizes = [count // ranks + (rank < count % ranks) for rank in range(ranks)]
    ends = list(accumulate(sizes))
    return list(zip([0, *ends], ends, strict=False))
