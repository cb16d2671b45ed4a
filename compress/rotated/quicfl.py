"""``quicfl``: rotate, send the few largest coordinates exactly, round the others at random (QUIC-FL, Basat et al., ICML
2024). All senders use the same rotation, so a server can add decoded levels and rotate back once. With shared
randomness the levels depend on a random value that sender and receiver both know (a different one for each sender,
whose rank is in the blob), which halves the error."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from ..blobs.pieces import Piece
from ..blobs.wire import Header, Reader, varint
from ..codec import bytes_tensor, piece
from ..cpu import dispatch as fast
from ..cpu.calls import blocks
from ..cpu.calls import tables as tabled
from ..errors import CodecError
from ..fitted.solvers import quantile, shared_assignment
from ..primitives import philox, rotation
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, unpack
from ..primitives.tables import quic
from ..quantizers.dithered import LARGEST
from ..sparsifiers import masks
from ..specs.spec import Spec
from .rotating import Rotated

TAIL = 1 / 512
_GRID = 4096
SHARED, CHOICE = 0x48, 0x43


class QuicFl(Rotated):
    """bits 1 to 4; shared=true is the paper's main variant, shared=false its private one."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.bits, self.shared = spec.number("bits"), spec.flag("shared")
        self.reach = quantile(1 - TAIL / 2)

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        n, shared = x.numel(), Key(key.seed, key.step)
        quick, count = self._is_quick(n, x.device), rotation.coordinates(n, self.block)
        z = fast.room(count) if quick else torch.empty(count, device=x.device)
        lengths = torch.empty(rotation.blocks(n, self.block), device=x.device)
        for segment in rotation.layout(n, self.block):
            part = x[segment.start : segment.start + segment.length]
            found = rotation.lengths(part, segment.size)
            lengths[segment.row : segment.row + segment.rows] = found
            found = torch.where(found > 0, found, torch.ones_like(found))
            rows = z[segment.code : segment.code + segment.rows * segment.size].view(segment.rows, segment.size)
            if quick:
                blocks.turn(part, found, True, rotation.sign_words(segment, key), rows)
            else:
                scaled = rotation.rows_of(x, segment) / found[:, None]
                rows.copy_(rotation.forward(scaled, segment, shared))
        if quick and self.shared:
            codes, outlier = blocks.quic_codes(z, self.reach, _GRID, _quick_sender(self.bits), key.private)
        elif quick:
            table = quic(self.bits, False, x.device)[0]
            codes, outlier = blocks.quic_private(z, self.reach, table, key.dither)
        else:
            outlier = torch.nonzero(z.abs() > self.reach).view(-1)
            codes = self._codes(z.clamp(-self.reach, self.reach), key)
        mask = masks.encode(outlier.cpu().numpy(), z.numel())
        body: list[Piece] = [piece(lengths), piece(pack(codes, self.bits))]
        return [varint(key.rank), *body, varint(len(outlier)), mask, piece(z[outlier])]

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        n = header.elements
        key = Key(header.seed, header.step, reader.varint(1 << 32))
        count = rotation.coordinates(n, self.block)
        if packed_size(count, self.bits) > reader.left:
            raise CodecError(f"the blob claims {n} elements, too many for its {reader.left} bytes")
        lengths = self.read_scales(reader, n, device)
        packed = reader.take(packed_size(count, self.bits))
        if self._is_quick(n, device):
            out = fast.room(n)
            self._decode(packed, lengths, reader, key, out, None)
            return out
        codes = unpack(bytes_tensor(packed, torch.uint8, device), count, self.bits)
        z = self._levels(codes, key, device)
        self._put_exact(reader, z)
        out = torch.empty(n, device=device)
        for segment in rotation.layout(n, self.block):
            rows = z[segment.code : segment.code + segment.rows * segment.size].view(segment.rows, segment.size)
            rows = rotation.backward(rows, segment, Key(key.seed, key.step))
            factor = lengths[segment.row : segment.row + segment.rows, None] * (1.0 / segment.size)
            rotation.put_rows(out, segment, (rows * factor).clamp(-LARGEST, LARGEST))
        return out

    def accumulate(self, reader: Reader, header: Header, outs: Sequence[torch.Tensor], weight: float) -> None:
        n, device = header.elements, outs[0].device
        if len(outs) > 1 or not self._is_quick(n, device):
            super().accumulate(reader, header, outs, weight)
            return
        key, count = Key(header.seed, header.step, reader.varint(1 << 32)), rotation.coordinates(n, self.block)
        lengths = self.read_scales(reader, n, device)
        self._decode(reader.take(packed_size(count, self.bits)), lengths, reader, key, outs[0], weight)

    def _decode(
        self, packed: memoryview, lengths: torch.Tensor, reader: Reader, key: Key, out: torch.Tensor,
        weight: float | None,
    ) -> None:  # fmt: skip
        """out = decoded, or with a weight out += decoded * weight, by the compiled loops."""
        count, table = rotation.coordinates(out.numel(), self.block), quic(self.bits, self.shared, out.device)
        if self.shared:
            z = blocks.quic_values(packed, self.bits, table, key.private, count)
        else:
            z = fast.room(count)
            tabled.add_table(z, packed, table[0], torch.ones(1), count, self.bits, None)
        self._put_exact(reader, z)
        reader.end()
        for segment in rotation.layout(out.numel(), self.block):
            rows = z[segment.code : segment.code + segment.rows * segment.size].view(segment.rows, segment.size)
            factors = lengths[segment.row : segment.row + segment.rows] * (1.0 / segment.size)
            part = out[segment.start : segment.start + segment.length]
            blocks.turn_back(rows, rotation.sign_words(segment, key), factors, weight, part)

    def _put_exact(self, reader: Reader, z: torch.Tensor) -> None:
        """Write the coordinates that were sent exactly into ``z``."""
        outliers = reader.varint(z.numel())
        where = torch.from_numpy(masks.decode(reader, outliers, z.numel())).to(z.device)
        exact = bytes_tensor(reader.take(4 * outliers), torch.float32, z.device)
        if not bool(torch.isfinite(exact).all()):
            raise CodecError("the blob has values that are not finite")
        z[where] = exact

    def _is_quick(self, count: int, device: torch.device) -> bool:
        return device.type == "cpu" and (self.block == 0 or self.block >= 32) and fast.worth(count)

    def _codes(self, z: torch.Tensor, key: Key) -> torch.Tensor:
        count = z.numel()
        if not self.shared:
            table = quic(self.bits, False, z.device)[0]
            index = (torch.searchsorted(table, z, right=True) - 1).clamp(0, len(table) - 2)
            low, high = table[index], table[index + 1]
            return (index + (philox.uniform(count, key.dither, CHOICE, 0, z.device) < (z - low) / (high - low))).to(
                torch.uint8
            )
        message, probability = _sender(self.bits)
        word = philox.words(count, key.private, CHOICE, 0, z.device)
        place = (z / self.reach + 1) * (_GRID / 2)
        cell = place.floor().clamp(0, _GRID - 1)
        cell = (cell + ((word >> 16).to(torch.float32) * 2.0**-16 < place - cell)).to(torch.int64)
        h = self._shared_value(count, key, z.device)
        jump = (word & 0xFFFF).to(torch.float32) * 2.0**-16 < probability.to(z.device)[cell, h]
        return message.to(z.device)[cell, h] + jump.to(torch.uint8)

    def _levels(self, codes: torch.Tensor, key: Key, device: torch.device) -> torch.Tensor:
        table = quic(self.bits, self.shared, device)
        if not self.shared:
            return table[0][codes.to(torch.int64)]
        return table[self._shared_value(codes.numel(), key, device), codes.to(torch.int64)]

    def _shared_value(self, count: int, key: Key, device: torch.device) -> torch.Tensor:
        width = quic(self.bits, True, device).shape[0]
        return philox.words(count, key.private, SHARED, 0, device) % width


@lru_cache(maxsize=8)
def _sender(bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes uint8 ``[grid, H]``, fp32 probability of the next code instead): tables for encoding only."""
    reach = quantile(1 - TAIL / 2)
    levels = quic(bits, True, torch.device("cpu")).double().numpy()
    messages, probability, _ = shared_assignment(levels, np.linspace(-reach, reach, _GRID + 1))
    return torch.from_numpy(messages.astype(np.uint8)), torch.from_numpy(probability.astype(np.float32))


@lru_cache(maxsize=8)
def _quick_sender(bits: int) -> np.ndarray:
    return blocks.quic_table(*_sender(bits))
