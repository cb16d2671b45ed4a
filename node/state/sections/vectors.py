"""Allocates vectors of a stage's length.

On Linux they lie in huge pages: loops over several of them at once (the optimiser, a round's sums) then have fewer TLB
misses. Other tensors don't gain by it, so huge pages are requested here and not for the whole process.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from .... import compress

HUGE = 1 << 21
"""Bytes of a huge page."""
PIECE = 1 << 24
"""Elements of a vector of a stage's length that are worked on at once where another such vector must not be made."""


def zeros(count: int, device: torch.device, dtype: torch.dtype = torch.float32, *, pinned: bool = False) -> Tensor:
    """A vector [count] of zeros. ``pinned``: in main memory, from where a GPU copies it while the host does something
    else."""
    if pinned:
        return torch.zeros(count, dtype=dtype, pin_memory=True)
    made = torch.empty(count, dtype=dtype, device=device)
    if device.type == "cpu" and made.nbytes >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        start = -(-made.data_ptr() // HUGE) * HUGE
        length = (made.data_ptr() + made.nbytes - start) // HUGE * HUGE
        with contextlib.suppress(OSError, AttributeError):  # another libc or an old kernel: works without
            ctypes.CDLL("libc.so.6").madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)
    return made.zero_()  # only now: pages that have been touched do not become huge


def squared_norm_of_sum(vectors: Sequence[Tensor], factors: Sequence[float] = ()) -> float:
    """The squared norm, added up in fp64, of the sum of vectors, fp32 [n] each, times their ``factors`` (none: 1). It
    goes piece by piece: a whole vector in fp64 would be two more of the stage's length, its squares two more again."""
    found = []
    terms = list(zip(vectors, factors or (1.0,) * len(vectors), strict=True))
    for start in range(0, vectors[0].numel() if vectors else 0, PIECE):
        whole: Tensor | None = None
        for vector, factor in terms:
            piece = vector[start : start + PIECE]
            piece = piece.to(compress.home(piece.device)).double().mul_(factor)
            whole = piece if whole is None else whole.add_(piece)
        assert whole is not None
        found.append(float(whole.square_().sum()))
    return math.fsum(found)
