"""Philox4x32-10 (Salmon et al., SC 2011): random words as a function of (key, position) alone.

There is no state: any range of any stream can be computed alone, on any device, with the same bits. The layout suits
wide vector units: elements are in tiles of 512; element ``j`` of tile ``t`` takes word ``j // 128`` of counter
``t * 128 + j % 128``, so that 128 neighbouring elements take the same word of 128 consecutive counters.
"""

from __future__ import annotations

import numpy as np
import torch

from ..cpu import dispatch as fast
from .key import Key

TILE = 512
LANES = 128
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
_CHUNK = 1 << 14  # counters at once: the working set stays in the L2 cache


def block(counters: torch.Tensor, key: Key, stream: int) -> list[torch.Tensor]:
    """The four words of each counter: int64 tensors with values below 2^32. counters: int64."""
    c0, c1 = counters & _MASK, counters >> 32
    c2 = torch.full_like(c0, key.step & _MASK)
    c3 = torch.full_like(c0, stream & _MASK)
    k0, k1 = key.words()
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1  # the low 64 bits are right although int64 overflows
        c0, c2 = ((p1 >> 32) & _MASK) ^ c1 ^ k0, ((p0 >> 32) & _MASK) ^ c3 ^ k1
        c1, c3 = p1 & _MASK, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return [c0, c1, c2, c3]


def words(count: int, key: Key, stream: int, start: int = 0, device: torch.device | str = "cpu") -> torch.Tensor:
    """Words of elements ``start`` .. ``start + count``: int64 ``[count]``, values below 2^32."""
    first, last = start // TILE, -(-(start + count) // TILE)
    if str(device) == "cpu":
        if fast.worth(count):
            return torch.from_numpy(fast.words(count, key, stream, start))
        flat = torch.from_numpy(_tiles_numpy(first, last, key, stream).reshape(-1))
    else:
        counters = torch.arange(first * LANES, last * LANES, device=device)
        flat = torch.stack(block(counters, key, stream)).view(4, -1, LANES).transpose(0, 1).reshape(-1)
    return flat[start - first * TILE : start - first * TILE + count]


def _tiles_numpy(first: int, last: int, key: Key, stream: int) -> np.ndarray:
    out = np.empty((last - first, 4, LANES), np.int64)
    step = max(1, _CHUNK // LANES)
    for begin in range(first, last, step):
        end = min(begin + step, last)
        for lane, word in enumerate(block_numpy(np.arange(begin * LANES, end * LANES, dtype=np.uint64), key, stream)):
            out[begin - first : end - first, lane] = word.view(np.int64).reshape(-1, LANES)
    return out


def block_numpy(counters: np.ndarray, key: Key, stream: int) -> list[np.ndarray]:
    """As ``block``, in numpy: uint64 arrays with values below 2^32, and few temporaries."""
    mask, shift = np.uint64(_MASK), np.uint64(32)
    c0, c1 = counters & mask, counters >> shift
    c2 = np.full_like(c0, key.step & _MASK)
    c3 = np.full_like(c0, stream & _MASK)
    p0, p1 = np.empty_like(c0), np.empty_like(c0)
    k0, k1 = key.words()
    for _ in range(10):
        np.multiply(c0, np.uint64(_M0), out=p0)
        np.multiply(c2, np.uint64(_M1), out=p1)
        np.right_shift(p1, shift, out=c0)
        c0 ^= c1
        c0 ^= np.uint64(k0)
        np.right_shift(p0, shift, out=c2)
        c2 ^= c3
        c2 ^= np.uint64(k1)
        np.bitwise_and(p1, mask, out=c1)
        np.bitwise_and(p0, mask, out=c3)
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return [c0, c1, c2, c3]


def uniform(count: int, key: Key, stream: int, start: int = 0, device: torch.device | str = "cpu") -> torch.Tensor:
    """Uniform fp32 in [0, 1), multiples of 2^-24, plus the key's ``turn`` modulo 1: the same bits on every device."""
    if str(device) == "cpu" and fast.worth(count):
        return fast.uniform(count, key, stream, start)
    found = words(count, key, stream, start, device) >> 8
    return (found + key.turn & 0xFFFFFF if key.turn else found).to(torch.float32) * 2.0**-24


def signs(count: int, key: Key, stream: int, start: int = 0, device: torch.device | str = "cpu") -> torch.Tensor:
    """Random signs, fp32 ±1, one bit of Philox each: element i takes bit ``i % 32`` of word ``i // 32``."""
    first, last = start // 32, -(-(start + count) // 32)
    word = words(last - first, key, stream, first, device)
    if word.device.type == "cpu":
        flags = np.unpackbits(word.numpy().astype("<u4").view(np.uint8), bitorder="little")
        return 1.0 - 2.0 * torch.from_numpy(flags[start - first * 32 : start - first * 32 + count]).to(torch.float32)
    bits = (word[:, None] >> torch.arange(32, device=device)) & 1
    chosen = bits.reshape(-1)[start - first * 32 : start - first * 32 + count]
    return 1.0 - 2.0 * chosen.to(torch.float32)


def normal(count: int, key: Key, stream: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Standard normal fp32 (inverse CDF in fp64, on the CPU so that all devices get the same bits)."""
    u = (words(count, key, stream).to(torch.float64) + 0.5) * 2.0**-32
    z: torch.Tensor = torch.special.ndtri(u)
    return z.to(torch.float32).to(device)
