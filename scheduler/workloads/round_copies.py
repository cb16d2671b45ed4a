"""What rounds hold beside weights and moments, in vectors of fp32 as long as the stage: errors, and messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...compress.specs.registry import module_of
from ...compress.specs.spec import parse, spec_feedback, traits_of
from .codecs import bits_of
from .workload import settled_pattern

PUBLISHED = ("publishers", "two_level")
USUAL = 4
"""Members of a group that are counted with where the plan chooses how many."""


def error_copies(updates: Mapping[str, Any], codec: str, pattern: str, members: int, overlap: int) -> float:
    """Vectors as long as the stage that hold what encodings lost; x - g is none."""
    if members < 2 or codec in ("none", "auto"):
        return 0.0
    if module_of(codec):  # of the job's owner: its code does not run here, so it may keep an error
        return 1.0 if updates.get("mode", "gradient") == "gradient" else 0.0
    spec = parse(codec)
    carries = traits_of(spec).contracts
    if updates.get("mode", "gradient") == "gradient":
        own = 1.0 if carries else 0.0
    else:
        own = (1.0 + (overlap > 1)) if spec_feedback(spec) else 0.0
    if pattern not in PUBLISHED or not carries:
        return own
    heavy = members * bits_of(codec) >= 32  # then the error after a sum lies beside the one before until it is applied
    return own + (2.0 if heavy else 1.0) / members


def message_copies(updates: Mapping[str, Any], codec: str, pattern: str, members: int) -> float:
    """About the most that a round has under way, in vectors of fp32 as long as the stage."""
    if members < 2:
        return 0.0
    dense = codec in ("none", "auto") or int(updates.get("dense_rounds", 0)) > 0
    share = 1.0 if dense else bits_of(codec) / 32
    if pattern == "all_to_all":
        kept = 1 if updates.get("mode", "gradient") == "gradient" else 2  # the round before, for who is behind
        return share * members * kept
    return 3.0 * share


def pattern_of(updates: Mapping[str, Any], members: int) -> str:
    """How a group of so many members exchanges, where the job does not say."""
    return settled_pattern(str(updates.get("pattern", "auto")), members)
