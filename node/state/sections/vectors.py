"""Allocates vectors of a stage's length.

On Linux they lie in huge pages: loops over several of them at once (the optimiser, a round's sums) then have fewer TLB
misses. Other tensors don't gain by it, so huge pages are requested here and not for the whole process.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap

import torch
from torch import Tensor

HUGE = 1 << 21
"""Bytes of a huge page."""


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
