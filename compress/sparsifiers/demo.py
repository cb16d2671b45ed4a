"""``demo``: the largest cosine coefficients of each tile, their signs and one size (DeMo, Peng et al., 2024).

A flat vector is cut into tiles of 64 x 64; what is left over is padded. The decoder adds one rank-1 term per
coefficient, in order and unfused, so that every device gets the same bits.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from ..codec import Codec, bytes_tensor, tensor_bytes
from ..errors import CodecError
from ..primitives import scales
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, unpack
from ..spec import Spec
from ..wire import Buffer, Header, Reader

SIDE = 64
TILE = SIDE * SIDE


@lru_cache(maxsize=1)
def basis() -> torch.Tensor:
    """Orthonormal DCT-II ``[frequency, position]``, computed in fp64 and rounded once."""
    k = torch.arange(SIDE, dtype=torch.float64)
    out = torch.cos(torch.pi / SIDE * (k[None, :] + 0.5) * k[:, None]) * (2.0 / SIDE) ** 0.5
    out[0] /= 2.0**0.5
    rounded: torch.Tensor = out.to(torch.float32)
    return rounded


class Demo(Codec):
    """k coefficients of each tile of 4096: a 12-bit index and a sign each, and the mean of their magnitudes."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.k = spec.number("k")

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        tiles = torch.nn.functional.pad(x, (0, -x.numel() % TILE)).view(-1, SIDE, SIDE)
        largest = tiles.abs().amax((1, 2), keepdim=True)
        exponent = torch.where(largest > 0, torch.frexp(largest)[1], 0)
        dct = basis().to(x.device)
        scaled = torch.ldexp(torch.ldexp(tiles, -(exponent // 2)), -(exponent - exponent // 2))
        coefficients = (dct @ scaled @ dct.T).view(-1, TILE)
        order = torch.argsort(coefficients.abs(), dim=1, descending=True, stable=True)[:, : self.k].sort(1).values
        kept = coefficients.gather(1, order)
        size = torch.ldexp(kept.abs().mean(1), exponent.view(-1).clamp(max=126))
        code = scales.to_codes(size, up=False)
        index = order.view(-1)
        return [
            tensor_bytes(code),
            tensor_bytes((index & 255).to(torch.uint8)),
            tensor_bytes(pack((index >> 8).to(torch.uint8), 4)),
            tensor_bytes(pack((kept < 0).to(torch.uint8).view(-1), 1)),
        ]

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
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
        size = torch.where(sign > 0, -unit, unit)
        dct = basis().to(device)
        out = torch.zeros(tiles, SIDE, SIDE, device=device)
        for j in range(self.k):
            left = dct[index[:, j] // SIDE] * size[:, j, None]
            out += left[:, :, None] * dct[index[:, j] % SIDE][:, None, :]
        limit = torch.finfo(torch.float32).max
        return out.clamp_(-limit, limit).view(-1)[:n]
