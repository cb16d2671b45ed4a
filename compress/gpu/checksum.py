"""crc32 of bytes on a device, so that the host need not read them again.

A crc32 is linear: from a register of 0 it is the xor, over the words of a body, of M^(words from here to the end) times
the word, where M is the 32 x 32 bit matrix that advances the register by a word. The device combines words in columns
(one matrix per row), then columns, then blocks; the host advances the header's register over the body and adds (xor)
the result.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from . import dispatch as gpu

LEAST = 1 << 16
"""From so many bytes on, the two kernel launches pay."""
ROWS, COLUMNS = 32, 128
_POLYNOMIAL = 0xEDB88320


def _apply(matrix: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The matrix (uint32 ``[32]``: where each bit goes) times each of uint32 words."""
    out = np.zeros_like(words)
    for bit in range(32):
        out ^= np.where(words >> np.uint32(bit) & np.uint32(1), matrix[bit], np.uint32(0))
    return out


@lru_cache(maxsize=64)
def _doubled(times: int) -> Any:
    """The matrix that moves a register over 2^times bytes of zeros."""
    if times:
        half = _doubled(times - 1)
        return _apply(half, half)
    words = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for _ in range(8):
        words = np.where(words & np.uint32(1), words >> np.uint32(1) ^ np.uint32(_POLYNOMIAL), words >> np.uint32(1))
    return words


def _moved(words: np.ndarray, count: int) -> np.ndarray:
    """The registers ``words`` after ``count`` zero bytes."""
    for times in range(count.bit_length()):
        if count >> times & 1:
            words = _apply(_doubled(times), words)
    return words


def _matrix(count: int) -> np.ndarray:
    return _moved(np.uint32(1) << np.arange(32, dtype=np.uint32), count)


def joined(head: int, rest: int, count: int) -> int:
    """The crc32 of a body of ``count`` bytes whose ``rest`` a device computed, after bytes whose crc32 is ``head``."""
    register = _moved(np.array([head ^ 0xFFFFFFFF], np.uint32), count)
    return int(register[0]) ^ rest ^ 0xFFFFFFFF


@lru_cache(maxsize=16)
def _tables(device: torch.device, unit: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(The matrix of a row, those of the columns as ``[32, COLUMNS]``) where a word stands for ``unit`` bytes, and the
    last column is ``last`` units from the end."""
    columns = np.stack([_matrix(unit * (COLUMNS - 1 - column + last)) for column in range(COLUMNS)], 1)
    row, columns = _matrix(unit * COLUMNS).view(np.int32), np.ascontiguousarray(columns).view(np.int32)
    return torch.from_numpy(row.copy()).to(device), torch.from_numpy(columns.copy()).to(device)


def of_device(body: torch.Tensor, out: torch.Tensor) -> None:
    """Write the ``rest`` for ``joined`` into ``out`` (uint8 [4]). body: uint8, contiguous, a multiple of 4 long;
    leading zeros do not change the result."""
    from . import kernels_checksum

    words, kernel = body.view(torch.int32), kernels_checksum.crc_words
    blocks = -(-words.numel() // (ROWS * COLUMNS))
    partial = torch.empty(blocks, dtype=torch.int32, device=body.device)
    row, columns = _tables(body.device, 4, 1)
    gpu.launch(kernel, blocks, words, partial, row, columns, words.numel(), blocks, ROWS, COLUMNS=COLUMNS)
    row, columns = _tables(body.device, 4 * ROWS * COLUMNS, 0)
    rows = -(-blocks // COLUMNS)
    gpu.launch(kernel, 1, partial, out.view(torch.int32), row, columns, blocks, 1, rows, COLUMNS=COLUMNS)
