"""The stage of a classifier of texts: masks of padding, kinds of tokens, the logits of a text, its loss."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...job.data.labelled import PADDING
from .stage import LanguageStage


class ClassifierStage(LanguageStage):
    """Layers of a classifier. The last stage returns logits [b, classes]; ``targets[:, -1]`` are the classes."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        model = self._trunk[0].model
        takes = inspect.signature(type(model).forward).parameters
        self._types = "token_type_ids" in takes and (getattr(model.config, "type_vocab_size", None) or 0) > 1
        self._said: list[Tensor] = []
        if self.is_last:
            self._trunk[0].head.register_forward_hook(lambda module, args, output: self._said.append(output))

    def forward(self, inputs: Tensor, places: Tensor | None = None) -> Tensor:
        """``places``: int64 [b, t], each token's kind: see `job.data.labelled.kinds_of`."""
        kinds = places if places is not None else torch.ones(inputs.shape[:2], dtype=torch.long, device=inputs.device)
        keywords: dict[str, Any] = {"attention_mask": (kinds != PADDING).long()}
        if self._types:
            keywords["token_type_ids"] = (kinds - 1).clamp(min=0)
        self._said.clear()
        output = self._computed(inputs, keywords)
        if not self._said:
            return output
        said = self._said.pop()
        if said.dim() < 3:  # pooled by the model itself
            return output
        last = kinds.shape[1] - 1 - (kinds != PADDING).long().flip(1).argmax(1)
        return said[torch.arange(len(said), device=said.device), last]

    def loss_sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.float(), targets[:, -1], reduction="sum")

    def target_count(self, targets: Tensor) -> int:
        return len(targets)

    def correct(self, logits: Tensor, targets: Tensor) -> Tensor:
        return (logits.argmax(-1) == targets[:, -1]).sum()
