"""Calls of the compiled loops (see ``dispatch``) for tiles, the largest of chunks, and rotated blocks of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...primitives import scales
from ...primitives.key import Key
from ..dispatch import _factor, _key, _loops, packed_bytes, room
from .levels import Mirror


def tile(
    x: torch.Tensor, size: int, bits: int, outlier: float, key: Key | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """(int16 codes of steps, uint8 whether a tile was rotated, packed levels); key: for random rounding. None: the
    torch code must be used."""
    tiles = -(-x.numel() // size)
    steps, turned = torch.empty(tiles, dtype=torch.int32), torch.empty(tiles, dtype=torch.uint8)
    packed = room(packed_bytes(tiles * size, bits), torch.uint8)
    randomness = key is not None, scales.most(), *_key(key or Key())
    out = steps.numpy(), turned.numpy(), packed.numpy()
    if not _loops("turned.tiles").tile(x.numpy(), size, bits, outlier, *randomness, *out):
        return None
    return steps.to(torch.int16), turned, packed


def tile_back(
    packed: Any, units: torch.Tensor, turned: torch.Tensor, size: int, bits: int, weight: float | None,
    out: torch.Tensor,
) -> None:  # fmt: skip
    """Tiles, decoded into ``out``, or with a weight added to it."""
    numbers = np.frombuffer(packed, np.uint8), units.numpy(), turned.numpy(), size, bits
    _loops("turned.tiles").tile_back(*numbers, _factor(weight), weight is not None, out.numpy())


def shifts(x: torch.Tensor, group: int, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(int8 exponents, packed levels, fp32 decoded values) of AQ-SGD's groups."""
    exponents, decoded = torch.empty(-(-x.numel() // group), dtype=torch.int8), room(x.numel())
    packed = room(packed_bytes(x.numel(), bits), torch.uint8)
    _loops("turned.tiles").shifts(x.numpy(), group, bits, exponents.numpy(), packed.numpy(), decoded.numpy())
    return exponents, packed, decoded


def chunk_largest(x: torch.Tensor, chunk: int, k: int) -> torch.Tensor:
    """int64 ``[chunks, k]``: positions of the k largest magnitudes of each whole chunk, rising, ties by the lowest."""
    order = torch.empty(x.numel() // chunk, k, dtype=torch.int64)
    _loops("turned.tiles").chunk_largest(x.numpy(), chunk, k, order.numpy())
    return order


def turn(x: torch.Tensor, units: torch.Tensor, dividing: bool, signs: torch.Tensor, out: torch.Tensor) -> None:
    """Write the rows of a flat vector (the last may be short), each divided by (or times) its unit and rotated, into
    ``out`` ``[rows, size]``."""
    _loops("turned.rotated").turn(x.numpy(), units.numpy(), dividing, signs.numpy(), out.numpy())


def turn_back(
    rows: torch.Tensor, signs: torch.Tensor, factors: torch.Tensor, weight: float | None, out: torch.Tensor
) -> None:
    """Rotate rows back (in place), multiply each by its factor, and write them to flat ``out``, or with a weight add
    them."""
    numbers = rows.numpy(), signs.numpy(), factors.numpy()
    _loops("turned.rotated").turn_back(*numbers, _factor(weight), weight is not None, out.numpy())


def thc_codes(
    turned: torch.Tensor, reach: float, table: torch.Tensor, below: torch.Tensor, key: Key, first: int,
    codes: torch.Tensor,
) -> None:  # fmt: skip
    """Write THC's indices into the rising integer ``table``, for flat rotated coordinates from element ``first`` on,
    into uint8 ``codes``."""
    grid, levels = int(table[-1]), table.to(torch.float32).numpy()
    range_of = np.float32(reach), np.float32(2 * reach), grid
    mirror = Mirror.about(table.to(torch.int32).numpy(), grid).numbers()
    numbers = levels, below.to(torch.int32).numpy(), *mirror, *_key(key), first, codes.numpy()
    _loops("turned.rotated").thc_codes(turned.numpy(), *range_of, *numbers)


def quic_private(z: torch.Tensor, reach: float, table: torch.Tensor, key: Key) -> tuple[torch.Tensor, torch.Tensor]:
    """(uint8 codes, int64 positions of coordinates beyond ``reach``) of rotated coordinates, without shared randomness.
    table: QUIC-FL's levels, rising."""
    codes, beyond = room(z.numel(), torch.uint8), np.empty(z.numel() + 1, np.int64)
    numbers = np.float32(reach), *Mirror.about(table.numpy(), 0.0).numbers(), *_key(key)
    found = _loops("turned.rotated").quic_private(z.numpy(), *numbers, codes.numpy(), beyond)
    return codes, torch.from_numpy(beyond[:found].copy())


def quic_codes(
    z: torch.Tensor, reach: float, grid: int, both: np.ndarray, key: Key
) -> tuple[torch.Tensor, torch.Tensor]:
    """(uint8 codes, int64 positions of coordinates beyond ``reach``) of rotated coordinates, with QUIC-FL's shared
    randomness. both: from ``quic_table``."""
    codes, beyond = room(z.numel(), torch.uint8), np.empty(z.numel() + 1, np.int64)
    seed, step = _key(key)
    numbers = np.float32(reach), grid, both, seed, seed, step
    found = _loops("turned.rotated").quic_codes(z.numpy(), *numbers, codes.numpy(), beyond)
    return codes, torch.from_numpy(beyond[:found].copy())


def quic_table(messages: torch.Tensor, chances: torch.Tensor) -> np.ndarray:
    """uint32: a uint8 code above 17 bits that hold 2^16 times the fp32 probability of the next code, rounded up."""
    whole = np.ceil(chances.double().numpy() * 65536.0).astype(np.uint32)
    table: np.ndarray = messages.numpy().astype(np.uint32) << 17 | whole
    return table


def quic_values(packed: Any, bits: int, table: torch.Tensor, key: Key, count: int) -> torch.Tensor:
    """fp32: the levels of packed codes."""
    z = room(count)
    _loops("turned.rotated").quic_values(np.frombuffer(packed, np.uint8), bits, table.numpy(), *_key(key), z.numpy())
    return z


def add_product(out: torch.Tensor, p: torch.Tensor, q: torch.Tensor, weight: float | None) -> None:
    """p @ q.T of fp32 ``[m, r]`` and ``[k, r]``, as ``lowrank.product``, as far as flat ``out`` goes: written to it or
    added with a weight."""
    factors = p.contiguous().numpy(), q.T.contiguous().numpy()
    _loops("factors").product(*factors, _factor(weight), weight is not None, out.numpy())


def add_cosines(
    out: torch.Tensor, index: torch.Tensor, sizes: torch.Tensor, basis: torch.Tensor, weight: float | None
) -> None:
    """Tiles of 64 x 64 of the cosines that ``index`` (int64 ``[tiles, k]``) names, as far as flat ``out`` goes: written
    to it or added with a weight."""
    numbers = index.numpy(), sizes.contiguous().numpy(), basis.numpy()
    _loops("factors").cosines(*numbers, _factor(weight), weight is not None, out.numpy())
