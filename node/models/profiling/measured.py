"""The flops of a decoder's layer and the memory that it keeps, found by computing it once on the meta device.

There tensors have shapes and no memory, so a layer of any size is counted in milliseconds: the flops of its matrix
products, the tensors that torch keeps for the backward pass, and the copies of weights that autocast makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from ..decoders.anatomy import EXPERTS, NoValues
from ..definition import LanguageModel
from ..stage import LanguageStage
from .kept import Kept


@dataclass(frozen=True)
class Cost:
    """For one sample: flops of a forward pass, and kept elements of 4 bytes. copies: elements kept once per microbatch
    (bf16 copies of weights). active: weights that one token is multiplied with."""

    flops: float
    stored: int
    copies: int
    active: int


def measure(definition: LanguageModel, context: int, precision: str) -> list[Cost]:
    """The cost of each layer for samples of ``context`` tokens; blocks that are alike are counted once."""
    found: list[Cost] = []
    known: dict[Any, Cost] = {}
    width = int(definition.config.hidden_size)
    per_token = int(getattr(definition.config, "num_experts_per_tok", None) or 1)
    for layer in range(len(definition.layers)):
        likeness = _likeness(definition, layer)
        if likeness not in known:
            stage = definition.build(layer, layer, "meta").train()
            received = context + definition.beside(context), width
            known[likeness] = _cost(stage, context, received, precision, per_token)
        found.append(known[likeness])
    return found


_NOTHING = Cost(0.0, 0, 0, 0)


def measure_pieces(definition: LanguageModel, context: int, precision: str) -> list[tuple[Cost, Cost]]:
    """The cost of each block of a model whose embedding and head are frozen: (with the embedding if it is the first,
    the head's if it is the last). Each is computed as its stage computes it: the embedding's output needs no gradient.
    """
    received = context + definition.beside(context), int(definition.config.hidden_size)
    count = definition.anatomy.count
    found: list[tuple[Cost, Cost]] = []
    known: dict[Any, Cost] = {}
    for block in range(count):
        trained = tuple(definition.shapes[name] for name in definition.parameter_names(block, block))
        likeness = block > 0, trained, tuple(sorted(definition.frozen[name] for name in definition.frozen_names[block]))
        if likeness not in known:
            stage = LanguageModel.build(definition, block + (block > 0), block + 1, "meta").train()
            known[likeness] = _cost(stage, context, received, precision, 1)
        found.append((known[likeness], _NOTHING))
    head = LanguageModel.build(definition, count + 1, count + 1, "meta").train()
    found[-1] = found[-1][0], _cost(head, context, received, precision, 1)
    return found


def _cost(stage: LanguageStage, context: int, received: tuple[int, int], precision: str, per_token: int) -> Cost:
    one, two = (_count(stage, context, received, samples, precision) for samples in (1, 2))
    # Kept memory that does not grow with the samples belongs to the weights: their bf16 copies.
    stored = two[1] - one[1]
    copies = max(0, one[1] - stored) if precision != "fp32" else 0
    return Cost(one[0], stored // 4, copies // 4, _active(stage, per_token))


def _likeness(definition: LanguageModel, layer: int) -> Any:
    names = definition.parameter_names(layer, layer)
    kinds = getattr(definition.config, "layer_types", None) or ()
    block = 0 < layer <= definition.anatomy.count
    kind = kinds[layer - 1] if block and layer <= len(kinds) else None
    return block or layer, kind, tuple(definition.shapes[name] for name in names)


def _count(
    stage: LanguageStage, context: int, received: tuple[int, int], samples: int, precision: str
) -> tuple[float, int]:
    """(flops, bytes kept) of a forward pass with ``samples`` samples. ``received``: the shape of one from the stage
    before."""
    if stage.is_first:
        inputs = torch.zeros(samples, context, dtype=torch.long, device="meta")
    else:
        inputs = torch.zeros(samples, *received, device="meta", requires_grad=True)
    kept = Kept([*stage.parameters(), *stage.buffers()])
    experts = _Experts(stage)
    try:
        with (
            torch.device("meta"),
            NoValues(),
            kept.watched(),
            FlopCounterMode(display=False) as counter,
            _Device(precision != "fp32") as device,
        ):
            output = stage(inputs)
            if stage.is_last:
                stage.loss_sum(output, torch.zeros(samples, context, dtype=torch.long, device="meta"))
    finally:
        experts.restore()
    return float(counter.get_total_flops() + device.flops + experts.flops), kept.bytes


def _active(stage: LanguageStage, per_token: int) -> int:
    """Weights that one token is multiplied with: of the experts, only ``per_token`` count."""
    total = sum(parameter.numel() for parameter in stage.parameters())
    for module in stage.modules():
        if experts := _experts(module):
            total -= sum(one.numel() for one in module.parameters()) * max(0, experts - per_token) // experts
    return total


_PRODUCTS = frozenset(
    {
        functional.linear,
        *(getattr(torch, name) for name in ("matmul", "bmm", "addmm", "baddbmm")),
        *(getattr(Tensor, name) for name in ("matmul", "__matmul__", "bmm", "addmm", "baddbmm")),
    }
)


class _Device(TorchFunctionMode):
    """Makes the meta device behave as real devices do: attention keeps no scores, and under autocast (``half``)
    products are computed in bf16."""

    def __init__(self, half: bool) -> None:
        super().__init__()
        self.half, self.flops = half, 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        attends = func is functional.scaled_dot_product_attention
        if self.half and (attends or func in _PRODUCTS):
            args = tuple(self._halved(one) for one in args)
            kwargs = {name: self._halved(one) for name, one in (kwargs or {}).items()}
        if attends:
            query, key, value = args[:3]
            pairs = query[..., 0].numel() * key.shape[-2]
            self.flops += 2.0 * pairs * (query.shape[-1] + value.shape[-1])
            return _Attended.apply(query, key, value)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))

    def _halved(self, value: Any) -> Any:
        return value.to(torch.bfloat16) if isinstance(value, Tensor) and value.dtype == torch.float32 else value


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = query.new_empty((*query.shape[:-1], value.shape[-1]))
        sums = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)
        context.save_for_backward(query, key, value, output, sums)
        return output

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError


class _Experts:
    """Replaces the experts of a stage on the meta device, where the routing is unknown; the number of experts per token
    is known."""

    def __init__(self, stage: nn.Module) -> None:
        self.flops = 0.0
        self._changed = [module for module in stage.modules() if _experts(module)]
        for module in self._changed:
            module.forward = self._of(module)  # type: ignore[method-assign, assignment]

    def restore(self) -> None:
        for module in self._changed:
            del module.forward

    def _of(self, module: nn.Module) -> Any:
        experts = _experts(module)

        def forward(hidden: Tensor, chosen_ones: Tensor, *rest: Any, **named: Any) -> Tensor:
            tokens, chosen = hidden.numel() // hidden.shape[-1], chosen_ones.shape[-1]
            weights = sum(parameter.numel() for parameter in module.parameters()) // experts
            self.flops += 2.0 * tokens * chosen * weights
            inner = weights // hidden.shape[-1]  # 3 x the inner width: of the matrices gate, up and down
            kept = tokens * chosen * (inner * 4 // 3 + 3 * hidden.shape[-1])
            output: Tensor = _Expert.apply(hidden, kept)  # type: ignore[no-untyped-call]
            return output

        return forward


class _Expert(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, hidden: Tensor, elements: int) -> Tensor:
        context.save_for_backward(hidden.new_empty(elements))
        return torch.empty_like(hidden)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError


def _experts(module: nn.Module) -> int:
    """How many experts a module of experts has; 0 for any other module."""
    stacks = [one for one in module._parameters.values() if one is not None and one.dim() == 3]
    return len(stacks[0]) if stacks and type(module).__name__.lower().endswith(EXPERTS) else 0
