"""A vector in a file of a node's own disk, mapped into memory: the kernel keeps in main memory as much as there is.

The file has no name, so nothing remains of it, however the process ends; its blocks are taken before the vector is
used, because a disk that is full when a page is written back ends a process by a signal.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from ....proto.errors import FarflungError


def zeros_in(folder: Path, count: int, dtype: torch.dtype) -> Tensor:
    """A vector [count] of zeros in a file in ``folder``, which goes when the vector does.

    Raises:
        FarflungError: the disk has no room for it, or the folder is gone or can't be written.
    """
    if not count:
        return torch.zeros(0, dtype=dtype)
    size = count * dtype.itemsize
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            _take(file.fileno(), size)
            room = mmap.mmap(file.fileno(), size)
    except FileNotFoundError as problem:
        raise FarflungError(
            f"the folder for the optimiser's moments is gone: {folder}",
            "make it again (or mount its disk) and type the same line: farflung join --offload-folder DIR, or leave it "
            "out to use main memory",
        ) from problem
    except OSError as problem:
        raise FarflungError(
            f"the optimiser's moments take {size / 1e9:.3g} GB more in {folder}, which has "
            f"{_free(folder) / 1e9:.3g} GB free: {problem.strerror or problem}",
            "name a folder on a larger disk: farflung join --offload-folder DIR, or leave it out to use main memory",
        ) from problem
    return torch.frombuffer(room, dtype=dtype, count=count)


def _take(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:  # macOS
        os.ftruncate(file, size)


def _free(folder: Path) -> int:
    """Bytes that the folder's disk has free; 0 where nobody can say."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0
