"""DoRA (Liu et al. 2024) beside frozen matrices of any kind: ``dora = true`` under ``[model.lora]``.

Each row of W + scaling B A, divided by its length, is multiplied by a magnitude that trains too. The length counts as a
constant in the backward pass, as in `peft`, whose adapter layers call the module of this file in place of their own:
that one reads ``weight`` of the frozen layer, which may be packed here, and multiplies an identity matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ...proto.errors import FarflungError
from .quantised import unpack

VECTORS = "lora_magnitude_vector"
"""The name under which `peft` keeps magnitudes."""
_AT_ONCE = 1 << 20
"""Elements, in whole rows, that are computed at a time, so that no second matrix lies in memory."""


class Magnitude(nn.Module):
    """The magnitudes of one layer, fp32 [outputs]."""

    def __init__(self, outputs: int, transposed: bool) -> None:
        """``transposed``: the layer keeps its matrix as [inputs, outputs]."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, device="meta"))
        self.transposed = transposed

    def forward(
        self,
        x: Tensor,
        *,
        lora_A: nn.Module,
        lora_B: nn.Module,
        scaling: float,
        base_layer: Any,
        base_result: Tensor | None = None,
        adapter_name: str = "default",
    ) -> Tensor:
        """What is to be added to the frozen layer's output. ``base_result``: that output; None if it was computed from
        other inputs than ``x``, because the adapter drops some."""
        whole = nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
        with torch.no_grad(), whole:
            matrix = rows_of(base_layer, self.transposed)
            lengths = torch.cat([*_lengths(matrix, lora_A.weight, lora_B.weight, scaling)])  # type: ignore[arg-type]
        factor = (self.weight / above_zero(lengths)).view(1, -1)
        if base_result is None:
            base_result = base_layer(x)
        if base_layer.bias is not None:
            base_result = base_result - base_layer.bias
        added: Tensor = (factor - 1) * base_result + factor * lora_B(lora_A(x)) * scaling
        return added


def above_zero(lengths: Tensor) -> Tensor:
    """The lengths by which rows are divided: a row of zeros, as pruned models have, has no direction and stays zeros,
    where 0 / 0 would spoil every step."""
    return torch.where(lengths > 0, lengths, math.inf)


def rows_of(layer: Any, transposed: bool) -> Tensor:
    """The frozen matrix of a layer as [outputs, inputs], unpacked."""
    values: Tensor = layer.weight
    if values.dtype == torch.uint8:
        values = unpack(values, layer.packed)
    return values.T if transposed else values


def _lengths(matrix: Tensor, down: Tensor, up: Tensor, scaling: float) -> Iterator[Tensor]:
    """The lengths of the rows of ``matrix`` + scaling B A, fp32, some rows at a time. A: ``down``; B: ``up``."""
    count = max(1, _AT_ONCE // matrix.shape[1])
    for start in range(0, len(matrix), count):
        here = slice(start, start + count)
        yield torch.linalg.vector_norm(matrix[here].float() + scaling * (up[here] @ down), dim=1)


def add_magnitudes(model: nn.Module, transposed: bool) -> None:
    """Replace `peft`'s modules of magnitudes, in a model on the meta device."""
    for module in model.modules():
        vectors = getattr(module, VECTORS, None)
        if vectors is not None and "default" in vectors:
            vectors["default"] = Magnitude(len(vectors["default"].weight), transposed)


def first_magnitudes(models: Iterable[nn.Module]) -> dict[str, Tensor]:
    """The magnitudes with which a run begins, by the parameters' names: the lengths of the frozen rows. They are sums
    of integers on the CPU, so that all members of a group begin with the same bits.

    Raises:
        FarflungError: a frozen matrix has a value that is not finite.
    """
    found = {}
    for model in models:
        for path, module in model.named_modules():
            vectors = getattr(module, VECTORS, None)
            if vectors is not None and "default" in vectors:
                layer: Any = module
                matrix = rows_of(layer.base_layer, vectors["default"].transposed)
                lengths = exact_lengths(matrix.detach().cpu().float())
                if not bool(torch.isfinite(lengths).all()):
                    raise FarflungError(
                        f"the frozen weights of {path} have values that are not finite",
                        "model.lora.dora begins with the lengths of their rows: take a sound model folder",
                    )
                found[f"{path}.{VECTORS}.default.weight"] = lengths
    return found


def exact_lengths(matrix: Tensor) -> Tensor:
    """The Euclidean length of each row of fp32 [rows, columns] on the CPU: the same bits on every processor. Infinite
    where a value is not finite."""
    scale = 2.0 ** (62 - matrix.shape[1].bit_length())
    count = max(1, _AT_ONCE // matrix.shape[1])
    found = []
    for start in range(0, len(matrix), count):
        rows = matrix[start : start + count].double()
        whole = torch.isfinite(rows).all(1)
        rows[~whole] = 0.0
        _, exponents = torch.frexp(rows.abs().amax(1, keepdim=True))
        small = torch.ldexp(rows, -exponents)  # exact, and below 1
        sums = (small.square() * scale).round().to(torch.int64).sum(1).tolist()
        lengths = [math.sqrt(total / scale) for total in sums]
        exact = torch.ldexp(torch.tensor(lengths, dtype=torch.float64), exponents[:, 0]).float()
        found.append(torch.where(whole, exact, torch.inf))
    return torch.cat(found)


def merged_rows(rows: Tensor, magnitudes: Tensor) -> Tensor:
    """The matrix [outputs, inputs] that a layer with these magnitudes multiplies with. ``rows``: W + scaling B A."""
    factors: Tensor = magnitudes / above_zero(torch.linalg.vector_norm(rows, dim=1))
    return rows * factors[:, None]
