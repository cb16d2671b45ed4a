"""Direct preference optimisation (Rafailov et al. 2023, (7)) of adapters: ``train.task = "dpo"``.

A sample is a row of two halves: prompt with chosen answer, prompt with rejected answer. Every stage computes both with
the adapters (the policy) and without them (the reference model: the base). Its output has both, concatenated along the
tokens: [policy | reference], so that between stages a sample is one tensor as for other tasks. No gradient goes through
the reference model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...job.data.marks import IGNORED
from ...job.tables.model import Lora
from .lora import LoraModel
from .stage import LanguageStage


class PreferenceModel(LoraModel):
    """Adapters that learn which of two answers is preferred."""

    def __init__(self, config: Any, lora: Lora, beta: float, recompute: bool = False, balance: float = 0.0) -> None:
        """``beta``: DPO's beta; the larger, the closer the policy stays to the base."""
        self.beta = beta
        super().__init__(config, lora, recompute, balance)

    def _stage(self) -> type[LanguageStage]:
        return PreferenceStage

    def build(self, first: int, last: int, device: torch.device | str = "cpu") -> LanguageStage:
        stage = super().build(first, last, device)
        assert isinstance(stage, PreferenceStage)
        stage.beta = self.beta
        return stage


class PreferenceStage(LanguageStage):
    """Layers with adapters. With ``places`` a sample is a pair of answers, without them a text as for any language
    model."""

    beta = 0.1

    def forward(self, inputs: Tensor, places: Tensor | None = None) -> Tensor:
        """For pairs: from token ids [b, t] (first stage) or hidden states [b, 2 t, d] to hidden states [b, 2 t, d] or
        (last stage) logits [b, 2 t, vocabulary], the policy's before the reference's; t is even."""
        if places is None:
            return super().forward(inputs)
        half = places.shape[1] // 2
        width = 2 * half
        policy, reference = inputs[:, :width], inputs[:, 0 if self.is_first else width :][:, :width]
        with torch.no_grad(), self._without_adapters():
            base = self._computed(_apart(reference.detach(), half), {})
        tuned = self._computed(_apart(policy, half), {})
        return torch.cat([_together(tuned), _together(base)], 1)

    @contextmanager
    def _without_adapters(self) -> Iterator[None]:
        """In this context the base computes alone, without adapters and dropout."""
        training = self.training
        adapters: list[Any] = [one for one in self.modules() if hasattr(one, "_disable_adapters")]
        self.eval()
        for one in adapters:
            one._disable_adapters = True
        try:
            yield
        finally:
            for one in adapters:
                one._disable_adapters = False
            self.train(training)

    def loss_sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        return -functional.logsigmoid(self._margins(logits, targets)).sum()

    def target_count(self, targets: Tensor) -> int:
        return len(targets)

    def correct(self, logits: Tensor, targets: Tensor) -> Tensor:
        """How many chosen answers have the higher reward."""
        return (self._margins(logits, targets) > 0).sum()

    def _margins(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The chosen answer's reward minus the rejected answer's, [b]."""
        half = targets.shape[1] // 2
        wanted = _apart(targets[:, : 2 * half], half)
        policy, reference = (self._likelihoods(one, wanted) for one in (logits[:, : 2 * half], logits[:, 2 * half :]))
        rewards = self.beta * (policy - reference)
        return rewards[:, 0] - rewards[:, 1]

    @staticmethod
    def _likelihoods(logits: Tensor, targets: Tensor) -> Tensor:
        """The log-probability of each answer, [b, 2], from logits [b, 2 h, vocabulary] and targets [2 b, h]."""
        flat = logits.float().reshape(-1, logits.shape[-1])
        losses = functional.cross_entropy(flat, targets.reshape(-1), reduction="none", ignore_index=IGNORED)
        return -losses.view(len(logits), 2, -1).sum(2)


def _apart(pairs: Tensor, half: int) -> Tensor:
    """[b, 2 h, ...] to [2 b, h, ...]: the two answers of a sample one after the other."""
    return pairs.reshape(2 * len(pairs), half, *pairs.shape[2:])


def _together(answers: Tensor) -> Tensor:
    """[2 b, h, ...] to [b, 2 h, ...]."""
    return answers.reshape(len(answers) // 2, 2 * answers.shape[1], *answers.shape[2:])
