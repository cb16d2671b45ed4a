"""``none``, ``fp16`` and ``bf16``: the values themselves, or rounded to a shorter float."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ..blobs.pieces import Doubt, Piece, Staged
from ..blobs.wire import Buffer, Header, Reader
from ..codec import DTYPES, Codec, bytes_tensor, check_finite, flatten, piece, tensor_bytes
from ..cpu import dispatch as fast
from ..cpu.calls import tables as tabled
from ..cpu.calls import values as loops
from ..errors import CodecError
from ..exchange.requests import Context, Program, Reduce
from ..primitives.key import Key

_BEYOND = 0x7F7F8000
"""The bits of the smallest fp32 value that rounds to infinity in bf16."""
_CHUNK = 1 << 16  # elements at once on the CPU: they stay in the cache


class Floats(Codec):
    """Base class of plain and cast values: on the CPU they are converted, multiplied and added in short pieces."""

    def kind(self, header: Header) -> torch.dtype:
        """The dtype of a body's values."""
        raise NotImplementedError

    def body(self, reader: Reader, header: Header) -> memoryview:
        data = reader.take(header.elements * self.kind(header).itemsize)
        reader.end()
        return data

    def accumulate(self, reader: Reader, header: Header, outs: Sequence[torch.Tensor], weight: float) -> None:
        if outs[0].device.type != "cpu":
            super().accumulate(reader, header, outs, weight)
            return
        data = self.body(reader, header)
        if not reader.known:
            self._norm(data, header)
        for out in outs:
            if self._quick(header):
                tabled.add_floats(out, data, self.kind(header), weight)
                continue
            for here, values in self._pieces(data, header):
                out[here] += values if weight == 1.0 else values.mul_(weight)

    def write_to(self, reader: Reader, header: Header, out: torch.Tensor) -> None:
        if out.device.type != "cpu" or out.dtype != torch.float32:
            super().write_to(reader, header, out)
            return
        data = self.body(reader, header)
        if not reader.known:
            self._norm(data, header)
        if self._quick(header):
            tabled.add_floats(out, data, self.kind(header), None)
            return
        for here, values in self._pieces(data, header):
            out[here] = values

    def decoded_norm(self, reader: Reader, header: Header, device: torch.device) -> float | torch.Tensor:
        if device.type != "cpu":  # a value that is not finite makes the norm so
            values = bytes_tensor(self.body(reader, header), self.kind(header), device)
            length: torch.Tensor = torch.linalg.vector_norm(
                values, dtype=torch.promote_types(values.dtype, torch.float32)
            )
            return length
        return self._norm(self.body(reader, header), header)

    def _norm(self, data: memoryview, header: Header) -> float:
        """The norm with about fp32's precision. CodecError for a value that is not finite: a received blob may have a
        correct checksum and a NaN."""
        if self._quick(header):
            norm = math.sqrt(tabled.float_squares(data, header.elements, self.kind(header)))
        else:
            norm = math.hypot(*(float(torch.linalg.vector_norm(values)) for _, values in self._pieces(data, header)))
        if not math.isfinite(norm):
            finite(bytes_tensor(data, self.kind(header)))
        return norm

    def _quick(self, header: Header) -> bool:
        return self.kind(header) in tabled.KINDS and fast.worth(header.elements)

    def _pieces(self, data: memoryview, header: Header) -> Iterator[tuple[slice, torch.Tensor]]:
        """(slice, its fp32 values) piece by piece; the values are valid until the next piece."""
        kind, raw = self.kind(header), np.frombuffer(data, np.uint8)
        short = torch.empty(_CHUNK, dtype=kind)
        wide = short if kind is torch.float32 else torch.empty(_CHUNK)
        into = short.view(torch.uint8).numpy()
        for start in range(0, header.elements, _CHUNK):
            count = min(_CHUNK, header.elements - start)
            into[: kind.itemsize * count] = raw[kind.itemsize * start :][: kind.itemsize * count]
            if wide is not short:
                wide[:count] = short[:count]
            yield slice(start, start + count), wide[:count]


class Plain(Floats):
    """The bytes of the tensor in its own dtype: decode gives the same bits."""

    def stage(self, x: torch.Tensor, seed: int = 0, step: int = 0, rank: int = 0, members: int = 1) -> Staged:
        there = isinstance(x, torch.Tensor) and x.device.type == "cuda"
        flat, dtype = flatten(x, exact=True, finite=not there)
        body: list[Piece] = [piece(flat)] if flat.numel() else []
        if there and body:
            body.append(Doubt(~torch.isfinite(flat.sum()).view(1), lambda: [tensor_bytes(_checked(flat))]))
        return Staged(self.spec, dtype, tuple(x.shape), body, None, None)

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        return [tensor_bytes(x)]

    def kind(self, header: Header) -> torch.dtype:
        return DTYPES[header.dtype]

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        values = bytes_tensor(self.body(reader, header), self.kind(header), device)
        return values if reader.known else finite(values)

    def rounds(self, x: torch.Tensor, context: Context) -> Program:
        """One plain reduction, without gathering the workers' values."""
        flat, _ = flatten(x)
        weighted = flat if context.weight == 1.0 else flat * context.weight
        total = yield Reduce(weighted, "sum")
        context.own = weighted
        return total.view(x.shape)  # type: ignore[no-any-return]


class Cast(Floats):
    """Rounded to nearest even in fp16 or bf16. fp16 refuses what it can't hold (more than 65504)."""

    refuses = True

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        if x.device.type != "cpu":
            short = x.to(self._dtype)
            return [short, Doubt(~torch.isfinite(short).all().view(1), lambda: self._write(x))]
        return self._write(x)

    def _write(self, x: torch.Tensor) -> list[Buffer]:
        if self._dtype is torch.bfloat16 and x.device.type == "cpu" and fast.worth(x.numel()):
            words, top = loops.bfloats(x)
            if top < _BEYOND:
                return [tensor_bytes(words)]
        short = x.to(self._dtype)
        least, most = (float(value) for value in torch.aminmax(x))
        largest = max(-least, most)
        if math.isnan(largest) or math.isinf(largest):
            check_finite(x)
        if largest > torch.finfo(self._dtype).max and not bool(torch.isfinite(short).all()):
            raise CodecError(f"a value of {largest:g} is beyond {self.spec.name}: use bf16 or a scaled codec")
        return [tensor_bytes(short)]

    def kind(self, header: Header) -> torch.dtype:
        return self._dtype

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        values = bytes_tensor(self.body(reader, header), self._dtype, device)
        return (values if reader.known else finite(values)).to(torch.float32)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float16 if self.spec.name == "fp16" else torch.bfloat16


def _checked(flat: torch.Tensor) -> torch.Tensor:
    """The values, of which the sum may only have overflowed. CodecError if one is not finite."""
    check_finite(flat)
    return flat


def finite(values: torch.Tensor) -> torch.Tensor:
    """The values. CodecError if one is not finite: a received blob may have a correct checksum and a NaN."""
    wide = torch.float32 if values.itemsize == 2 else None  # fp16 sums overflow easily, which would cost a second pass
    if not bool(torch.isfinite(values.sum(dtype=wide))) and not bool(torch.isfinite(values).all()):
        raise CodecError("the blob has values that are not finite")
    return values
