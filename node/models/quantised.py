"""Frozen matrices in 8 or 4 bits a weight, beside which adapters train (QLoRA: Dettmers et al. 2023).

A matrix is cut into blocks of 64 weights, row by row. A block stores its largest magnitude in fp32, and each weight's
ratio to it: in int8 as one of 255 even steps, in NF4 as the nearest of 16 quantiles of the normal distribution. A layer
decodes the matrix when it computes, and again in its backward pass, and keeps neither copy.

A parameter that is kept like this is one row of bytes: the codes of all blocks, then their largest magnitudes. Its size
says which of the two it is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...compress.quantizers.formats import NF4
from ...scheduler.workloads.decoders import SLICE

BLOCK = 64
CODES = {"int8": BLOCK, "nf4": BLOCK // 2}
"""Bytes of a block's codes."""
_SCALE = 4  # bytes of a block's largest magnitude
_SLICE = SLICE
"""Weights of a packed matrix that a CPU decodes at a time: they stay in its cache."""
_WIDE_SLICE = 1 << 22  # on other devices, where each operation has a cost of its own


def packed_size(count: int, kind: str) -> int:
    """Bytes that ``count`` weights take."""
    return -(-count // BLOCK) * (CODES[kind] + _SCALE)


def pack(values: Tensor, kind: str) -> Tensor:
    """A matrix as bytes, uint8 [packed_size], on its device."""
    flat = values.detach().float().reshape(-1)
    blocks = functional.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    largest = blocks.abs().amax(1, keepdim=True)
    parts = torch.where(largest > 0, blocks / largest, 0.0)
    if kind == "int8":
        codes = (parts * 127).round().to(torch.int8).view(torch.uint8)
    else:
        levels = torch.tensor(NF4, device=flat.device)
        nearest = torch.bucketize(parts, (levels[1:] + levels[:-1]) / 2).to(torch.uint8)
        codes = nearest[:, ::2] | nearest[:, 1::2] << 4
    return torch.cat([codes.reshape(-1), largest.view(torch.uint8).reshape(-1)])


def unpack(data: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """The matrix that ``data`` (uint8) encodes, of shape ``shape``: computed in fp32, then rounded to ``dtype``. Beside
    it only a slice is in memory."""
    count = math.prod(shape)
    blocks = -(-count // BLOCK)
    codes = data[: len(data) - _SCALE * blocks].view(blocks, -1)
    largest = data[len(data) - _SCALE * blocks :].view(torch.float32)[:, None]
    result = torch.empty(blocks, BLOCK, dtype=dtype, device=data.device)
    step = (_SLICE if data.device.type == "cpu" else _WIDE_SLICE) // BLOCK
    for start in range(0, blocks, step):
        here = slice(start, start + step)
        if codes.shape[1] == CODES["int8"]:
            values = codes[here].view(torch.int8).float().div_(127)
        else:
            values = torch.index_select(_nf4_pairs(data.device), 0, codes[here].view(-1).int())
            values = values.view(torch.float32).view(-1, BLOCK)
        result[here] = values.mul_(largest[here])
        del values  # before the next slice
    return result.view(-1)[:count].view(shape)


@functools.cache
def _nf4_pairs(device: torch.device) -> Tensor:
    """For each byte the two fp32 levels that it encodes, as one int64: one look-up gives two weights."""
    codes, levels = torch.arange(256, device=device), torch.tensor(NF4, device=device)
    return torch.stack([levels[codes & 15], levels[codes >> 4]], 1).view(torch.int64).view(-1)


def fill(parameter: Tensor, values: Tensor) -> None:
    """Set a frozen parameter to ``values``; they are packed first if the parameter is packed and they are not."""
    if parameter.dtype == torch.uint8 and values.dtype != torch.uint8:
        kind = next(kind for kind in CODES if packed_size(values.numel(), kind) == len(parameter))
        values = pack(values, kind)
    parameter.copy_(values)


class _Product(torch.autograd.Function):
    """x W^T, or x W for a transposed matrix; the backward pass decodes W again."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, data: Tensor, shape: tuple[int, ...], transposed: bool) -> Tensor:
        kind = inputs.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs.dtype
        context.data, context.shape, context.transposed = data, shape, transposed
        context.dtype, context.given = dtype, inputs.dtype
        weight = unpack(data, shape, dtype)
        return inputs.to(dtype) @ (weight if transposed else weight.T)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        weight = unpack(context.data, context.shape, context.dtype)
        back = gradients[0] @ (weight.T if context.transposed else weight)
        return back.to(context.given), None, None, None


class PackedLinear(nn.Linear):
    """A linear layer whose frozen matrix is packed."""

    packed: tuple[int, ...]
    """The matrix's shape."""

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = _Product.apply(input, self.weight, self.packed, False)  # type: ignore[no-untyped-call]
        return output if self.bias is None else output + self.bias.to(output.dtype)


def pack_layers(blocks: Iterable[nn.Module], kind: str) -> set[str]:
    """Replace the linear layers of blocks on the meta device by layers with packed frozen matrices. Returns the names
    of those matrices within a block."""
    import transformers

    conv: Any = transformers.pytorch_utils.Conv1D
    found = set()
    for block in blocks:
        for path, module in block.named_modules():
            if type(module) not in (nn.Linear, conv) or module.weight.requires_grad:
                continue
            shape = tuple(module.weight.shape)
            data = torch.empty(packed_size(math.prod(shape), kind), dtype=torch.uint8, device="meta")
            module.weight = nn.Parameter(data, requires_grad=False)
            module.__class__ = PackedLinear if isinstance(module, nn.Linear) else _packed_conv()
            module.packed = shape
            found.add(f"{path}.weight")
    return found


@functools.cache
def _packed_conv() -> Any:
    """The class of GPT-2's layers (``Conv1D``) with packed matrices, which are stored transposed."""
    import transformers

    class PackedConv1D(transformers.pytorch_utils.Conv1D):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = _Product.apply(x, self.weight, self.packed, True)  # type: ignore[no-untyped-call]
            bias: Tensor = self.bias
            return output + bias.to(output.dtype)

    return PackedConv1D
