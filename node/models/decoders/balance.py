"""The balance loss of a mixture's routers, layer by layer, so that each stage computes that of its own blocks.

For a layer with N experts it is N x the sum over experts of (the fraction of tokens routed to the expert) x (the mean
router probability of the expert), as in Fedus et al. 2021, (4) to (6), computed by `transformers`' own function for the
family. The model's balance loss is the mean over its layers. (`transformers` averages both factors over all layers
before it multiplies them, which only one process can do; for one layer the two are the same.)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from ....proto.errors import FarflungError


def check_balanced(model: Any) -> None:
    """FarflungError for a family whose routers have no balance loss in `transformers`."""
    if _recorder(model) is None or _loss(model) is None:
        raise FarflungError(
            f"model.router_loss: the family {model.config.model_type!r} has no balance loss of its routers",
            hint="leave router_loss out",
        )


class Routers:
    """The routers of some blocks, and their logits in the last pass."""

    def __init__(self, model: Any, blocks: Iterable[nn.Module], weight: float) -> None:
        """``model``: the whole model, on the meta device. ``weight``: the balance loss's weight."""
        config, recorder = model.config, _recorder(model)
        self._loss, self._index = _loss(model), recorder.index
        self._experts = int(getattr(config, "num_local_experts", 0) or config.num_experts)
        self._chosen = int(config.num_experts_per_tok)
        self._weight = weight / sum(isinstance(one, recorder.target_class) for one in model.modules())
        self._said: dict[int, Tensor] = {}
        own = [one for block in blocks for one in block.modules() if isinstance(one, recorder.target_class)]
        for number, router in enumerate(own):
            router.register_forward_hook(self._heard(number))

    def _heard(self, number: int) -> Any:
        said, index = self._said, self._index

        def hook(module: nn.Module, args: Any, output: Any) -> None:
            said[number] = output[index] if isinstance(output, tuple) else output

        return hook

    def loss(self) -> Tensor | None:
        """The balance loss of the last pass times its number of tokens, so that it can be added to a loss sum over
        tokens; None without a router."""
        said = [self._said[number] for number in sorted(self._said)]
        self._said.clear()
        if not said:
            return None
        losses = [self._loss((one,), self._experts, self._chosen) * len(one) for one in said]
        total: Tensor = sum(losses[1:], losses[0]) * self._weight
        return total


def _recorder(model: Any) -> Any:
    """`transformers`' record of the family's routers: their class, and the index of the logits in their output. None:
    it has none."""
    for one in (model.base_model, model):
        found = (getattr(one, "_can_record_outputs", None) or {}).get("router_logits")
        if found is not None:
            return found if hasattr(found, "target_class") else _Plain(found)
    return None


class _Plain:
    """A recorder that `transformers` gives as a class alone: its output is the logits."""

    index = 0

    def __init__(self, target_class: type[nn.Module]) -> None:
        self.target_class = target_class


def _loss(model: Any) -> Any:
    return getattr(sys.modules[type(model).__module__], "load_balancing_loss_func", None)
