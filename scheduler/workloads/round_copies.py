"""The memory of rounds beside weights and moments (errors and messages), in units of one fp32 vector as long as the
stage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...compress.specs.registry import module_of
from ...compress.specs.spec import parse, spec_feedback, traits_of
from .codecs import bits_of
from .workload import settled_pattern

IN_FLIGHT = 64 << 20
"""Bytes of its contributions that a node has in flight in gradient mode (node/rounds/protocol/window.py)."""
LEAST_FLYING = 1 / 6
"""The part of its contributions that it has in flight at least: two of twelve buckets."""
PUBLISHED = ("publishers", "two_level")
USUAL = 4
"""Members that a group is assumed to have where the plan chooses their number."""


def error_copies(updates: Mapping[str, Any], codec: str, pattern: str, members: int, overlap: int) -> float:
    """The number of fp32 vectors, each as long as the stage, for residuals and server errors. x - g is not stored, so
    it does not count."""
    if members < 2 or codec in ("none", "auto"):
        return 0.0
    if module_of(codec):  # a codec from the job owner's module: its code does not run here, so it may keep an error
        width = 0.5 if updates.get("residual") == "bf16" else 1.0
        return width if updates.get("mode", "gradient") == "gradient" else 0.0
    spec = parse(codec)
    carries = traits_of(spec).contracts
    width = 0.5 if updates.get("residual") == "bf16" else 1.0
    if updates.get("mode", "gradient") == "gradient":
        own = width if carries else 0.0
    else:
        own = width * (1.0 + (overlap > 1)) if spec_feedback(spec) else 0.0
    if pattern not in PUBLISHED or not carries:
        return own
    heavy = members * bits_of(codec) >= 32  # then old and new server error coexist until the result is applied
    return own + width * (2.0 if heavy else 1.0) / members


def message_copies(
    updates: Mapping[str, Any], codec: str, pattern: str, members: int, elements: float = math.inf
) -> float:
    """About the largest total of a round's messages on one node, as a number of fp32 vectors as long as the stage.
    ``elements``: the stage's; the longer it is, the smaller is the part of it that gradient mode has in flight."""
    if members < 2:
        return 0.0
    dense = codec in ("none", "auto") or int(updates.get("dense_rounds", 0)) > 0
    share = 1.0 if dense else bits_of(codec) / 32
    whole = (3.0 - 1 / members) * share  # what it sends, what it adds up as a publisher, and the results
    if updates.get("mode", "gradient") == "gradient":
        carries = not dense and (bool(module_of(codec)) or traits_of(parse(codec)).contracts)
        flies = share * max(LEAST_FLYING, min(1.0, IN_FLIGHT / (4 * share * elements)))
        if pattern == "all_to_all":  # with error feedback the contributions, which are the sum, stay until the commit
            return share * members if carries else min(share * members, (members + 1) * flies)
        return min(whole, carries * share + 3 * flies)
    if pattern == "all_to_all":
        return share * (2 * members - 1)  # the others' of the next round come while all of this one are still there
    return whole


def pattern_of(updates: Mapping[str, Any], members: int) -> str:
    """The pattern of a group with so many members; "auto" is resolved."""
    return settled_pattern(str(updates.get("pattern", "auto")), members)
