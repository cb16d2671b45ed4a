"""Whether an error is an allocator's refusal, of a device's memory or of main memory."""

from __future__ import annotations

import torch

_SAYS = ("out of memory", "can't allocate memory", "not enough memory", "STATUS_ALLOC_FAILED")
"""The last one is what libraries of CUDA say, for which torch has a plain RuntimeError; the two before it are what it
says of main memory."""


def is_out_of_memory(problem: BaseException | None) -> bool:
    """Whether an error, or the one that it names as its cause, is an allocator's refusal: what fails in a person's own
    code is named so. torch has a class of its own for devices' memory alone."""
    if isinstance(problem, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(problem, RuntimeError) and any(words in str(problem) for words in _SAYS):
        return True
    return problem is not None and is_out_of_memory(problem.__cause__)
