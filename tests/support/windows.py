"""Small data for tests of training, held in memory."""

from __future__ import annotations

import time

import torch

from farflung.job.data.facts import Facts, Profile
from farflung.node.data.dataset import Dataset


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)


def facts_of(samples: int, validation: int, context: int, vocabulary: int, steps: int) -> Facts:
    return Facts(
        samples=samples,
        validation_samples=validation,
        context=context,
        vocabulary=vocabulary,
        token_dtype="uint8",
        steps=steps,
        tokens_digest="",
        profile=Profile(layers=[], tied=False, family=""),
        artifacts={},
    )


class Windows(Dataset):
    """Random but learnable token windows, held in memory."""

    def __init__(self, facts: Facts, seed: int = 0) -> None:
        self.samples, self.validation_samples = facts.samples, facts.validation_samples
        generator = torch.Generator().manual_seed(seed)
        count = facts.samples + facts.validation_samples
        start = torch.randint(0, facts.vocabulary, (count, 1), generator=generator)
        stride = torch.randint(1, 4, (count, 1), generator=generator)
        self.rows = (start + stride * torch.arange(facts.context + 1)) % facts.vocabulary

    def batch(self, ids):
        rows = self.rows[torch.tensor(list(ids))]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
