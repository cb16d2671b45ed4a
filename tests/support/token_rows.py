"""The samples of a run, from the files that its coordinator keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from farflung.job.data.facts import Facts


class Rows:
    """The coordinator's token file."""

    def __init__(self, state: Path, facts: Facts) -> None:
        tokens = np.fromfile(state / "artifacts" / facts.tokens_digest, facts.token_dtype)
        self.rows = torch.from_numpy(tokens.astype(np.int64)).view(-1, facts.context + 1)

    def batch(self, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """(inputs, targets), each int64 [samples, context]."""
        rows = self.rows[torch.tensor(ids)]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
