"""The Triton kernels as functions of tensors (the optional extra ``kernels``): same bytes as the CPU code.

Under TRITON_INTERPRET=1 they also take CPU tensors, which is how the tests compare them.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

import torch

from ..primitives.key import Key
from ..primitives.tables import lloyd

BLOCK = 2048


@lru_cache(maxsize=1)
def _installed() -> bool:
    try:
        import triton
    except ImportError:
        return False
    return bool(triton) and torch.version.hip is None  # that they do not fuse is known of CUDA's code alone


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


def _options(warps: int = 4) -> dict[str, Any]:
    return {**_kernels().NO_FUSION, "num_warps": warps}


def _grid(count: int, block: int) -> tuple[int]:
    return (-(-count // block),)


def group_encode(
    x: torch.Tensor, group: int, bits: int, stochastic: bool, key: Key
) -> tuple[torch.Tensor, torch.Tensor]:
    """(int16 steps, packed codes) of a flat vector, as ``Group.write``."""
    n = x.numel()
    codes = torch.empty(-(-n * bits // 8), dtype=torch.uint8, device=x.device)
    steps = torch.empty(-(-n // group), dtype=torch.int16, device=x.device)
    _kernels().group_encode[_grid(n, BLOCK)](
        x, codes, steps, n, key.seed, key.step, GROUP=group, BITS=bits, STOCHASTIC=stochastic, BLOCK=BLOCK, **_options()
    )
    return steps, codes


def group_decode(
    codes: torch.Tensor, steps: torch.Tensor, out: torch.Tensor, group: int, bits: int, weight: float | None
) -> None:
    """out = decoded, or with a weight out += decoded * weight."""
    n = out.numel()
    _kernels().group_decode[_grid(n, BLOCK)](
        codes, steps, out, n, 1.0 if weight is None else weight,
        GROUP=group, BITS=bits, ADD=weight is not None, BLOCK=BLOCK, **_options(),
    )  # fmt: skip


def group_hop(
    codes: torch.Tensor, steps: torch.Tensor, local: torch.Tensor, group: int, bits: int, stochastic: bool, key: Key
) -> tuple[torch.Tensor, torch.Tensor]:
    """(int16 steps, packed codes) of decoded + local."""
    n = local.numel()
    out_codes, out_steps = torch.empty_like(codes), torch.empty_like(steps)
    _kernels().group_hop[_grid(n, BLOCK)](
        codes, steps, local, out_codes, out_steps, n, key.seed, key.step,
        GROUP=group, BITS=bits, STOCHASTIC=stochastic, BLOCK=BLOCK, **_options(),
    )  # fmt: skip
    return out_steps, out_codes


def sign_with_feedback(gradient: torch.Tensor, error: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(packed bits, fp32 scale ``[1]``) of gradient + error; ``error`` becomes what was not sent."""
    n = gradient.numel()
    bits = torch.empty(-(-n // 8), dtype=torch.uint8, device=gradient.device)
    partial = torch.empty(_grid(n, BLOCK), device=gradient.device)
    _kernels().sign_accumulate[_grid(n, BLOCK)](gradient, error, error, partial, n, BLOCK=BLOCK, **_options())
    scale = (partial.sum(dtype=torch.float64) / n).to(torch.float32).view(1)
    _kernels().sign_encode[_grid(n, BLOCK)](error, error, bits, scale, n, BLOCK=BLOCK, **_options())
    return bits, scale


def offered(
    x: torch.Tensor, g: torch.Tensor | None, runs: torch.Tensor, run: int, elements: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the offered elements of x, or of x - g; int32 counts of the first digit of their magnitudes); runs: int64
    indices of runs on the same device."""
    out = torch.empty(elements, device=x.device)
    counts = torch.zeros(2048, dtype=torch.int32, device=x.device)
    _cocktail().gather_delta[_grid(elements, BLOCK)](
        x, x if g is None else g, runs, out, counts, elements, DELTA=g is not None, RUN=run, BLOCK=BLOCK, **_options()
    )
    return out, counts


def largest(values: torch.Tensor, counts: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(int32 indices, values) of the k largest magnitudes, as ``selection.largest``; counts: as ``offered`` makes them.
    Nothing waits for the device."""
    kernels, n, device = _cocktail(), values.numel(), values.device
    prefix = torch.zeros(1, dtype=torch.int32, device=device)
    missing = torch.full((1,), k, dtype=torch.int32, device=device)
    for shift in (20, 10, 0):
        if shift < 20:
            counts = torch.zeros_like(counts)
            kernels.count_digit[_grid(n, BLOCK)](values, prefix, counts, n, SHIFT=shift, BLOCK=BLOCK, **_options())
        digits = counts[:2047].flip(0)
        reached = digits.cumsum(0, dtype=torch.int32)
        place = (reached < missing).sum(dtype=torch.int32).view(1)
        missing = missing - (reached[place] - digits[place])
        prefix = (prefix << (11 if shift == 20 else 10)) + (2046 - place)
    above, equal = torch.empty((2, *_grid(n, BLOCK)), dtype=torch.int32, device=device)
    kernels.count_kept[_grid(n, BLOCK)](values, prefix, above, equal, n, BLOCK=BLOCK, **_options())
    above, equal = (part.cumsum(0, dtype=torch.int32) - part for part in (above, equal))
    index = torch.empty(k, dtype=torch.int32, device=device)
    kept = torch.empty(k, device=device)
    kernels.compact[_grid(n, BLOCK)](values, prefix, missing, above, equal, index, kept, n, BLOCK=BLOCK, **_options())
    return index, kept


def quantize_kept(
    kept: torch.Tensor, index: torch.Tensor, runs: torch.Tensor, run: int, bucket: int, local: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(int16 steps, packed 4-bit codes) of the kept values; what they decode to is taken from ``local``."""
    count = kept.numel()
    codes = torch.empty(-(-count // 2), dtype=torch.uint8, device=kept.device)
    steps = torch.empty(-(-count // bucket), dtype=torch.int16, device=kept.device)
    _cocktail().quantize_kept[_grid(count, BLOCK)](
        kept, index, runs, kept if local is None else local, codes, steps, count,
        UPDATE=local is not None, RUN=run, BUCKET=bucket, BLOCK=BLOCK, **_options(),
    )  # fmt: skip
    return steps, codes


def sparse_add(
    out: torch.Tensor, runs: torch.Tensor, run: int, index: torch.Tensor, codes: torch.Tensor, steps: torch.Tensor,
    bucket: int, weight: float,
) -> None:  # fmt: skip
    """Cocktail's 4-bit linear values, decoded and added; index: int32 or int64 places among the offered."""
    kept = index.numel()
    _cocktail().sparse_add[_grid(kept, BLOCK)](
        out, runs, index, codes, steps, kept, weight, RUN=run, BUCKET=bucket, BLOCK=BLOCK, **_options()
    )


def rotate(x: torch.Tensor, block: int, key: Key, inverse: bool = False) -> torch.Tensor:
    """Signs and transform of whole blocks of 4096 or 8192, not normalised; the inverse is transform, then signs."""
    out = torch.empty_like(x)
    _rotation().rotate[(x.numel() // block,)](
        x, out, key.seed, key.step, BLOCK=block, STAGES=block.bit_length() - 1, INVERSE=inverse, **_options(8)
    )
    return out


def hadamard_full(x: torch.Tensor, key: Key) -> torch.Tensor:
    """Signs and one transform over all of ``x`` (2^k elements, k >= 12): a pass of 4096, then passes of up to 128."""
    out, stride = rotate(x, 4096, key), 4096
    left = x.numel().bit_length() - 1 - 12
    while left:
        passes = -(-left // 7)
        bits = -(-left // passes)
        _rotation().hadamard_rows[(x.numel() >> (bits + 5),)](
            out, out, stride, ROWS=1 << bits, STAGES=bits, COLUMNS=32, **_options(8)
        )
        stride, left = stride << bits, left - bits
    return out


def eden_encode(x: torch.Tensor, block: int, bits: int, key: Key) -> tuple[torch.Tensor, torch.Tensor]:
    """(packed codes, fp32 factors) of whole blocks."""
    levels = lloyd(bits, x.device)
    edges = (levels[1:] + levels[:-1]) / 2
    packed = torch.empty(x.numel() * bits // 8, dtype=torch.uint8, device=x.device)
    factors = torch.empty(x.numel() // block, device=x.device)
    _rotation().eden_encode[(x.numel() // block,)](
        x, packed, factors, edges, levels, key.seed, key.step,
        BLOCK=block, STAGES=block.bit_length() - 1, BITS=bits, **_options(8),
    )  # fmt: skip
    return packed, factors


def eden_decode(
    packed: torch.Tensor,
    factors: torch.Tensor,
    out: torch.Tensor,
    block: int,
    bits: int,
    key: Key,
    weight: float | None,
) -> None:
    """out = decoded, or with a weight out += decoded * weight; whole blocks."""
    _rotation().eden_decode[(out.numel() // block,)](
        packed, factors, lloyd(bits, out.device), out, 1.0 if weight is None else weight, key.seed, key.step,
        BLOCK=block, STAGES=block.bit_length() - 1, BITS=bits, ADD=weight is not None, **_options(8),
    )  # fmt: skip


def thc_encode(
    x: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor, reach: float, block: int, key: Key
) -> torch.Tensor:
    """Packed 4-bit indices into ``table`` (of at most 255) of whole blocks; lengths: the agreed norms of the blocks."""
    grid = int(table[-1])
    below = torch.searchsorted(table, torch.arange(grid + 1, dtype=table.dtype), right=True) - 1
    below = below.clamp(max=len(table) - 2)
    cells = (below | table[below] << 8 | table[below + 1] << 16).to(torch.int32).to(x.device)
    packed = torch.empty(x.numel() // 2, dtype=torch.uint8, device=x.device)
    _rotation().thc_encode[(x.numel() // block,)](
        x, packed, lengths, cells, key.seed, key.private.seed, key.step, reach,
        BLOCK=block, STAGES=block.bit_length() - 1, GRID=grid, **_options(8),
    )  # fmt: skip
    return packed
