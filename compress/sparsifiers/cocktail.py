"""``cocktail``: random runs, the top of them, few bits each (CocktailSGD, Wang et al., ICML 2023).

It computes in fp32, without an epsilon or fp16, so scaling the input by a power of two scales the output exactly.
Elements that a step does not offer or keep are not lost: the caller keeps x - decoded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from ..blobs.pieces import Doubt, Made, Piece, onto
from ..blobs.wire import Buffer, Header, Reader
from ..codec import Codec, bytes_tensor, check_finite, tensor_bytes
from ..cpu import dispatch as fast
from ..cpu.calls import sparse as picked
from ..cpu.calls import tables as tabled
from ..errors import CodecError
from ..gpu import dispatch as gpu
from ..primitives import scales, selection
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, unpack
from ..specs.spec import Spec
from . import masks, masks_there, runs

BUCKET = 128


class Cocktail(Codec):
    """Encodes the k = max(1, round(top * offered)) largest values of the offered runs; exactly k, ties by the lowest
    index."""

    keyed = True
    sparse = True
    refuses = True

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.random, self.top = spec.real("random"), spec.real("top")
        self.bits, self.run = spec.number("bits"), spec.number("run")
        self.log, self.mask = spec.word("values") == "log" and self.bits > 1, spec.word("mask")

    def kept(self, offered: int) -> int:
        return min(offered, max(1, int(self.top * offered + 0.5))) if offered else 0

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        offer = runs.offer(x.numel(), self.random, self.run, key)
        if offer.elements and gpu.available(x.device):
            return self._write_gpu(x, offer)
        return self._write(x, offer)

    def _write(self, x: torch.Tensor, offer: runs.Offer) -> list[Buffer]:
        count, chosen = self.kept(offer.elements), None
        if x.device.type == "cpu" and fast.worth(x.numel()) and count < offer.elements:
            chosen = picked.largest_offered(x.numpy(), offer.runs, offer.run, offer.elements, count)
        if chosen is None:
            check_finite(x)
            if not offer.elements:
                return []
            values = offer.gather(x.numpy()) if x.device.type == "cpu" else offer.select(x).cpu().numpy()
            index = selection.largest(values, count)
            chosen = index, values[index]
        mask = masks.encode(chosen[0], offer.elements, self.mask)
        return [mask, *self.write_values(torch.from_numpy(chosen[1]))]

    def _write_gpu(self, x: torch.Tensor, offer: runs.Offer) -> list[Piece]:
        where, count = _places_of(offer, x.device), self.kept(offer.elements)
        values, counts = gpu.offered(x, None, where, offer.run, offer.elements)
        index, kept = gpu.largest(values, counts, count)
        doubt = Doubt(~torch.isfinite(x.sum()).view(1), lambda: self._write(x, offer))  # or only the sum overflows
        mask = masks_there.encode(index, offer.elements, self.mask)
        if not self._linear4():
            return [mask, Made([kept], self._made), doubt]
        return [mask, *gpu.quantize_kept(kept, index, where, offer.run, BUCKET, None), doubt]

    def _made(self, parts: Sequence[memoryview]) -> bytes:
        """The encoded bytes of the kept values, from their fp32 bytes."""
        return b"".join(self.write_values(torch.frombuffer(bytearray(parts[0]), dtype=torch.float32)))

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        positions, values = self.read_sparse(reader, header)
        out = np.zeros(header.elements, np.float32)
        out[positions] = values
        return onto(torch.from_numpy(out), device)

    def accumulate(self, reader: Reader, header: Header, outs: Sequence[torch.Tensor], weight: float) -> None:
        device = outs[0].device
        kernels = gpu.available(device)
        quick = device.type == "cpu" and fast.worth(header.elements)
        if self._linear4() and (kernels or quick):
            if kernels:
                self._accumulate_gpu(reader, header, outs, weight)
                return
            offer, index = self._read_places(reader, header)
            units = self._read_units(reader, len(index))
            packed = reader.take(packed_size(len(index), 4))
            reader.end()
            for out in outs:
                picked.add_sparse(out.numpy(), index, offer.runs, offer.run, packed, units.numpy(), BUCKET, weight)
            return
        positions, values = self.read_sparse(reader, header)
        reader.end()
        if weight != 1.0:
            values = values * np.float32(weight)
        where, kept = onto(torch.from_numpy(positions), device), onto(torch.from_numpy(values), device)
        for out in outs:
            if device.type == "cpu":
                out.scatter_add_(0, where, kept)  # positions don't repeat
            else:
                out[where] = out[where] + kept

    def _accumulate_gpu(self, reader: Reader, header: Header, outs: Sequence[torch.Tensor], weight: float) -> None:
        device, offer = outs[0].device, self._offer(reader, header)
        if not offer.elements:
            reader.end()
            return
        count = self.kept(offer.elements)
        places = masks_there.decode(reader, count, offer.elements, device)
        step_bytes, packed = reader.take(2 * -(-count // BUCKET)), reader.take(packed_size(count, 4))
        reader.end()
        scales.check_codes(bytes_tensor(step_bytes, torch.int16), 7)
        where, steps = _places_of(offer, device), bytes_tensor(step_bytes, torch.int16, device)
        for out in outs:
            codes = bytes_tensor(packed, torch.uint8, device)
            gpu.sparse_add(out, where, offer.run, places, codes, steps, BUCKET, weight)

    def decoded_norm(self, reader: Reader, header: Header, device: torch.device) -> float:
        """As `Codec.decoded_norm`. The mask's bytes are checked, and no position is computed: values have a norm
        wherever they are."""
        offer = self._offer(reader, header)
        if not offer.elements:
            reader.end()
            return 0.0
        count = self.kept(offer.elements)
        masks_there.check(reader, count, offer.elements)
        if self.log or self.bits not in (2, 4, 8):
            norm = float(torch.linalg.vector_norm(self.read_values(reader, count)))
        else:
            norm = self._norm_of_levels(reader, count)
        reader.end()
        return norm

    def _norm_of_levels(self, reader: Reader, count: int) -> float:
        """The norm of ``count`` values from their packed levels: a table has the squares that each byte adds."""
        units = self._read_units(reader, count).numpy().astype(np.float64)
        data, used = np.frombuffer(reader.take(packed_size(count, self.bits)), np.uint8), count * self.bits % 8
        nothing = sum(1 << (at + self.bits - 1) for at in range(0, 8, self.bits))  # a byte of levels of 0
        filled = np.full(len(units) * BUCKET * self.bits // 8, nothing, np.uint8)
        filled[: len(data)] = data
        if used:
            own = (1 << used) - 1
            filled[len(data) - 1] = (int(data[-1]) & own) | (nothing & ~own)
        squares = _squares(self.bits)[filled].reshape(len(units), -1).sum(1, dtype=np.int64)
        return math.sqrt(float(np.dot(units * units, squares)))

    def read_sparse(self, reader: Reader, header: Header) -> tuple[np.ndarray, np.ndarray]:
        """(rising positions int64, values fp32) of a body."""
        offer, index = self._read_places(reader, header)
        if not len(index):
            return np.empty(0, np.int64), np.empty(0, np.float32)
        return offer.positions(index), self.read_values(reader, len(index)).numpy()

    def _read_places(self, reader: Reader, header: Header) -> tuple[runs.Offer, np.ndarray]:
        """(the runs that the step offered, indices of the kept elements among the offered ones)."""
        offer = self._offer(reader, header)
        if not offer.elements:
            return offer, np.empty(0, np.int64)
        return offer, masks.decode(reader, self.kept(offer.elements), offer.elements)

    def _offer(self, reader: Reader, header: Header) -> runs.Offer:
        """The runs that the step offered."""
        offered = _offered_at_most(header.elements, self.random, self.run)
        least = packed_size(max(0, int(self.top * offered) - 1), self.bits) // 2
        if least > reader.left:
            raise CodecError(f"the blob claims {header.elements} elements, too many for its {reader.left} bytes")
        return runs.offer(header.elements, self.random, self.run, self._key(header))

    # -- values: buckets of 128 in the order of their positions ---------------------------------------------------

    def write_values(self, values: torch.Tensor) -> list[Buffer]:
        count = values.numel()
        quick = (
            tabled.quantize(values, BUCKET, 4, False, False, Key())
            if self._linear4() and fast.worth_few(count)
            else None
        )
        if quick is not None:
            return [tensor_bytes(part) for part in quick]
        padded = torch.nn.functional.pad(values, (0, -count % BUCKET)).view(-1, BUCKET)
        if self.log:
            return self._write_log(padded, count)
        magnitude = padded.abs()
        if self.bits == 1:
            filled = torch.full((len(padded), 1), float(BUCKET))
            filled[-1] = float((count - 1) % BUCKET + 1)
            step = scales.to_codes((magnitude.sum(1, keepdim=True) / filled).view(-1), up=False)
            codes = (padded >= 0).to(torch.uint8)
        else:
            top = (1 << (self.bits - 1)) - 1
            step = scales.to_codes(scales.divided(magnitude.amax(1), top), False, top)
            unit = scales.to_scales(step)[:, None]
            level = padded / torch.where(unit > 0, unit, torch.inf)
            codes = level.round_().clamp_(-top, top).add_(float(top + 1)).to(torch.uint8)
        return [tensor_bytes(step), tensor_bytes(pack(codes.view(-1)[:count], self.bits))]

    def _linear4(self) -> bool:
        return self.bits == 4 and not self.log

    def _read_units(self, reader: Reader, count: int) -> torch.Tensor:
        step = bytes_tensor(reader.take(2 * -(-count // BUCKET)), torch.int16)
        scales.check_codes(step, 1 if self.log or self.bits == 1 else (1 << (self.bits - 1)) - 1)
        return scales.to_scales(step)

    def read_values(self, reader: Reader, count: int) -> torch.Tensor:
        unit = self._read_units(reader, count)[:, None]
        if self.log:
            return self._read_log(reader, count, unit)
        codes = unpack(bytes_tensor(reader.take(packed_size(count, self.bits)), torch.uint8), count, self.bits)
        levels = torch.zeros(len(unit) * BUCKET)
        levels[:count] = codes
        if self.bits == 1:
            levels = levels * 2.0 - 1.0
        else:
            levels -= float(1 << (self.bits - 1))
        return (levels.view(-1, BUCKET) * unit).view(-1)[:count]

    def _write_log(self, padded: torch.Tensor, count: int) -> list[Buffer]:
        """Sign, and one of 2^(b-1) magnitudes: largest of the bucket * 2^(-spread * j / 2^(b+2))."""
        levels, octave = 1 << (self.bits - 1), 4 << self.bits
        magnitude = padded.abs()
        real = torch.arange(padded.numel()).view_as(padded) < count
        largest = magnitude.amax(1)
        code = scales.to_codes(largest, up=False)
        high = scales.to_scales(code)[:, None]
        smallest = torch.where(real & (magnitude > 0), magnitude, high).amin(1, keepdim=True)
        safe = torch.where(high > 0, high, 1.0)
        span = torch.where(high > 0, torch.log2(safe / torch.where(high > 0, smallest, 1.0)), 0.0)
        spread = (span * octave / max(1, levels - 1)).round().clamp(0, 255)
        octaves = torch.log2(safe / magnitude.clamp(min=1e-45))
        index = (octaves * octave / spread.clamp(min=1)).round().clamp(0, levels - 1)
        codes = index.to(torch.uint8) | (padded < 0).to(torch.uint8) << (self.bits - 1)
        body = pack(codes.view(-1)[:count], self.bits)
        return [tensor_bytes(code), tensor_bytes(spread.to(torch.uint8)), tensor_bytes(body)]

    def _read_log(self, reader: Reader, count: int, high: torch.Tensor) -> torch.Tensor:
        buckets = len(high)
        spread = bytes_tensor(reader.take(buckets), torch.uint8).to(torch.int64)[:, None]
        codes = unpack(bytes_tensor(reader.take(packed_size(count, self.bits)), torch.uint8), count, self.bits)
        padded = torch.nn.functional.pad(codes, (0, -count % BUCKET)).view(-1, BUCKET).to(torch.int64)
        octave = 4 << self.bits
        index = (padded & ((1 << (self.bits - 1)) - 1)) * spread
        # A table, an exact power of two and one product give the same bits on all machines; exp2() would not.
        table = torch.from_numpy(np.exp2(-np.arange(octave) / octave).astype(np.float32))[index % octave]
        magnitude = torch.ldexp(high * table, -(index // octave))
        return torch.where((padded >> (self.bits - 1)) > 0, -magnitude, magnitude).view(-1)[:count]


@lru_cache(maxsize=8)
def _squares(bits: int) -> np.ndarray:
    """For each byte, the sum of the squares of its levels."""
    codes = unpack(torch.arange(256, dtype=torch.uint8), 2048 // bits, bits).view(256, -1).to(torch.int32)
    return np.asarray((codes - (1 << (bits - 1))).square().sum(1).numpy())


def _places_of(offer: runs.Offer, device: torch.device) -> torch.Tensor:
    """The indices of the offered runs, int64 on a device."""
    return bytes_tensor(offer.runs.view(np.uint8).data, torch.int64, device)


def _offered_at_most(count: int, share: float, run: int) -> int:
    a, b = runs.fraction(share)
    run = runs.run_length(count, run, b)
    return count // run // b * a * run
