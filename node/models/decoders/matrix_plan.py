"""How matrices of a model's blocks may be cut over the devices of one node: `transformers`' own plan for the family."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from ....proto.errors import FarflungError

Cut = Literal["columns", "rows", "summed"]
"""``columns``: the outputs are cut, each device computes some of them; ``rows``: the inputs are cut, and the outputs
are summed over devices; ``summed``: each device has the whole parameter, and the gradients are summed over devices."""

_CUTS: Mapping[str, Cut] = {"colwise": "columns", "rowwise": "rows", "replicated_with_grad_allreduce": "summed"}
_BLOCK = "layers.*."


def matrix_plan(config: Any) -> dict[str, Cut]:
    """How the parameters of a block's modules are cut, by the module's path within the block; all others stay whole.

    Raises:
        FarflungError: the family has no such plan, or its plan has a kind of cut that this version does not have.
    """
    table: Mapping[str, str] = getattr(config, "base_model_tp_plan", None) or {}
    told = {path.removeprefix(_BLOCK): kind for path, kind in table.items() if path.startswith(_BLOCK)}
    unknown = sorted({kind for kind in told.values() if kind not in _CUTS})
    if unknown or not told:
        why = f"wants {', '.join(unknown)}" if unknown else "has no plan for its matrices"
        raise FarflungError(
            f'parallel.inside = "tp": the model family {config.model_type!r} {why}',
            'write inside = "fsdp" under [parallel], or use a family like llama, mistral, qwen2 or qwen3',
        )
    return {path: _CUTS[kind] for path, kind in told.items()}


def shares_of(config: Any) -> int:
    """The most devices that can share the matrices of a block; each divisor of it can, too."""
    return math.gcd(*_sizes(config).values())


def can_share(config: Any) -> int:
    """As ``shares_of``; 0 if the family's matrices cannot be cut."""
    try:
        matrix_plan(config)
    except FarflungError:
        return 0
    return shares_of(config)


def check_heads(config: Any, ranks: int) -> None:
    """FarflungError if ``ranks`` devices do not divide the number of heads, of key heads, and the MLP's inner width."""
    bad = [f"{count} {name}" for name, count in _sizes(config).items() if count % ranks]
    if bad:
        most = shares_of(config)
        fit = [str(n) for n in range(2, most + 1) if most % n == 0]
        raise FarflungError(
            f'parallel.inside = "tp": {" and ".join(bad)} of this model cannot be shared by {ranks} devices',
            f"use --island {' or '.join(fit[:4])}" if fit else 'write inside = "fsdp" under [parallel]',
        )


def _sizes(config: Any) -> dict[str, int]:
    heads = int(config.num_attention_heads)
    sizes = {
        "heads": heads,
        "heads of keys": getattr(config, "num_key_value_heads", None) or heads,
        "inner width": getattr(config, "intermediate_size", None),
    }
    return {name: int(size) for name, size in sizes.items() if size}
