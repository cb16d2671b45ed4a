"""``int8``, ``int4``, ``int2``: symmetric integers with one 16-bit step per group of neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..blobs.pieces import Doubt, Piece, onto
from ..blobs.wire import Buffer, Header, Reader
from ..codec import Codec, bytes_tensor, check_finite, tensor_bytes
from ..cpu import dispatch as fast
from ..cpu.calls import tables as tabled
from ..errors import CodecError
from ..gpu import dispatch as gpu
from ..primitives import philox, scales
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, unpack

_CHUNK = 1 << 17  # elements at once on the CPU: the temporaries stay in the cache


class Group(Codec):
    """q = round(x / step) in [-(2^(b-1) - 1), 2^(b-1) - 1], step = max|x| of the group / (2^(b-1) - 1).

    Nearest rounding is biased; stochastic rounding is unbiased, and its step is rounded up so that nothing is clipped.
    """

    refuses = True

    def __init__(self, spec: object) -> None:
        super().__init__(spec)  # type: ignore[arg-type]
        self.bits = int(self.spec.name[3:])
        self.top = (1 << (self.bits - 1)) - 1
        self.group = self.spec.number("group")
        self.full = self.spec.number("scale") == 32
        self.stochastic = self.spec.word("rounding") == "stochastic"

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        if self._on_gpu(x.device):
            flag = gpu.new_flag(x.device)
            parts = gpu.group_encode(x, self.group, self.bits, self.stochastic, key.dither, flag)
            return [*parts, Doubt(flag, lambda: self._write(x, key))]
        return self._write(x, key)

    def _write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        if x.device.type == "cpu" and fast.worth(x.numel()):
            quick = tabled.quantize(x, self.group, self.bits, self.full, self.stochastic, key.dither)
            if quick is not None:
                return [tensor_bytes(part) for part in quick]
        check_finite(x)
        steps, codes = self.quantize(x, key)
        return [tensor_bytes(steps), tensor_bytes(pack(codes, self.bits))]

    def quantize(self, x: torch.Tensor, key: Key) -> tuple[torch.Tensor, torch.Tensor]:
        """(steps ``[groups]``, int16 codes or fp32, uint8 codes ``[n]``, the level plus 2^(b-1))."""
        n, group = x.numel(), self.group
        groups = -(-n // group)
        steps = torch.empty(groups, dtype=torch.float32 if self.full else torch.int16, device=x.device)
        codes = torch.empty(n, dtype=torch.uint8, device=x.device)
        chunk = max(1, _CHUNK // group) * group if x.device.type == "cpu" else n
        for start in range(0, n, chunk):
            part = x[start : start + chunk]
            size = part.numel()
            if size % group:
                part = torch.nn.functional.pad(part, (0, group - size % group))
            rows = part.view(-1, group)
            step = scales.divided(rows.abs().amax(1), self.top).clamp(max=scales.most_full(self.top))
            code = step if self.full else scales.to_codes(step, self.stochastic, self.top)
            step = step if self.full else scales.to_scales(code)
            ratio = rows / torch.where(step > 0, step, torch.ones_like(step))[:, None]
            if self.stochastic:
                ratio.add_(philox.uniform(ratio.numel(), key.dither, 0, start, x.device).view_as(ratio)).floor_()
            else:
                ratio.round_()
            ratio.clamp_(-self.top, self.top)
            first = start // group
            steps[first : first + len(code)] = code
            level = torch.where(step[:, None] > 0, ratio, torch.zeros_like(ratio)) + float(1 << (self.bits - 1))
            codes[start : start + size] = level.view(-1)[:size].to(torch.uint8)
        return steps, codes

    def _on_gpu(self, device: torch.device) -> bool:
        fits = self.bits in (4, 8) and self.group in (32, 64, 128, 256, 512) and not self.full
        return fits and gpu.available(device)

    def accumulate(self, reader: Reader, header: Header, outs: Sequence[torch.Tensor], weight: float) -> None:
        device = outs[0].device
        if self._on_gpu(device):
            step_bytes, packed = (
                reader.take(2 * -(-header.elements // self.group)),
                reader.take(packed_size(header.elements, self.bits)),
            )
            reader.end()
            scales.check_codes(bytes_tensor(step_bytes, torch.int16), self.top)
            steps, codes = bytes_tensor(step_bytes, torch.int16, device), bytes_tensor(packed, torch.uint8, device)
            for out in outs:
                gpu.group_decode(codes, steps, out, self.group, self.bits, weight)
            return
        if device.type != "cpu" or not fast.worth(header.elements):
            super().accumulate(reader, header, outs, weight)
            return
        steps, packed = self._parts(reader, header, device)
        reader.end()
        for out in outs:
            tabled.add_groups(out, packed, steps, self.group, self.bits, weight)

    def write_to(self, reader: Reader, header: Header, out: torch.Tensor) -> None:
        if out.device.type == "cpu" and out.dtype == torch.float32 and fast.worth(out.numel()):
            steps, packed = self._parts(reader, header, out.device)
            tabled.add_groups(out, packed, steps, self.group, self.bits, None)
        else:
            super().write_to(reader, header, out)

    def decoded_norm(self, reader: Reader, header: Header, device: torch.device) -> float | torch.Tensor:
        if device.type != "cpu" or not fast.worth(header.elements):
            return super().decoded_norm(reader, header, device)
        steps, packed = self._parts(reader, header, device)
        reader.end()
        return math.sqrt(tabled.group_squares(packed, steps, self.group, self.bits, header.elements))

    def _parts(self, reader: Reader, header: Header, device: torch.device) -> tuple[torch.Tensor, memoryview]:
        """(fp32 steps, packed levels) of a body."""
        steps = reader.take((4 if self.full else 2) * -(-header.elements // self.group))
        return read_steps(steps, self.full, self.top, device), reader.take(packed_size(header.elements, self.bits))

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        n, group = header.elements, self.group
        step, packed = self._parts(reader, header, device)
        if device.type == "cpu" and fast.worth(n):
            out = torch.empty(n)
            tabled.add_groups(out, packed, step, group, self.bits, None)
            return out
        levels = unpack(bytes_tensor(packed, torch.uint8, device), n, self.bits).to(torch.float32)
        levels -= float(1 << (self.bits - 1))
        whole = n - n % group
        levels[:whole].view(-1, group).mul_(step[: whole // group, None])
        if whole < n:
            levels[whole:] *= step[-1]
        return levels


def read_steps(data: Buffer, full: bool, top: int, device: torch.device) -> torch.Tensor:
    """fp32 steps of a body; CodecError if one is not finite, or times ``top`` is not."""
    if not full:
        code = bytes_tensor(data, torch.int16)
        scales.check_codes(code, top)  # on the CPU: no wait for a device
        return onto(scales.to_scales(code), device)
    steps = bytes_tensor(data, torch.float32)
    if not bool(torch.isfinite(steps).all()) or float(steps.max()) * top > scales.LARGEST:
        raise CodecError("the blob has a step that is not finite")
    return onto(steps, device)
