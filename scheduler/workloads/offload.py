"""Where the vectors of a stage lie by ``train.offload``: on the device or in main memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NONE, MOMENTS = "none", "moments"


def offload_of(train: Mapping[str, Any]) -> str:
    """The kind of a job's table [train] as a word."""
    found = train.get("offload", False)
    return {True: MOMENTS, False: NONE}.get(found, str(found))
