"""Texts and their classes (``train.task = "classification"``): an encoder or a decoder with a head for classes.

The model is the family's own class for sequence classification in `transformers`. Parameters that the model folder
lacks (the head and its pooler) begin with random values. A decoder predicts a text's class at its last token; an
encoder pools as its class does. Every stage masks the padding that rows of job/data/labelled.py mark. With
``[model.lora]`` the head trains whole, and of the blocks their adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from torch import Tensor, nn

from ...job.tables.model import Lora
from .classifier_stage import ClassifierStage
from .definition import LanguageModel
from .lora import LoraModel, is_adapter
from .relative import RelativeStage, rows_beside, span_of
from .stage import LanguageStage


class Classifier(LanguageModel):
    """What models for sequence classification have in common, whatever of them trains."""

    auto = "AutoModelForSequenceClassification"
    classes = True
    names: tuple[str, ...]
    """The classes' names; class k is ``names[k]``."""

    @cached_property
    def _span(self) -> int:
        return span_of(self.skeleton) if self.anatomy.table else 0

    def _stage(self) -> Callable[..., LanguageStage]:
        return partial(RelativeStage, span=self._span) if self._span else ClassifierStage

    def beside(self, context: int) -> int:
        return rows_beside(self._span, context) if self._span else 0

    def begins_anew(self, name: str) -> bool:
        path = name.rpartition(".")[0]
        within = path.startswith(f"{self.skeleton.base_model_prefix}.")
        return path in self.anatomy.last and (not within or ".pooler." in path)


class ClassifierModel(Classifier):
    """A model for sequence classification. Its layers: the embedding, each block, and the modules after the blocks."""

    def __init__(self, config: Any, names: Sequence[str], recompute: bool = False, balance: float = 0.0) -> None:
        """``names``: the classes' names; class k is ``names[k]``."""
        self.names = name_classes(config, names)
        super().__init__(config, recompute, _table_kept, balance)


class AdaptedClassifier(Classifier, LoraModel):
    """A model for sequence classification whose parameters are its adapters and its head."""

    starts_from_folder = True  # the head, where the folder has it
    purpose = "SEQ_CLS"

    def __init__(
        self, config: Any, names: Sequence[str], lora: Lora, recompute: bool = False, balance: float = 0.0
    ) -> None:
        """``names``: the classes' names; class k is ``names[k]``."""
        self.names = name_classes(config, names)
        super().__init__(config, lora, recompute, balance)

    @property
    def stored(self) -> Mapping[str, tuple[int, ...]]:
        return {**self.frozen, **{name: shape for name, shape in self.shapes.items() if not is_adapter(name)}}

    @property
    def whole(self) -> tuple[str, ...]:
        prefix = f"{self.skeleton.base_model_prefix}."
        heads = [path for path in self.anatomy.last if self.begins_anew(f"{path}.weight")]
        return tuple(dict.fromkeys(path.removeprefix(prefix).partition(".")[0] for path in heads))

    def trains(self, name: str) -> bool:
        return is_adapter(name) or super().begins_anew(name)

    def begins_anew(self, name: str) -> bool:
        return is_adapter(name) or super().begins_anew(name)

    def initial(self, name: str, seed: int) -> Tensor:
        return super().initial(name, seed) if is_adapter(name) else LanguageModel.initial(self, name, seed)

    def _changed(self, model: nn.Module) -> None:
        _table_kept(model)
        super()._changed(model)
        for name, parameter in model.named_parameters():
            if self.trains(name):
                parameter.requires_grad_(True)


def name_classes(config: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Write the classes' names into the configuration of a model; what of it names other classes is replaced."""
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
    config.problem_type = "single_label_classification"
    if config.pad_token_id is None:
        config.pad_token_id = 0  # decoders refuse several texts at once without one; the mask says what is padding
    return tuple(names)


def _table_kept(model: nn.Module) -> None:
    """Whatever the job's dropout, a table of relative positions that all samples share is not dropped: which elements
    would be is nobody's sample to say."""
    for module in model.modules():
        if isinstance(getattr(module, "pos_dropout", None), nn.Module):
            module.pos_dropout = nn.Identity()
