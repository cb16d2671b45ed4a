"""The Triton kernels as functions of tensors (the optional extra ``kernels``): same bytes as the CPU code.

Under TRITON_INTERPRET=1 they also take CPU tensors, which is how the tests compare them.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch

from ..primitives.key import Key
from ..primitives.tables import lloyd

BLOCK = 2048
SIGNS = 0x5349474E


@lru_cache(maxsize=1)
def _installed() -> bool:
    try:
        import triton
    except ImportError:
        return False
    return bool(triton) and torch.version.hip is None  # unfused arithmetic is tested only for CUDA


def available(device: torch.device) -> bool:
    """Whether the kernels can take tensors of this device."""
    if os.environ.get("FARFLUNG_KERNELS") == "0":
        return False
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return _installed() and (device.type == "cuda" or (interpreted and device.type == "cpu"))


@lru_cache(maxsize=1)
def _kernels() -> Any:
    from . import kernels

    return kernels


@lru_cache(maxsize=1)
def _cocktail() -> Any:
    from . import kernels_cocktail

    return kernels_cocktail


@lru_cache(maxsize=1)
def _rotation() -> Any:
    from . import kernels_rotation

    return kernels_rotation


def launch(kernel: Any, programs: int, *arguments: Any, warps: int = 4, **constants: Any) -> None:
    """Run ``programs`` programs of a kernel, on the GPU of its tensors."""
    device = next(one.device for one in arguments if isinstance(one, torch.Tensor))
    there = torch.cuda.device(device) if device.type == "cuda" and torch.cuda.is_available() else nullcontext()
    with there:
        kernel[(programs,)](*arguments, **constants, **_kernels().NO_FUSION, num_warps=warps)


def _key(key: Key) -> tuple[int, int, int]:
    """The halves of the seed, and the step."""
    return *key.words(), key.step & 0xFFFFFFFF


def _programs(count: int, block: int = BLOCK) -> int:
    return -(-count // block)


def new_flag(device: torch.device) -> torch.Tensor:
    """int32 [1], 0; kernels set it to 1 if a value is not finite."""
    return torch.zeros(1, dtype=torch.int32, device=device)


def group_encode(
    x: torch.Tensor, group: int, bits: int, stochastic: bool, key: Key, flag: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(int16 steps, packed codes) of a flat vector, as ``Group.write``; key: the key for rounding."""
    n = x.numel()
    codes = torch.empty(-(-n * bits // 8), dtype=torch.uint8, device=x.device)
    steps = torch.empty(-(-n // group), dtype=torch.int16, device=x.device)
    launch(
        _kernels().group_encode, _programs(n), x, codes, steps, flag, n, *_key(key), key.turn,
        GROUP=group, BITS=bits, STOCHASTIC=stochastic, BLOCK=BLOCK,
    )  # fmt: skip
    return steps, codes


def group_decode(
    codes: torch.Tensor, steps: torch.Tensor, out: torch.Tensor, group: int, bits: int, weight: float | None
) -> None:
    """out = decoded, or with a weight out += decoded * weight."""
    n = out.numel()
    launch(
        _kernels().group_decode, _programs(n), codes, steps, out, n, 1.0 if weight is None else weight,
        GROUP=group, BITS=bits, ADD=weight is not None, BLOCK=BLOCK,
    )  # fmt: skip


def offered(
    x: torch.Tensor, g: torch.Tensor | None, runs: torch.Tensor, run: int, elements: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the offered elements of x, or of x - g; int32 counts of the first digit of their magnitudes); runs: int64
    indices of runs on the same device."""
    out = torch.empty(elements, device=x.device)
    counts = torch.zeros(2048, dtype=torch.int32, device=x.device)
    where = x, x if g is None else g, runs, out, counts, elements
    launch(_cocktail().gather_delta, _programs(elements), *where, DELTA=g is not None, RUN=run, BLOCK=BLOCK)
    return out, counts


def largest(values: torch.Tensor, counts: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(int32 indices, values) of the k largest magnitudes, as ``selection.largest``; counts: as ``offered`` makes them.
    The host does not wait for the device."""
    kernels, n, device = _cocktail(), values.numel(), values.device
    programs = _programs(n)
    prefix = torch.zeros(1, dtype=torch.int32, device=device)
    missing = torch.full((1,), k, dtype=torch.int32, device=device)
    for shift in (20, 10, 0):
        if shift < 20:
            counts = torch.zeros_like(counts)
            launch(kernels.count_digit, programs, values, prefix, counts, n, SHIFT=shift, BLOCK=BLOCK)
        digits = counts[:2047].flip(0)
        reached = digits.cumsum(0, dtype=torch.int32)
        place = (reached < missing).sum(dtype=torch.int32).view(1)
        missing = missing - (reached[place] - digits[place])
        prefix = (prefix << (11 if shift == 20 else 10)) + (2046 - place)
    above, equal = torch.empty((2, programs), dtype=torch.int32, device=device)
    launch(kernels.count_kept, programs, values, prefix, above, equal, n, BLOCK=BLOCK)
    above, equal = (part.cumsum(0, dtype=torch.int32) - part for part in (above, equal))
    index = torch.empty(k, dtype=torch.int32, device=device)
    kept = torch.empty(k, device=device)
    launch(kernels.compact, programs, values, prefix, missing, above, equal, index, kept, n, BLOCK=BLOCK)
    return index, kept


def quantize_kept(
    kept: torch.Tensor, index: torch.Tensor, runs: torch.Tensor, run: int, bucket: int, local: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(int16 steps, packed 4-bit codes) of the kept values; their decoded values are subtracted from ``local`` (None:
    not)."""
    count = kept.numel()
    codes = torch.empty(-(-count // 2), dtype=torch.uint8, device=kept.device)
    steps = torch.empty(-(-count // bucket), dtype=torch.int16, device=kept.device)
    launch(
        _cocktail().quantize_kept, _programs(count),
        kept, index, runs, kept if local is None else local, codes, steps, new_flag(kept.device), count,
        UPDATE=local is not None, RUN=run, BUCKET=bucket, BLOCK=BLOCK,
    )  # fmt: skip
    return steps, codes


def sparse_add(
    out: torch.Tensor, runs: torch.Tensor, run: int, index: torch.Tensor, codes: torch.Tensor, steps: torch.Tensor,
    bucket: int, weight: float,
) -> None:  # fmt: skip
    """Cocktail's 4-bit linear values, decoded and added; index: int32 or int64 places among the offered."""
    kept = index.numel()
    where = out, runs, index, codes, steps, kept, weight
    launch(_cocktail().sparse_add, _programs(kept), *where, RUN=run, BUCKET=bucket, BLOCK=BLOCK)


LEAST, FUSED = 512, 8192
"""The block sizes that one program rotates with one read and one write."""


def fused(size: int) -> bool:
    return LEAST <= size <= FUSED


def _stages(size: int) -> dict[str, int]:
    return {"BLOCK": size, "STAGES": size.bit_length() - 1, "warps": max(1, min(8, size // 512))}


def turn(rows: torch.Tensor, key: Key, stream: int, origin: int, inverse: bool = False) -> torch.Tensor:
    """Signs, then transform, of each row of fp32 ``[rows, 2^k]``, not normalised; the inverse is the transform, then
    the signs. k is at least 9. Above 13: a pass over 4096 neighbours, then one pass for each factor of 128."""
    x, size = rows.contiguous(), rows.shape[1]
    out, numbers = torch.empty_like(x), (*_key(key), stream, origin)
    first = size if fused(size) else 4096
    programs, whole = x.numel() // first, first == size
    sides = {"BEFORE": not inverse, "AFTER": inverse and whole}
    launch(_rotation().rotate, programs, x, out, *numbers, **sides, **_stages(first))
    stride, left = first, (size // first).bit_length() - 1
    while left:
        bits = -(-left // -(-left // 7))
        launch(
            _rotation().hadamard_rows, x.numel() >> (bits + 5), out, out, stride,
            ROWS=1 << bits, STAGES=bits, COLUMNS=32, warps=8,
        )  # fmt: skip
        stride, left = stride << bits, left - bits
    if inverse and not whole:
        no_stages = {**_stages(first), "STAGES": 0}
        launch(_rotation().rotate, programs, out, out, *numbers, BEFORE=False, AFTER=True, **no_stages)
    return out


def _upper(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """``packed`` from the plane of the third bit on, if there is one."""
    return packed[-(-count * 2 // 8) :] if bits == 3 else packed


def eden_encode(
    rows: torch.Tensor, bits: int, key: Key, origin: int, count: int, packed: torch.Tensor, factors: torch.Tensor,
    flag: torch.Tensor, biased: bool,
) -> None:  # fmt: skip
    """Codes of rows of 512 to 8192 coordinates, packed as elements ``origin`` on of ``count``, and their fp32 factors.
    The flag is set if the kernel cannot encode a row, or if a value is not finite."""
    levels = lloyd(bits, rows.device)
    edges = (levels[1:] + levels[:-1]) / 2
    launch(
        _rotation().eden_encode, len(rows), rows, packed, _upper(packed, bits, count), factors, flag,
        edges if bits > 1 else levels, levels, *_key(key), origin, BITS=bits, BIASED=biased, **_stages(rows.shape[1]),
    )  # fmt: skip


def eden_decode(
    packed: torch.Tensor, levels: torch.Tensor, key: Key, origin: int, count: int, factors: torch.Tensor,
    rows: torch.Tensor, weight: float | None,
) -> None:  # fmt: skip
    """rows = decoded, or with a weight rows += decoded * weight; codes of elements ``origin`` on of ``count``, which
    mean ``levels``."""
    bits = (len(levels) - 1).bit_length()
    launch(
        _rotation().eden_decode, len(rows), packed, _upper(packed, bits, count), factors, levels, rows,
        1.0 if weight is None else weight, *_key(key), origin,
        BITS=bits, ADD=weight is not None, **_stages(rows.shape[1]),
    )  # fmt: skip


@lru_cache(maxsize=64)
def _cells(table: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """int32: for each unit of THC's grid, the entry of the table at or below it, its level, the next, a byte each."""
    values, grid = torch.tensor(table, dtype=torch.int32), table[-1]
    below = torch.searchsorted(values, torch.arange(grid + 1, dtype=values.dtype), right=True) - 1
    below = below.clamp(max=len(values) - 2)
    return (below | values[below] << 8 | values[below + 1] << 16).to(torch.int32).to(device)


def thc_encode(
    rows: torch.Tensor, lengths: torch.Tensor, table: tuple[int, ...], bits: int, reach: float, key: Key, origin: int,
    packed: torch.Tensor,
) -> None:  # fmt: skip
    """THC's indices into ``table`` (of at most 255), 2 or 4 bits each, packed from element ``origin`` on; rows of 512
    or more, lengths: the agreed norms of the rows."""
    cells, own, numbers = _cells(table, rows.device), key.dither, {"BITS": bits, "GRID": table[-1]}
    low, high = own.words()
    if fused(rows.shape[1]):
        launch(
            _rotation().thc_encode, len(rows), rows, packed, lengths, cells, *_key(key), low, high, own.turn,
            origin, reach, **numbers, **_stages(rows.shape[1]),
        )  # fmt: skip
        return
    turned = turn(rows / torch.where(lengths > 0, lengths, 1.0)[:, None], key, SIGNS, origin)
    launch(
        _rotation().thc_round, turned.numel() // BLOCK, turned, packed, cells, low, high, key.step & 0xFFFFFFFF,
        own.turn, origin, reach, **numbers, BLOCK=BLOCK,
    )  # fmt: skip
