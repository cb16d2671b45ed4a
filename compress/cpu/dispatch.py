"""Compiled loops for the CPU (the optional extra ``fast``: numba). Same results, bit for bit, without it."""

from __future__ import annotations

import importlib
import os
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ..primitives import scales, selection
from ..primitives.key import Key

LEAST, FEW = 1 << 17, 1 << 10
"""Shorter vectors are not worth importing numba and compiling for, a second or more, once for each process; nor, where
that is done, a call."""


def worth(count: int) -> bool:
    """Whether the compiled loops should take a vector of ``count`` elements."""
    return count >= LEAST and available()


def worth_few(count: int) -> bool:
    """Whether they should take the ``count`` elements that a sparse codec keeps of a vector: fewer pay where something
    has loaded the loops before, as the pieces of a long vector do."""
    return ((count >= FEW and _loops.cache_info().currsize > 0) or count >= LEAST) and available()


@lru_cache(maxsize=1)
def available() -> bool:
    """Whether numba is there and not switched off (FARFLUNG_FAST=0)."""
    if os.environ.get("FARFLUNG_FAST") == "0":
        return False
    try:
        import numba
    except ImportError:
        return False
    return bool(numba)


@lru_cache(maxsize=32)
def _loops(what: str = "") -> Any:
    return importlib.import_module(f".loops{what}", __package__)


_NUMPY = {torch.float32: np.float32, torch.uint8: np.uint8, torch.int32: np.int32}


