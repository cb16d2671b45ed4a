"""Where the vectors of a stage lie by ``train.offload``: on the device or in main memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AUTO, NONE, MOMENTS, OPTIMIZER, PARAMETERS = "auto", "none", "moments", "optimizer", "parameters"
OF_AUTO = (NONE, MOMENTS, OPTIMIZER, PARAMETERS)
"""The kinds among which a plan chooses, the least first; the last only where layers may be computed again."""
MOVABLE = frozenset((NONE, MOMENTS))
"""The kinds between which the optimiser's moments alone move: a node need not lay out its state anew."""
APART = (OPTIMIZER, PARAMETERS)
"""The kinds with which the weights that the optimiser moves, and all that rounds keep, lie in main memory; the device
has copies to compute with, and a gradient only until it is copied."""
COPY = 4.0
"""Bytes of a weight that the device computes with."""


def offload_of(train: Mapping[str, Any]) -> str:
    """The kind of a job's table [train] as a word."""
    found = train.get("offload", False)
    return found if isinstance(found, str) else MOMENTS if found else NONE


def block_bytes(kind: str) -> float | None:
    """Bytes that a block's weights take on the device between passes, for each parameter; None: as many as others."""
    return 0.0 if kind == PARAMETERS else None


def on_device(kind: str, weights: float, moments: float, reference: float) -> float:
    """Bytes that a parameter takes on the device. ``weights``: of the weight and its gradient."""
    if kind in APART:
        return COPY
    return weights + reference + (moments if kind in (NONE, AUTO) else 0.0)
