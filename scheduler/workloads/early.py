"""In which jobs a round begins while the last backward pass still runs, and in how many buckets: as nodes decide it
(node/training/steps/early_offers.py, node/state/buckets.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...compress.specs.registry import module_of
from .codecs import BLOCK, SUMMED

LEAST, MOST = 1 << 19, 12
"""Least elements of a part and most buckets of a section; equal to those of node/state/buckets.py."""
PIECES = 8
"""Sections of a stage that islands may hold in pieces; equal to SECTIONS of node/state/sections/cut.py."""


@dataclass(frozen=True, slots=True)
class EarlyRounds:
    """Rounds that begin within the pass. block: elements that are encoded together. sections: of a stage."""

    block: int = BLOCK
    sections: int = 1

    def buckets(self, elements: float, publishers: int) -> int:
        """The number of buckets of each section of a stage of so many trained elements; 1: nothing is offered early.
        ``publishers``: of a round; 1 where all members send to all."""
        section = int(elements) // self.sections
        return max(1, min(MOST, section // (LEAST * max(2, publishers)), -(-section // self.block)))


def early_rounds_of(job: Mapping[str, Any]) -> EarlyRounds | None:
    """What a job's tables say; None where nodes offer everything after the pass, or only one part to each publisher.

    After the pass: mode delta; fp16, whose loss scale is divided out then; 1-bit Adam, which makes momentum of the
    gradient; a user's own loop. One part: sums in phases, robust averages. The code of a codec from the job owner's
    module does not run here, so it may be one of phases.
    """
    model, train, updates, parallel = (job.get(name) or {} for name in ("model", "train", "updates", "parallel"))
    codec = str(updates.get("codec", "none"))
    late = (
        updates.get("mode", "gradient") != "gradient"
        or not updates.get("agreed", True)
        or updates.get("robust", "none") != "none"
        or codec.partition(":")[0] in SUMMED
        or bool(module_of(codec))
        or train.get("precision") == "fp16"
        or train.get("optimizer") == "onebit_adam"
        or bool(model.get("parameters"))
    )
    if late:
        return None
    block = updates.get("block", BLOCK)
    return EarlyRounds(int(block), 1 if parallel.get("inside", "ddp") == "ddp" else PIECES)
