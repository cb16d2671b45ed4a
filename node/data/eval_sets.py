"""The samples of a job's evaluation sets: their ids follow those of the training and the validation samples.

They are a separate artifact, ``data/eval``, with rows like those of ``data/tokens``; a node fetches it when the first
evaluation needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from ...job.data.facts import Facts
from ..models.weights.fetch import Fetch
from .dataset import COUNTS, TOKENS, Dataset, Tokens

EVAL_TOKENS = "data/eval"
EVAL_COUNTS = "data/eval_counts"


class WithSets(Dataset):
    """``data``, and after its last id the samples of ``sets``. All ids of a batch belong to one of the two."""

    def __init__(self, facts: Facts, data: Dataset, sets: Callable[[], Dataset]) -> None:
        self.samples, self.validation_samples = facts.samples, facts.validation_samples
        self._data, self._open, self.apart = data, sets, data.apart
        self._sets: Dataset | None = None

    def _of(self, ids: Sequence[int]) -> tuple[Dataset, Sequence[int]]:
        end = self.samples + self.validation_samples
        if not ids or ids[0] < end:
            return self._data, ids
        if self._sets is None:
            self._sets = self._open()
        return self._sets, [one - end for one in ids]

    def batch(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        data, own = self._of(ids)
        return data.batch(own)

    def placed(self, ids: Sequence[int]) -> tuple[Tensor, Tensor, Tensor | None]:
        data, own = self._of(ids)
        return data.placed(own)

    def trained(self, ids: Sequence[int]) -> int | None:
        data, own = self._of(ids)
        return data.trained(own)

    def ahead(self, ids: Sequence[int]) -> None:
        self._data.ahead(ids)


def with_sets(data: Dataset, facts: Facts, fetch: Fetch, cache: Path | None) -> Dataset:
    """``data`` with the run's evaluation sets, which are kept below ``cache``; ``data`` itself if the run has none."""
    if not facts.sets:
        return data
    alone = facts_of_sets(facts)
    renamed = {TOKENS: EVAL_TOKENS, COUNTS: EVAL_COUNTS}

    def read(name: str, offset: int = 0, length: int | None = None) -> bytes:
        return fetch(renamed[name], offset, length)

    return WithSets(facts, data, lambda: Tokens(alone, read, cache))


def facts_of_sets(facts: Facts) -> Facts:
    """Facts that describe the evaluation sets as if they were all of a run's data."""
    counts = {COUNTS: facts.artifacts[EVAL_COUNTS]} if EVAL_COUNTS in facts.artifacts else {}
    return facts.model_copy(
        update={
            "samples": 0,
            "validation_samples": sum(samples for _, samples in facts.sets),
            "tokens_digest": facts.artifacts[EVAL_TOKENS],
            "token_dtype": facts.sets_dtype,
            "packed": facts.sets_packed,
            "artifacts": counts,
            "sets": [],
        }
    )
