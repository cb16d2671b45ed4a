"""Rotate, then quantise the coordinates, which are nearly normally distributed: ``eden``, ``drive``.

After a random rotation R a block's coordinates are nearly N(0, |x|²/d), whatever x was, so the fixed Lloyd-Max levels c
are optimal, and the error does not depend on the data. EDEN (Vargaftik et al., ICML 2022; DRIVE is its 1-bit case)
sends one factor per block, which makes the result unbiased, |x|² / <c, Rx>, or gives the least error, <c, Rx> / <c, c>.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..blobs.pieces import Doubt, Piece
from ..blobs.wire import Buffer, Header, Reader
from ..codec import bytes_tensor, check_finite, tensor_bytes
from ..cpu import dispatch as fast
from ..cpu.calls import eden as turned
from ..errors import CodecError
from ..gpu import dispatch as gpu
from ..primitives import philox, rotation
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, put, taken, unpack
from ..primitives.rotation import Segment
from ..primitives.tables import lloyd
from ..quantizers.dithered import LARGEST
from ..specs.spec import Spec
from .rotating import Rotated

MIXED = 0x4D495845


class Eden(Rotated):
    """Levels of b bits. With a fractional b = k + f, a fraction f of the coordinates, chosen by shared randomness, has
    k + 1 bits; with b below 1, only a fraction b of the coordinates is sent."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.amount = 1.0 if spec.name == "drive" else spec.real("bits")
        self.biased = spec.flag("biased")
        self.turns = spec.number("rotations")
        self.whole = int(self.amount)
        self.share = self.amount - self.whole
        self.refuses = True

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        if self._on_gpu(x.device):
            return self._write_gpu(x, key)
        return self._write(x, key)

    def _write_gpu(self, x: torch.Tensor, key: Key) -> list[Piece]:
        """As ``_write``, by the kernels; by torch for segments that are too short, or if a flag reports a problem."""
        n, count, flag = x.numel(), rotation.coordinates(x.numel(), self.block), gpu.new_flag(x.device)
        packed = torch.zeros(packed_size(count, self.whole), dtype=torch.uint8, device=x.device)
        factors = torch.empty(rotation.blocks(n, self.block), device=x.device)
        for segment in rotation.layout(n, self.block):
            rows = rotation.rows_of(x, segment)
            numbers = factors[segment.row : segment.row + segment.rows]
            if gpu.fused(segment.size) and segment.length == rows.numel():
                gpu.eden_encode(rows, self.whole, key, segment.code, count, packed, numbers, flag, self.biased)
                continue
            flag |= ~torch.isfinite(rows).all()
            put(packed, self._rows(rows, segment, key, numbers).view(-1), self.whole, count, segment.code)
        return [factors.clamp_(-LARGEST, LARGEST), packed, Doubt(flag, lambda: self._write(x, key))]

    def _write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        n, count = x.numel(), rotation.coordinates(x.numel(), self.block)
        quick = self._is_quick(n, x.device)
        if quick and self.share:
            done = self._write_mixed(x, key)
            if done is not None:
                return done
            quick = False
        if self.refuses and not quick:
            check_finite(x)
        packed = fast.room(packed_size(count, self.whole) if quick else 0, torch.uint8)
        codes = torch.empty(0 if quick else count, dtype=torch.uint8, device=x.device)
        factors = torch.empty(rotation.blocks(n, self.block), device=x.device)
        for segment in rotation.layout(n, self.block):
            rows = rotation.rows_of(x, segment)
            numbers = factors[segment.row : segment.row + segment.rows]
            if quick:
                words, table = rotation.sign_words(segment, key), lloyd(self.whole, x.device)
                if turned.encode(rows, words, table, packed, count, segment.code, numbers, self._kind()):
                    continue
                check_finite(x)
            code = self._rows(rows, segment, key, numbers).view(-1)
            if quick:
                fast.pack_part(code, self.whole, packed, count, segment.code)
            else:
                codes[segment.code : segment.code + code.numel()] = code
        body = [tensor_bytes(packed)] if quick else self._pack(codes, self._all_mixed(n, key, x.device))
        return [tensor_bytes(factors.clamp(-LARGEST, LARGEST)), *body]

    def _write_mixed(self, x: torch.Tensor, key: Key) -> list[Buffer] | None:
        """``_write`` by the compiled loops, for a fractional number of bits. None: torch must be used."""
        n, count, at = x.numel(), rotation.coordinates(x.numel(), self.block), 0
        flags, total = turned.mixed(count, self.share, Key(key.seed, key.step), MIXED)
        packed = fast.room(packed_size(count, self.whole), torch.uint8)
        extra, factors = fast.room(total + 1, torch.uint8), torch.empty(rotation.blocks(n, self.block))
        for segment in rotation.layout(n, self.block):
            words, numbers = rotation.sign_words(segment, key), factors[segment.row : segment.row + segment.rows]
            out = packed, extra, at, count, segment.code, numbers, self._kind()
            at = turned.encode_mixed(rotation.rows_of(x, segment), words, self._tables(), flags, *out)
            if at < 0:
                return None
        body = tensor_bytes(packed), tensor_bytes(pack(extra[:total], 1))
        return [tensor_bytes(factors.clamp_(-LARGEST, LARGEST)), *body]

    def _tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The levels of coordinates with k bits (for k = 0 only the level 0), and with k + 1 bits."""
        cpu = torch.device("cpu")
        return lloyd(self.whole, cpu) if self.whole else torch.zeros(1), lloyd(self.whole + 1, cpu)

    def _decode_mixed(
        self, reader: Reader, key: Key, factors: torch.Tensor, out: torch.Tensor, weight: float | None
    ) -> None:
        """``_decode`` by the compiled loops, for a fractional number of bits."""
        count, at = rotation.coordinates(out.numel(), self.block), 0
        packed = reader.take(packed_size(count, self.whole))
        flags, total = turned.mixed(count, self.share, Key(key.seed, key.step), MIXED)
        extra = fast.room(total + 1, torch.uint8)
        extra[:total] = unpack(bytes_tensor(reader.take(packed_size(total, 1)), torch.uint8), total, 1)
        reader.end()
        levels, (few, more) = torch.zeros(512), self._tables()
        levels[: len(few)], levels[256 : 256 + len(more)] = few, more
        for segment in rotation.layout(out.numel(), self.block):
            rows, part = rotation.rows_of(out, segment), factors[segment.row : segment.row + segment.rows]
            words = rotation.sign_words(segment, key)
            numbers = levels, self.whole, count, segment.code, part, weight, rows
            at = turned.decode_mixed(packed, extra, at, flags, words, *numbers)
            if segment.length < rows.numel():
                rotation.put_rows(out, segment, rows)

    def _rows(self, rows: torch.Tensor, segment: Segment, key: Key, factors: torch.Tensor) -> torch.Tensor:
        """The codes of a segment's rows, by torch; writes the rows' factors into ``factors``."""
        rows, exponent = rotation.rescale(rows)
        energy = rotation.energy(rows)
        turned = rotation.forward(rows, segment, key, self.turns)
        spread = (energy * float(segment.size) ** (self.turns - 1)).sqrt().to(torch.float32)
        z = turned / torch.where(spread > 0, spread, torch.ones_like(spread))[:, None]
        mixed = self._mixed(segment, key, rows.device)
        code = self.quantize(z, mixed)
        factor = self.factor(turned, self.levels(code, mixed), energy, segment)
        factors.copy_(torch.ldexp(factor.to(torch.float32), exponent))
        return code

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        self._expect(reader, header)
        quick = self._is_quick(header.elements, device)
        out = fast.room(header.elements) if quick else torch.empty(header.elements, device=device)
        self._decode(reader, header, out, None)
        return out

    def accumulate(self, reader: Reader, header: Header, outs: Sequence[torch.Tensor], weight: float) -> None:
        device = outs[0].device
        if len(outs) > 1 or not (self._is_quick(header.elements, device) or self._on_gpu(device)):
            super().accumulate(reader, header, outs, weight)
            return
        self._expect(reader, header)
        self._decode(reader, header, outs[0], weight)

    def _expect(self, reader: Reader, header: Header) -> None:
        n = header.elements
        count = rotation.coordinates(n, self.block)
        least = packed_size(count, self.whole) if self.whole else int(count * self.share / 16)
        if 4 * rotation.blocks(n, self.block) + least > reader.left:
            raise CodecError(f"the blob claims {n} elements, too many for its {reader.left} bytes")

    def _decode(self, reader: Reader, header: Header, out: torch.Tensor, weight: float | None) -> None:
        """out = decoded; with a weight (only for the compiled loops and the kernels) out += decoded * weight."""
        n, key, device = header.elements, self._key(header), out.device
        count = rotation.coordinates(n, self.block)
        factors = self.read_scales(reader, n, device)
        if self.share and self._is_quick(n, device):
            self._decode_mixed(reader, key, factors, out, weight)
            return
        if self._is_quick(n, device) or self._on_gpu(device):
            packed = reader.take(packed_size(count, self.whole))
            reader.end()
            self._decode_direct(packed, key, factors, out, weight)
            return
        codes = self._unpack(reader, count, self._all_mixed(n, key, device), device)
        for segment in rotation.layout(n, self.block):
            code = codes[segment.code : segment.code + segment.rows * segment.size].view(segment.rows, segment.size)
            rows = self._back(code, segment, key, factors)
            rotation.put_rows(out, segment, rows)

    def _decode_direct(
        self, packed: memoryview, key: Key, factors: torch.Tensor, out: torch.Tensor, weight: float | None
    ) -> None:
        """``_decode`` of packed codes of whole bits, by the compiled loops or by the kernels."""
        n, count, device = out.numel(), rotation.coordinates(out.numel(), self.block), out.device
        kernels, table = self._on_gpu(device), lloyd(self.whole, device)
        data = bytes_tensor(packed, torch.uint8, device) if kernels else None
        for segment in rotation.layout(n, self.block):
            rows, part = rotation.rows_of(out, segment), factors[segment.row : segment.row + segment.rows]
            if data is None:
                words = rotation.sign_words(segment, key)
                turned.decode(packed, words, table, count, segment.code, part, weight, rows)
                if segment.length < rows.numel():
                    rotation.put_rows(out, segment, rows)
                continue
            if gpu.fused(segment.size) and segment.length == rows.numel():
                gpu.eden_decode(data, table, key, segment.code, count, part, rows, weight)
                continue
            code = taken(data, rows.numel(), self.whole, count, segment.code).view_as(rows)
            decoded = self._back(code, segment, key, factors)
            rotation.put_rows(out, segment, decoded if weight is None else rows + decoded * weight)

    def _back(self, code: torch.Tensor, segment: Segment, key: Key, factors: torch.Tensor) -> torch.Tensor:
        """The decoded rows of a segment's codes, in torch."""
        rows = rotation.backward(self.levels(code, self._mixed(segment, key, code.device)), segment, key, self.turns)
        return (rows * factors[segment.row : segment.row + segment.rows, None]).clamp_(-LARGEST, LARGEST)

    def _plain(self) -> bool:
        return self.turns == 1

    def _kind(self) -> int:
        """Which factor of a row the compiled loops compute."""
        return int(self.biased)

    def _is_quick(self, count: int, device: torch.device) -> bool:
        """Whether the compiled loops take a vector of ``count``."""
        fits = 32 <= self.block <= rotation.EXACT
        return fits and self._plain() and device.type == "cpu" and fast.worth(count) and not gpu.available(device)

    def _on_gpu(self, device: torch.device) -> bool:
        fits = self._kind() < 2 and 1 <= self.whole <= 4 and gpu.fused(self.block)
        return fits and not self.share and self._plain() and gpu.available(device)

    def factor(
        self, turned: torch.Tensor, levels: torch.Tensor, energy: torch.Tensor, segment: Segment
    ) -> torch.Tensor:
        """The factor of each row's back-rotated levels, fp64: 0 for a row of zeros."""
        product = rotation.product(levels, turned)
        if self.biased:
            gain = float(segment.size) ** self.turns
            top, bottom = product, levels.square().sum(1, dtype=torch.float64) * gain
        else:
            top, bottom = energy, product
        fine = (bottom > 0) & (energy > 0)
        return torch.where(fine, top / torch.where(fine, bottom, 1.0), 0.0)

    def quantize(self, z: torch.Tensor, mixed: torch.Tensor | None) -> torch.Tensor:
        """uint8 codes; ``mixed``: the coordinates with one bit more."""
        low = nearest(z, self.whole) if self.whole else torch.zeros_like(z, dtype=torch.uint8)
        return low if mixed is None else torch.where(mixed, nearest(z, self.whole + 1), low)

    def levels(self, codes: torch.Tensor, mixed: torch.Tensor | None) -> torch.Tensor:
        index = codes.to(torch.int32)
        low = lloyd(self.whole, codes.device)[index.clamp(max=(1 << self.whole) - 1)] if self.whole else 0.0
        return low if mixed is None else torch.where(mixed, lloyd(self.whole + 1, codes.device)[index], low)  # type: ignore[return-value]

    def _mixed(self, segment: Segment, key: Key, device: torch.device) -> torch.Tensor | None:
        if not self.share:
            return None
        count = segment.rows * segment.size
        u = philox.uniform(count, Key(key.seed, key.step), MIXED, segment.code, device)
        return (u < self.share).view(segment.rows, segment.size)

    def _all_mixed(self, n: int, key: Key, device: torch.device) -> torch.Tensor | None:
        if not self.share:
            return None
        count = rotation.coordinates(n, self.block)
        return philox.uniform(count, Key(key.seed, key.step), MIXED, 0, device) < self.share

    def _pack(self, codes: torch.Tensor, mixed: torch.Tensor | None) -> list[Buffer]:
        parts: list[Buffer] = []
        if self.whole:
            parts.append(tensor_bytes(pack(codes & ((1 << self.whole) - 1), self.whole)))
        if mixed is not None:
            parts.append(tensor_bytes(pack((codes >> self.whole)[mixed], 1)) if bool(mixed.any()) else b"")
        return parts

    def _unpack(self, reader: Reader, count: int, mixed: torch.Tensor | None, device: torch.device) -> torch.Tensor:
        if self.whole:
            packed = reader.take(packed_size(count, self.whole))
            codes = unpack(bytes_tensor(packed, torch.uint8, device), count, self.whole)
        else:
            codes = torch.zeros(count, dtype=torch.uint8, device=device)
        if mixed is not None:
            extra = int(mixed.sum())
            packed = reader.take(packed_size(extra, 1))
            codes = codes.clone()
            codes[mixed] |= unpack(bytes_tensor(packed, torch.uint8, device), extra, 1) << self.whole
        return codes


def nearest(z: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8: the index of the nearest Lloyd-Max level, from the lowest."""
    if bits == 1:
        return (z > 0).to(torch.uint8)
    table = lloyd(bits, z.device)
    if z.device.type == "cpu" and bits <= 5 and fast.worth(z.numel()):
        return fast.nearest_levels(z, (table[1:] + table[:-1]) / 2)
    return torch.bucketize(z, (table[1:] + table[:-1]) / 2).to(torch.uint8)
