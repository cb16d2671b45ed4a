"""A few values and their positions: ``topk``, ``randomk``, ``chunked_topk``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..blobs.pieces import onto
from ..blobs.wire import Buffer, Header, Reader
from ..codec import Codec, bytes_tensor, tensor_bytes
from ..cpu import dispatch as fast
from ..cpu.calls import blocks
from ..errors import CodecError
from ..exchange.requests import Context, Program, Reduce
from ..primitives import scales, selection
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, unpack
from ..specs.spec import Spec
from . import masks, runs

_ROWS = 32  # chunks that are sorted at once: their indices and copies stay in the cache


class Positions(Codec):
    """Base class of sparse codecs: reads positions and values, and adds the values at their positions."""

    sparse = True

    def read_sparse(self, reader: Reader, header: Header) -> tuple[np.ndarray, torch.Tensor]:
        """(int64 positions without repeats, fp32 values)."""
        raise NotImplementedError

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        positions, values = self.read_sparse(reader, header)
        out = torch.zeros(header.elements)
        out[torch.from_numpy(positions)] = values
        return onto(out, device)

    def accumulate(self, reader: Reader, header: Header, outs: Sequence[torch.Tensor], weight: float) -> None:
        positions, values = self.read_sparse(reader, header)
        reader.end()
        device = outs[0].device
        where, values = onto(torch.from_numpy(positions), device), onto(values, device)
        if weight != 1.0:
            values = values * weight
        for out in outs:
            out[where] = out[where] + values

    def decoded_norm(self, reader: Reader, header: Header, device: torch.device) -> float:
        _, values = self.read_sparse(reader, header)
        reader.end()
        return float(torch.linalg.vector_norm(values))


class TopK(Positions):
    """The round(ratio * n) elements of largest magnitude, exactly so many, as fp32 or bf16 values."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.ratio = spec.real("ratio")
        self.dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[spec.word("values")]

    def kept(self, n: int) -> int:
        return min(n, max(1, int(self.ratio * n + 0.5)))

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        flat = x.cpu().numpy()
        index = selection.largest(flat, self.kept(len(flat)))
        values = torch.from_numpy(flat[index]).to(self.dtype)
        limit = torch.finfo(self.dtype).max
        return [masks.encode(index, len(flat)), tensor_bytes(values.clamp(-limit, limit))]

    def read_sparse(self, reader: Reader, header: Header) -> tuple[np.ndarray, torch.Tensor]:
        n = header.elements
        count = self.kept(n)
        if count * self.dtype.itemsize > reader.left:
            raise CodecError(f"the blob claims {n} elements, too many for its {reader.left} bytes")
        positions = masks.decode(reader, count, n)
        values = bytes_tensor(reader.take(count * self.dtype.itemsize), self.dtype).to(torch.float32)
        if not bool(torch.isfinite(values).all()):
            raise CodecError("the blob has values that are not finite")
        return positions, values


class RandomK(Positions):
    """Runs of the vector chosen by (seed, step), the same on all workers, so that only values are sent, and encodings
    can be added. scale=true multiplies by 1/ratio: unbiased for one step, but with an error larger than the input."""

    keyed = True
    reductions = 1

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.ratio, self.run, self.scale = spec.real("ratio"), spec.number("run"), spec.flag("scale")
        a, b = runs.fraction(self.ratio)
        self.gain = b / a if self.scale else 1.0

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        offer = runs.offer(x.numel(), self.ratio, self.run, Key(key.seed, key.step))
        return [tensor_bytes(torch.from_numpy(offer.gather(x.cpu().numpy())))]

    def read_sparse(self, reader: Reader, header: Header) -> tuple[np.ndarray, torch.Tensor]:
        a, b = runs.fraction(self.ratio)
        run = runs.run_length(header.elements, self.run, b)
        if header.elements // run // b * a * run * 4 > reader.left:
            raise CodecError(f"the blob claims {header.elements} elements, too many for its {reader.left} bytes")
        offer = runs.offer(header.elements, self.ratio, self.run, self._key(header))
        values = bytes_tensor(reader.take(4 * offer.elements), torch.float32)
        if not bool(torch.isfinite(values).all()):
            raise CodecError("the blob has values that are not finite")
        limit = torch.finfo(torch.float32).max
        return offer.positions(np.arange(offer.elements)), (values * self.gain).clamp(-limit, limit)

    def rounds(self, x: torch.Tensor, context: Context) -> Program:
        flat = x.detach().reshape(-1).to(torch.float32) * context.weight
        if not bool(torch.isfinite(flat).all()):
            raise CodecError("a value is not finite: not encoded")
        offer = runs.offer(flat.numel(), self.ratio, self.run, Key(context.tensor_seed, context.step))
        sent = torch.from_numpy(offer.gather(flat.cpu().numpy()))
        total = yield Reduce(sent, "sum")
        where = torch.from_numpy(offer.positions(np.arange(offer.elements)))
        own, out = torch.zeros(flat.numel()), torch.zeros(flat.numel())
        own[where], out[where] = sent * self.gain, total * self.gain
        context.own = own.to(x.device)
        return out.to(x.device).view(x.shape)