def room(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """``[count]``, not filled. numpy asks the system for large pages: of small ones, each costs its first touch as much
    as a copy of it."""
    return torch.from_numpy(np.empty(count, _NUMPY[dtype]))


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Unnormalised Walsh-Hadamard transform of each row: a new tensor."""
    out = x.contiguous().clone()
    _loops().hadamard(out.numpy())
    return out


def _factor(weight: float | None) -> np.float32:
    return np.float32(1.0 if weight is None else weight)


def _key(key: Key) -> tuple[np.uint64, int]:
    """The seed, and the step with the turn above it (``loops_random.dither``)."""
    return np.uint64(key.seed & 0xFFFFFFFFFFFFFFFF), key.step & 0xFFFFFFFF | key.turn << 32


def words(count: int, key: Key, stream: int, start: int) -> np.ndarray:
    """As ``philox.words``: int64 ``[count]``."""
    out = np.empty(count, np.int64)
    _loops("_random").words(start, *_key(key), stream, out)
    return out


def uniform(count: int, key: Key, stream: int, start: int) -> torch.Tensor:
    """As ``philox.uniform``: fp32 ``[count]``."""
    out = torch.empty(count)
    _loops("_random").dither(start, *_key(key), stream, out.numpy())
    return out


def largest_offered(
    x: np.ndarray, runs: np.ndarray, run: int, offered: int, k: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """(int32 places among the ``offered``, fp32 values) of the k largest magnitudes of the runs, as those that
    ``selection.largest`` finds. None where the slow way is needed: a sample that misleads, or a value of ``x`` that is
    not finite."""
    loops, bits = _loops("_sparse"), x.view(np.int32)
    seen = np.empty(min(len(runs), 1 << 12), np.int32)
    loops.sample(bits, runs, run, seen)
    places = selection.bounds(seen, k / offered)
    if places is None or offered >= 1 << 31:
        return None
    seen.partition(places[0])
    least = int(seen[places[0]])
    # One allocation: of several, glibc gives some back to the system each time, and their pages are zeroed anew.
    room = min(offered, int(1.1 * offered * (1 - places[0] / len(seen)))) + run + 1
    where, values = np.empty((2, room), np.int32)
    found = loops.near(bits, runs, run, np.int32(least), where, values)
    if found < k:
        return None
    where, values = where[:found], values[:found]
    exact = loops.threshold(values, least, k)
    count = loops.keep(where, values, np.int32(exact))
    where, values = where[:count], values[:count]
    if count > k:
        stays = selection.without_surplus(selection.magnitudes(values), exact, k)
        where, values = where[stays], values[stays]
    return where, values.view(np.float32)


def gap_sum(positions: np.ndarray, low: int) -> int:
    """The sum of gap >> low over the gaps before rising positions."""
    return int(_loops("_sparse").gap_sum(positions, low))


def rice(positions: np.ndarray, low: int, unary_bits: int) -> tuple[bytes, bytes]:
    """(unary bytes, remainder bytes) of the gaps before the positions; low is 0, 1, 2 or 4."""
    unary, rest = np.zeros(-(-unary_bits // 64), np.uint64), np.zeros(-(-len(positions) * low // 8), np.uint8)
    _loops("_sparse").rice(positions, low, unary, rest)
    return unary.astype("<u8", copy=False).tobytes()[: -(-unary_bits // 8)], rest.tobytes()


def rice_back(unary: Any, rest: Any, low: int, unary_bits: int, count: int, size: int) -> np.ndarray | None:
    """The ``count`` positions below ``size`` of Rice codes; None if they are not that."""
    padded = np.zeros(-(-len(unary) // 8), "<u8")
    padded.view(np.uint8)[: len(unary)] = np.frombuffer(unary, np.uint8)
    positions = np.empty(count, np.int32 if size < 1 << 31 else np.int64)
    found = _loops("_sparse").rice_back(padded, np.frombuffer(rest, np.uint8), low, positions)
    good = found[0] == count and (count == 0 or (found[1] == unary_bits - 1 and found[2] < size))
    return positions if good else None


def add_sparse(
    out: np.ndarray, places: np.ndarray, runs: np.ndarray, run: int, levels: Any, units: np.ndarray, bucket: int,
    weight: float,
) -> None:  # fmt: skip
    """Cocktail's 4-bit linear values, decoded and added at places among the offered."""
    packed = np.frombuffer(levels, np.uint8)
    _loops("_sparse").add_sparse(out, places, runs, run, packed, units, bucket, np.float32(weight))


def quantize(
    x: torch.Tensor, group: int, bits: int, full: bool, stochastic: bool, key: Key
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(steps: fp32 where ``full``, else int16 codes; packed levels of 2, 4 or 8 bits) of a flat fp32 vector, as
    ``Group.quantize``. None if a value is not finite."""
    steps = torch.empty(-(-x.numel() // group), dtype=torch.int32)
    packed = room(-(-x.numel() * bits // 8), torch.uint8)
    loop, limit = _loops("_groups").quantize, scales.limit((1 << (bits - 1)) - 1, full)
    if not loop(x.numpy(), group, bits, full, np.int64(limit), stochastic, *_key(key), steps.numpy(), packed.numpy()):
        return None
    return steps.view(torch.float32) if full else (steps >> scales.LOW).to(torch.int16), packed


def add_groups(
    out: torch.Tensor, levels: Any, units: torch.Tensor, group: int, bits: int, weight: float | None
) -> None:
    """Groups of 2, 4 or 8 bits, decoded into ``out``, or added to it with a weight."""
    packed, adding = np.frombuffer(levels, np.uint8), weight is not None
    _loops("_groups").add(out.numpy(), packed, units.numpy(), group, bits, _factor(weight), adding)


def group_squares(levels: Any, units: torch.Tensor, group: int, bits: int, count: int) -> float:
    """The sum of the squares of groups of 2, 4 or 8 bits."""
    return float(_loops("_groups").squares(np.frombuffer(levels, np.uint8), units.numpy(), group, bits, count))


KINDS = {torch.float32: 32, torch.float16: 16, torch.bfloat16: 8}
"""The plain values that the loops know."""


def add_floats(out: torch.Tensor, data: Any, dtype: torch.dtype, weight: float | None) -> None:
    """Plain values from their bytes, at any address, written to ``out`` or added to it with a weight."""
    raw, adding = np.frombuffer(data, np.uint8), weight is not None
    _loops("_casts").add(out.numpy(), raw, KINDS[dtype], _factor(weight), adding)


def float_squares(data: Any, count: int, dtype: torch.dtype) -> float:
    """The sum of the squares of plain values."""
    return float(_loops("_casts").squares(np.frombuffer(data, np.uint8), count, KINDS[dtype]))


def nearest_levels(rows: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """uint8 index of the nearest level, given the rising edges between levels."""
    out = torch.empty(rows.shape, dtype=torch.uint8)
    _loops().nearest_levels(rows.contiguous().numpy(), edges.numpy(), out.numpy())
    return out


_NO_CELLS = np.empty(0, np.int32)


def _edges(levels: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(fp32 edges between rising levels, then infinity; int32 how many edges are surely below each of equal cells)."""
    edges = ((levels[1:] + levels[:-1]) / 2).numpy()
    reach = float(edges[-1])
    count = 1 << 11
    starts = -reach + 2 * reach / count * (np.arange(count + 1) - 1e-3)  # a little lower: a place is rounded
    below = np.searchsorted(edges, starts)
    beyond = np.searchsorted(edges, starts[1:] + 2e-3 * 2 * reach / count)
    assert (beyond - below[:-1] <= 1).all()
    return np.append(edges, np.float32(np.inf)), below[:-1].astype(np.int32)


def eden_encode(
    rows: torch.Tensor, words: torch.Tensor, levels: torch.Tensor, packed: torch.Tensor, count: int, first: int,
    factors: torch.Tensor, kind: int,
) -> bool:  # fmt: skip
    """The fp32 factors of EDEN for fp32 ``[rows, 2^k]``; the codes are packed as elements ``first`` on of ``count``.
    kind: 0 without bias, 1 of least error, 2 the norm (TurboQuant). False where the slow way is needed."""
    bits = (len(levels) - 1).bit_length()
    edges, cells = _finder(levels, bits)
    numbers = words.numpy(), levels.numpy(), edges, cells, kind, bits, packed.numpy(), count, first, factors.numpy()
    return bool(_loops("_eden").encode(rows.numpy(), *numbers))


def _finder(levels: torch.Tensor, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """(edges, cells), as ``loops_eden.quantized`` takes them."""
    return _edges(levels) if bits > 5 else (((levels[1:] + levels[:-1]) / 2).numpy(), _NO_CELLS)


def mixed(count: int, share: float, key: Key, stream: int) -> tuple[torch.Tensor, int]:
    """(uint8 flags of the elements whose uniform number is below ``share``, how many)."""
    flags = room(count, torch.uint8)
    found = _loops("_random").below(*_key(key), stream, np.float32(share), flags.numpy())
    return flags, int(found)


def eden_encode_mixed(
    rows: torch.Tensor, words: torch.Tensor, levels: tuple[torch.Tensor, torch.Tensor], flags: torch.Tensor,
    packed: torch.Tensor, extra: torch.Tensor, at: int, count: int, first: int, factors: torch.Tensor, kind: int,
) -> int:  # fmt: skip
    """As ``eden_encode``, where the elements with ``flags`` have the second levels, of a bit more; that bit goes to
    uint8 ``extra`` from ``at`` on. What ``at`` is then; -1 where the slow way is needed."""
    bits = (len(levels[0]) - 1).bit_length()
    few, more = (levels[0].numpy(), *_finder(levels[0], bits)), (levels[1].numpy(), *_finder(levels[1], bits + 1))
    out = flags.numpy(), packed.numpy(), extra.numpy(), at, count, first, factors.numpy()
    return int(_loops("_eden").encode_mixed(rows.numpy(), words.numpy(), *few, *more, kind, bits, *out))


def eden_decode_mixed(
    packed: Any, extra: torch.Tensor, at: int, flags: torch.Tensor, words: torch.Tensor, levels: torch.Tensor,
    bits: int, count: int, first: int, factors: torch.Tensor, weight: float | None, out: torch.Tensor,
) -> int:  # fmt: skip
    """As ``eden_decode``; levels: fp32 ``[512]``, from 256 on those of elements with ``flags``. What ``at`` is then."""
    data = np.frombuffer(packed, np.uint8), extra.numpy(), at, flags.numpy(), words.numpy(), levels.numpy()
    numbers = bits, count, first, factors.numpy(), _factor(weight), weight is not None
    return int(_loops("_eden").decode_mixed(*data, *numbers, out.numpy()))


def eden_pack(codes: torch.Tensor, bits: int, packed: torch.Tensor, count: int, first: int) -> None:
    """uint8 codes, packed as elements ``first`` on of ``count``."""
    _loops("_eden").planes(codes.numpy(), bits, packed.numpy(), count, first)


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """As ``packing.pack``."""
    packed = room(packed_bytes(codes.numel(), bits), torch.uint8)
    _loops("_eden").pack_all(codes.contiguous().numpy(), bits, packed.numpy())
    return packed


def unpack(packed: torch.Tensor, count: int, bits: int) -> torch.Tensor:
    """As ``packing.unpack``."""
    codes = room(count, torch.uint8)
    _loops("_eden").unpack_all(packed.numpy(), bits, codes.numpy())
    return codes


def eden_decode(
    packed: Any, words: torch.Tensor, levels: torch.Tensor, count: int, first: int, factors: torch.Tensor,
    weight: float | None, out: torch.Tensor,
) -> None:  # fmt: skip
    """Codes of elements ``first`` on of ``count``, decoded into fp32 ``[rows, 2^k]``, or added to it with a weight."""
    bits, data = (len(levels) - 1).bit_length(), np.frombuffer(packed, np.uint8)
    numbers = words.numpy(), levels.numpy(), bits, count, first, factors.numpy()
    _loops("_eden").decode(data, *numbers, _factor(weight), weight is not None, out.numpy())


def largest(x: torch.Tensor, group: int) -> torch.Tensor:
    """fp32: the largest magnitude of each group of a flat fp32 vector."""
    out = room(-(-x.numel() // group), torch.int32)
    _loops("_tables").largest(x.numpy(), group, out.numpy())
    return out.view(torch.float32)


def sums(x: torch.Tensor, size: int, what: int) -> torch.Tensor:
    """As ``primitives.sums.sums``."""
    out = torch.empty(-(-x.numel() // size), dtype=torch.float64)
    _loops("_sums").sums(x.numpy(), size, what, out.numpy())
    return out


def add_table(
    out: torch.Tensor, packed: Any, table: torch.Tensor, units: torch.Tensor, group: int, bits: int,
    weight: float | None,
) -> None:  # fmt: skip
    """table[code] * unit of the group, held to fp32's range, written to ``out`` or added to it with a weight."""
    numbers = np.frombuffer(packed, np.uint8), table.numpy(), units.numpy(), group, bits
    _loops("_tables").add(out.numpy(), *numbers, _factor(weight), weight is not None)


def minifloat(
    x: torch.Tensor, group: int, scale: tuple[torch.Tensor, ...], form: tuple[int, int, int, int], key: Key | None
) -> torch.Tensor:
    """Packed codes of short floats. scale: (unit of each group to divide by) or (two factors of each group). form:
    (bits, of them mantissa, least exponent, largest code). key: of random rounding; None: nearest."""
    bits, mantissa, least, most = form
    packed = room(packed_bytes(x.numel(), bits), torch.uint8)
    first, second = scale[0].numpy(), scale[-1].numpy()
    randomness = key is not None, *_key(key or Key())
    numbers = group, len(scale) == 1, first, second, mantissa, least, most
    _loops("_tables").minifloat(x.numpy(), *numbers, *randomness, bits, packed.numpy())
    return packed


def between(x: torch.Tensor, group: int, units: torch.Tensor, edges: torch.Tensor, bits: int) -> torch.Tensor:
    """Packed codes: how many of the rising edges are below x / unit."""
    packed = room(packed_bytes(x.numel(), bits), torch.uint8)
    _loops("_tables").edges(x.numpy(), group, units.numpy(), edges.numpy(), bits, packed.numpy())
    return packed


def packed_bytes(count: int, bits: int) -> int:
    """As ``packing.packed_size``."""
    return sum(-(-count * width // 8) for width in (8, 4, 2, 1) if bits & width)
