"""``demo``: the largest cosine coefficients of each tile, as signs and one magnitude (DeMo, Peng et al., 2024).

A flat vector is cut into tiles of 64 x 64; the last tile is padded. The decoder adds one rank-1 term per coefficient,
in order and without fused operations, so that every device gets the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from ..blobs.pieces import Piece
from ..blobs.wire import Header, Reader
from ..codec import bytes_tensor, piece
from ..cpu.calls import blocks
from ..errors import CodecError
from ..primitives import scales, sums
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, unpack
from ..quantizers.looped import Looped, Put
from ..specs.spec import Spec

SIDE = 64
TILE = SIDE * SIDE
_PIECE = 16
"""Tiles at once, so that temporaries stay in the cache."""


@lru_cache(maxsize=1)
def basis() -> torch.Tensor:
    """Orthonormal DCT-II ``[frequency, position]``, computed in fp64 and rounded once."""
    k = torch.arange(SIDE, dtype=torch.float64)
    out = torch.cos(torch.pi / SIDE * (k[None, :] + 0.5) * k[:, None]) * (2.0 / SIDE) ** 0.5
    out[0] /= 2.0**0.5
    rounded: torch.Tensor = out.to(torch.float32)
    return rounded


def cosines(tiles: torch.Tensor) -> torch.Tensor:
    """The cosine coefficients of tiles ``[tiles, 64, 64]``, fp32 of the same shape."""
    across = tiles.reshape(-1, SIDE) @ basis().to(tiles.device).T
    return basis().to(tiles.device) @ across.view(-1, SIDE, SIDE)


class Demo(Looped):
    """k coefficients of each tile of 4096: a 12-bit index and a sign each, and the mean of their magnitudes."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.k = spec.number("k")

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        n, step = x.numel(), _PIECE * TILE if x.device.type == "cpu" else x.numel()
        done = [self._largest(x[start : start + step], self.quick(n, x.device)) for start in range(0, n, step)]
        code, index, negative = (torch.cat(parts) for parts in zip(*done, strict=True))
        return [
            piece(code),
            piece((index & 255).to(torch.uint8)),
            piece(pack((index >> 8).to(torch.uint8), 4)),
            piece(pack(negative, 1)),
        ]

    def _largest(self, x: torch.Tensor, quick: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(int16 codes of the magnitudes, int64 indices, bool signs) of the largest coefficients of some tiles."""
        tiles = torch.nn.functional.pad(x, (0, -x.numel() % TILE)).view(-1, TILE)
        exponent = torch.frexp(tiles.abs().amax(1))[1]
        coefficients = cosines(scales.scaled(tiles, -exponent).view(-1, SIDE, SIDE)).view(-1, TILE)
        if quick:
            order = blocks.chunk_largest(coefficients.view(-1), TILE, self.k)
        else:
            order = torch.argsort(coefficients.abs(), dim=1, descending=True, stable=True)[:, : self.k].sort(1).values
        kept = coefficients.gather(1, order)
        mean = (sums.tree(kept.abs().double()) / self.k).to(torch.float32)
        code = scales.to_codes(torch.ldexp(mean, exponent.clamp(max=126)), up=False)
        return code, order.view(-1), (kept < 0).to(torch.uint8).view(-1)

    def _parts(self, reader: Reader, header: Header, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(int64 indices, fp32 signed magnitudes), each ``[tiles, k]``."""
        n = header.elements
        tiles = -(-n // TILE)
        count = tiles * self.k
        code_bytes, low, high = reader.take(2 * tiles), reader.take(count), reader.take(packed_size(count, 4))
        sign_bytes = reader.take(packed_size(count, 1))
        code = bytes_tensor(code_bytes, torch.int16, device)
        scales.check_codes(code)
        index = bytes_tensor(low, torch.uint8, device).to(torch.int64)
        index |= unpack(bytes_tensor(high, torch.uint8, device), count, 4).to(torch.int64) << 8
        index = index.view(tiles, self.k)
        if bool((index[:, 1:] <= index[:, :-1]).any()):
            raise CodecError("the blob has a coefficient twice")
        sign = unpack(bytes_tensor(sign_bytes, torch.uint8, device), count, 1).view(tiles, self.k)
        unit = scales.to_scales(code)[:, None]
        return index, torch.where(sign > 0, -unit, unit)

    def opened(self, reader: Reader, header: Header) -> Put:
        index, size = self._parts(reader, header, torch.device("cpu"))
        return lambda out, weight: blocks.add_cosines(out, index, size, basis(), weight)

    def plain(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        index, size = self._parts(reader, header, device)
        dct, limit = basis().to(device), torch.finfo(torch.float32).max
        out = torch.zeros(len(index), SIDE, SIDE, device=device)
        step = _PIECE if device.type == "cpu" else len(index)
        for first in range(0, len(index), step):
            here, places = out[first : first + step], index[first : first + step]
            for j in range(self.k):
                left = dct[places[:, j] // SIDE] * size[first : first + step, j, None]
                here += left[:, :, None] * dct[places[:, j] % SIDE][:, None, :]
            here.clamp_(-limit, limit)
        return out.view(-1)[: header.elements]
