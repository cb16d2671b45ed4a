"""Vectors as long as a stage.

On Linux they lie in huge pages: what passes over several of them at once (the optimiser, a round's sums) then waits
less for addresses. Other tensors don't gain by it, so it is asked for here and not for the whole process.
"""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

HUGE = 1 << 21
"""Bytes of a huge page."""


def zeros(count: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """A vector [count] of zeros."""
    size = count * dtype.itemsize
    if device.type != "cpu" or size < HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(count, dtype=dtype, device=device)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages: the memory is as good, and slower
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype)