class ChunkedTopK(Positions):
    """SparseLoCo (Sarfi et al., 2025): the ``k`` largest of each chunk of 4096, 12-bit indices, few-bit values, packed.

    The last, shorter chunk keeps a proportional number. Values: a sign and 2^(bits-1) levels per chunk, which are the
    middles of equal parts between the smallest and the largest kept magnitude."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.chunk, self.k, self.bits = 4096, spec.number("k"), spec.number("bits")

    def _kept(self, n: int) -> tuple[int, int]:
        """(whole chunks, values kept of the last, shorter one)."""
        whole, rest = divmod(n, self.chunk)
        return whole, min(rest, max(1, self.k * rest // self.chunk)) if rest else 0

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        whole, last = self._kept(x.numel())
        flat = x.cpu()
        index, values, bounds = [], [], []
        chunks = flat[: whole * self.chunk].view(whole, self.chunk)
        pieces = [(part, self.k) for part in torch.split(chunks, _ROWS) if whole]
        if last:
            pieces.append((flat[whole * self.chunk :].view(1, -1), last))
        if fast.worth(whole * self.chunk):
            pieces[: -(-whole // _ROWS)] = [(chunks, self.k)]
        for rows, k in pieces:
            if rows is chunks:
                order = blocks.chunk_largest(flat, self.chunk, k)
            else:
                order = torch.argsort(rows.abs(), dim=1, descending=True, stable=True)[:, :k].sort(1).values
            kept = rows.gather(1, order)
            high, low = kept.abs().amax(1), kept.abs().amin(1)
            bound = torch.stack([scales.to_codes(low, False), scales.to_codes(high, False)], 1)
            unit = scales.to_scales(bound)
            levels = 1 << (self.bits - 1)
            step = (unit[:, 1:] - unit[:, :1]) / levels
            place = ((kept.abs() - unit[:, :1]) / torch.where(step > 0, step, torch.ones_like(step))).floor()
            code = place.clamp(0, levels - 1).to(torch.uint8) | (kept < 0).to(torch.uint8) << (self.bits - 1)
            index.append(order.view(-1))
            values.append(code.view(-1))
            bounds.append(bound.view(-1))
        where = torch.cat(index)
        low_bits, high_bits = (where & 255).to(torch.uint8), (where >> 8).to(torch.uint8)
        packed = tensor_bytes(pack(torch.cat(values), self.bits))
        return [tensor_bytes(torch.cat(bounds)), tensor_bytes(low_bits), tensor_bytes(pack(high_bits, 4)), packed]

    def read_sparse(self, reader: Reader, header: Header) -> tuple[np.ndarray, torch.Tensor]:
        n = header.elements
        whole, last = self._kept(n)
        count, chunks = whole * self.k + last, whole + (1 if last else 0)
        bound_bytes, low_bits = reader.take(4 * chunks), reader.take(count)
        high_bits, value_bytes = reader.take(packed_size(count, 4)), reader.take(packed_size(count, self.bits))
        bound = bytes_tensor(bound_bytes, torch.int16)
        scales.check_codes(bound)
        unit = scales.to_scales(bound).view(-1, 2)
        inside = bytes_tensor(low_bits, torch.uint8).to(torch.int64)
        inside |= unpack(bytes_tensor(high_bits, torch.uint8), count, 4).to(torch.int64) << 8
        code = unpack(bytes_tensor(value_bytes, torch.uint8), count, self.bits)
        owner = torch.repeat_interleave(torch.arange(chunks), torch.tensor([self.k] * whole + ([last] if last else [])))
        positions = (owner * self.chunk + inside).numpy()
        if len(positions) and ((np.diff(positions) <= 0).any() or positions[-1] >= n):
            raise CodecError("the blob has a position twice or beyond the vector")
        levels = 1 << (self.bits - 1)
        step = (unit[:, 1] - unit[:, 0]) / levels
        size = unit[owner, 0] + step[owner] * ((code & (levels - 1)).to(torch.float32) + 0.5)
        return positions, torch.where((code >> (self.bits - 1)) > 0, -size, size)
