"""``philox`` as a compiled loop: the lanes of a tile side by side, so that the compiler uses the widest registers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import jit


@jit
def tile(number: int, seed: Any, step: Any, stream: Any, out: Any) -> None:
    """The 512 words of one tile into uint32 ``[512]``; seed is uint64, step and stream below 2^32."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    m0, m1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
    w0, w1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
    a, b, c, d = out[0:128], out[128:256], out[256:384], out[384:512]
    for lane in range(128):
        counter = np.uint64(number) * np.uint64(128) + np.uint64(lane)
        c0, c1 = counter & mask, counter >> shift
        c2, c3 = np.uint64(step), np.uint64(stream)
        k0, k1 = np.uint64(seed) & mask, np.uint64(seed) >> shift
        for _ in range(10):
            # Only the low halves of c0 .. c3 count; the high halves have remainders of products.
            p0, p1 = (c0 & mask) * m0, (c2 & mask) * m1
            c0, c2 = (p1 >> shift) ^ c1 ^ k0, (p0 >> shift) ^ c3 ^ k1
            c1, c3 = p1, p0
            k0, k1 = (k0 + w0) & mask, (k1 + w1) & mask
        a[lane], b[lane], c[lane], d[lane] = np.uint32(c0), np.uint32(c1), np.uint32(c2), np.uint32(c3)


@jit
def words(start: int, seed: Any, step: Any, stream: Any, out: Any) -> None:
    """Words of the elements from ``start`` on, into ``out`` (uint32 or int64)."""
    part = np.empty(512, np.uint32)
    at, count = 0, len(out)
    while at < count:
        inside = (start + at) % 512
        tile((start + at) // 512, seed, step, stream, part)
        size = min(512 - inside, count - at)
        to, source = out[at : at + size], part[inside : inside + size]
        for i in range(size):
            to[i] = source[i]
        at += size


@jit
def dither(start: int, seed: Any, step: Any, stream: Any, out: Any) -> None:
    """Uniform fp32 in [0, 1) for the elements from ``start`` on, as ``philox.uniform``. step: its upper 32 bits are the
    key's turn."""
    part, turn = np.empty(512, np.uint32), np.uint32(step >> 32)
    step &= 0xFFFFFFFF
    at, count = 0, len(out)
    while at < count:
        inside = (start + at) % 512
        tile((start + at) // 512, seed, step, stream, part)
        size = min(512 - inside, count - at)
        to, source = out[at : at + size], part[inside : inside + size]
        for i in range(size):
            turned = np.uint32((source[i] >> np.uint32(8)) + turn) & np.uint32(0xFFFFFF)
            to[i] = np.float32(np.int32(turned)) * np.float32(5.9604644775390625e-08)
        at += size


@jit
def below(seed: Any, step: Any, stream: Any, share: Any, out: Any) -> Any:
    """out: uint8, whether each element's uniform number, from element 0 on, is below ``share``. Returns their
    number."""
    u, total = np.empty(512, np.float32), np.int64(0)
    for start in range(0, len(out), 512):
        to, found = out[start : start + 512], np.int32(0)
        dither(start, seed, step, stream, u[: len(to)])
        for i in range(len(to)):
            flag = u[i] < share
            to[i] = flag
            found += np.int32(flag)
        total += np.int64(found)
    return total
