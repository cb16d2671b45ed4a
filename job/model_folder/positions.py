"""The longest text that a model of `transformers` accepts, from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_STRETCHED = frozenset({"yarn", "linear", "dynamic"})
"""Kinds of rotary scaling whose length has to be multiplied by ``factor``; for other kinds ``max_position_embeddings``
includes it."""


_AFTER_PADDING = frozenset({"roberta", "camembert", "roberta-prelayernorm", "roberta-xl", "mpnet", "longformer"})
"""Families whose positions begin after the number of the padding token."""


def longest_of(config: Mapping[str, Any]) -> int | None:
    """Tokens of the longest text; None where the configuration does not say.

    With scaled rotary angles it is ``factor`` times the original length, which is given beside the factor or is
    ``max_position_embeddings``.
    """
    limit = config.get("n_positions", config.get("max_position_embeddings"))
    if limit is None:
        return None
    if str(config.get("model_type")).removeprefix("xlm-") in _AFTER_PADDING:
        pad = config.get("pad_token_id")
        limit = int(limit) - 1 - (pad if isinstance(pad, int) else 1)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    factor = rope.get("factor") if isinstance(rope, Mapping) else None
    if factor and rope.get("rope_type", rope.get("type")) in _STRETCHED:
        before = rope.get("original_max_position_embeddings") or limit
        return max(int(limit), int(before * factor))
    return int(limit)
