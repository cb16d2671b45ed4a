"""Texts and their classes (``train.task = "classification"``): an encoder or a decoder with a head for classes.

The model is the family's own class for sequence classification in `transformers`. Parameters that the model folder
lacks (the head and its pooler) begin with random values. A decoder predicts a text's class at its last token; an
encoder pools as its class does. Every stage masks the padding that rows of job/data/labelled.py mark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn

from .classifier_stage import ClassifierStage
from .definition import LanguageModel
from .relative import RelativeStage, rows_beside, span_of
from .stage import LanguageStage


class ClassifierModel(LanguageModel):
    """A model for sequence classification. Its layers: the embedding, each block, and the modules after the blocks."""

    auto = "AutoModelForSequenceClassification"
    classes = True

    def __init__(self, config: Any, names: Sequence[str], recompute: bool = False, balance: float = 0.0) -> None:
        """``names``: the classes' names; class k is ``names[k]``."""
        config.id2label = dict(enumerate(names))
        config.label2id = {name: number for number, name in enumerate(names)}
        config.problem_type = "single_label_classification"
        if config.pad_token_id is None:
            config.pad_token_id = 0  # decoders refuse several texts at once without one; the mask says what is padding
        self.names = tuple(names)
        super().__init__(config, recompute, _table_kept, balance)
        self._span = span_of(self.skeleton) if self.anatomy.table else 0

    def _stage(self) -> Callable[..., LanguageStage]:
        return partial(RelativeStage, span=self._span) if self._span else ClassifierStage

    def beside(self, context: int) -> int:
        return rows_beside(self._span, context) if self._span else 0

    def begins_anew(self, name: str) -> bool:
        within = name.startswith(f"{self.skeleton.base_model_prefix}.")
        return self.layer_of(name) == self._last and (not within or ".pooler." in name)


def _table_kept(model: nn.Module) -> None:
    """Whatever the job's dropout, a table of relative positions that all samples share is not dropped: which elements
    would be is nobody's sample to say."""
    for module in model.modules():
        if isinstance(getattr(module, "pos_dropout", None), nn.Module):
            module.pos_dropout = nn.Identity()
