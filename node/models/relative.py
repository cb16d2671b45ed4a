"""DeBERTa's relative positions: one table of embeddings that every block needs, so that each stage hands it on.

The table is a parameter of the first layer. A stage appends the rows that texts of this length can reach to the hidden
state of every sample, and the stage after takes the mean over the samples. So the gradients of all stages come back to
the first one with those of the hidden state, and are added up there; no other stage holds the table.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .classifier_stage import ClassifierStage
from .decoders.anatomy import table_module


def reached(span: int, context: int) -> tuple[int, int]:
    """The rows [first, end) of a table of ``2 * span`` rows that texts of ``context`` tokens can use."""
    far = min(context - 1, span)
    return span - far, min(2 * span, span + far + 1)


def rows_beside(span: int, context: int) -> int:
    """How many rows of the table texts of ``context`` tokens can use."""
    first, end = reached(span, context)
    return end - first


def span_of(model: Any) -> int:
    """Half of the table's rows. ``model``: the whole model."""
    return int(model.get_submodule(str(table_module(model))).rel_embeddings.weight.shape[0]) // 2


class RelativeStage(ClassifierStage):
    """Layers of a classifier whose blocks share a table of relative positions. What is handed on has the shape
    [b, t + rows, d]: the hidden state, then the rows of the table that t tokens reach."""

    def __init__(self, *args: Any, span: int, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._span = span
        model = self._trunk[0].model
        encoder = model.get_submodule(str(table_module(model)))
        self._table: list[Tensor] = []
        own = encoder.get_rel_embedding if self.is_first else None

        def table() -> Tensor:
            if own is not None:
                self._table[:] = [own()]
            return self._table[0]

        encoder.get_rel_embedding = table

    def forward(self, inputs: Tensor, places: Tensor | None = None) -> Tensor:
        if places is None and not self.is_first:
            places = torch.ones(len(inputs), self._length(inputs.shape[1]), dtype=torch.long, device=inputs.device)
        try:
            return super().forward(inputs, places)
        finally:
            self._table.clear()

    def _computed(self, inputs: Tensor, keywords: dict[str, Any]) -> Tensor:
        context = int(keywords["attention_mask"].shape[1])
        first, end = reached(self._span, context)
        if not self.is_first:
            rows = inputs[:, context:].mean(0)
            around = [rows.new_zeros(count, rows.shape[1]) for count in (first, 2 * self._span - end)]
            self._table[:] = [torch.cat([around[0], rows, around[1]])]
            inputs = inputs[:, :context]
        output = super()._computed(inputs, keywords)
        if self.is_last:
            return output
        return torch.cat([output, self._table[0][first:end].float().expand(len(output), -1, -1)], 1)

    def _length(self, handed_on: int) -> int:
        """The tokens of a text, from the length of what is handed on for it."""
        return next(one for one in range(1, handed_on) if one + rows_beside(self._span, one) == handed_on)
