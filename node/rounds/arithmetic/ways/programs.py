"""A codec's own program in a round, parameter by parameter, and the encoding of the values that it asks to be
reduced."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..... import compress
from .....compress.codec import bytes_tensor, tensor_bytes
from .....compress.exchange.requests import Context, Program, Reduce
from .....compress.primitives.packing import pack, packed_size, unpack
from ...protocol.payloads import Refused


@dataclass
class Running:
    """One parameter's program in one round. ``total``: the weighted sum over the contributors, once the program has
    ended."""

    start: int
    stop: int
    program: Program
    context: Context
    request: Reduce | None = field(init=False)
    total: Tensor | None = None
    phase: int = 0

    def __post_init__(self) -> None:
        self.request = _reduction(next(self.program))

    def take(self, answer: Tensor | None, contributors: int, part: float) -> None:
        """Continue the program with the answer to ``request``; nothing happens if it has ended. ``part``: this member's
        fraction of the contributors' weight."""
        self.phase += 1
        if self.request is None:
            return
        self.context.size, self.context.part = contributors, part
        try:
            self.request = _reduction(self.program.send(answer))
        except StopIteration as end:
            self.request, self.total = None, end.value.reshape(-1)


def _reduction(request: object) -> Reduce:
    if not isinstance(request, Reduce):
        raise compress.CodecError(f"a round can't answer a {type(request).__name__}")
    return request


def check_levels(run: Running, value: Tensor | None, member: str) -> None:
    """Refused if integers are so large that the sum over all members may not fit the request's bits."""
    request = run.request
    if value is None or request is None or request.bits is None or not value.numel():
        return
    if int(value.max()) * run.context.size >= 1 << request.bits:
        raise Refused(member, f"a level of {int(value.max())}, which this codec does not have")


def to_bytes(tensor: Tensor, bits: int = 1) -> bytes:
    """The bytes of a tensor to be reduced, or of its reduction: fp32 and bfloat16 unchanged; non-negative integers
    bit-packed in as few bits as they need, at least ``bits``."""
    if tensor.is_floating_point():
        return bytes(tensor_bytes(tensor if tensor.dtype == torch.bfloat16 else tensor.to(torch.float32)))
    flat = tensor.reshape(-1)
    bits = max(bits, int(flat.max()).bit_length()) if flat.numel() else bits
    low = bytes(tensor_bytes(pack((flat & 255).to(torch.uint8), min(bits, 8))))
    high = bytes(tensor_bytes(pack((flat >> 8).to(torch.uint8), bits - 8))) if bits > 8 else b""
    return bytes([bits]) + low + high


def from_bytes(blob: bytes | memoryview, request: Reduce | None) -> Tensor | None:
    """The tensor of ``to_bytes``, shaped as the request's; fp32 of bfloat16, so that sums are rounded once."""
    if request is None:
        if len(blob):
            raise compress.CodecError(f"{len(blob)} bytes where nothing was asked")
        return None
    like = request.tensor
    count = like.numel()
    if like.is_floating_point():
        dtype = torch.bfloat16 if like.dtype == torch.bfloat16 else torch.float32
        if len(blob) != dtype.itemsize * count:
            raise compress.CodecError(f"{len(blob)} bytes for {count} numbers")
        values = bytes_tensor(blob, dtype, like.device).to(torch.float32)
        if not bool(torch.isfinite(values).all()):
            raise compress.CodecError("values that are not finite")
        return values.view(like.shape)
    bits = blob[0] if len(blob) else 0
    low = packed_size(count, min(bits, 8))
    if not 1 <= bits <= 16 or len(blob) != 1 + low + (packed_size(count, bits - 8) if bits > 8 else 0):
        raise compress.CodecError(f"{len(blob)} bytes for {count} whole numbers")
    codes = unpack(bytes_tensor(blob[1 : 1 + low], torch.uint8, like.device), count, min(bits, 8)).to(torch.int32)
    if bits > 8:
        high = unpack(bytes_tensor(blob[1 + low :], torch.uint8, like.device), count, bits - 8)
        codes = codes | high.to(torch.int32) << 8
    return codes.view(like.shape)


def reduced(request: Reduce, total: Tensor | None, value: Tensor) -> Tensor:
    """The reduction so far (None: no member yet) combined with one more member's values."""
    if total is None:
        return value
    return total + value if request.op == "sum" else torch.maximum(total, value)
