"""Calls of the compiled loops (see ``dispatch``) for EDEN."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...primitives.key import Key
from ..dispatch import _factor, _key, _loops, room

_NO_CELLS = np.empty(0, np.int32)


def _edges(levels: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(fp32 edges between rising levels, then infinity; int32, for each of equal cells, a number of edges that surely
    are below it)."""
    edges = ((levels[1:] + levels[:-1]) / 2).numpy()
    reach = float(edges[-1])
    count = 1 << 11
    starts = -reach + 2 * reach / count * (np.arange(count + 1) - 1e-3)  # a little lower, as the index is rounded
    below = np.searchsorted(edges, starts)
    beyond = np.searchsorted(edges, starts[1:] + 2e-3 * 2 * reach / count)
    assert (beyond - below[:-1] <= 1).all()
    return np.append(edges, np.float32(np.inf)), below[:-1].astype(np.int32)


def encode(
    rows: torch.Tensor, words: torch.Tensor, levels: torch.Tensor, packed: torch.Tensor, count: int, first: int,
    factors: torch.Tensor, kind: int,
) -> bool:  # fmt: skip
    """The fp32 factors of EDEN for fp32 ``[rows, 2^k]``; the codes are packed as elements ``first`` on of ``count``.
    kind: 0 unbiased, 1 least error, 2 the norm (TurboQuant). False: the torch code must be used."""
    bits = (len(levels) - 1).bit_length()
    edges, cells = _finder(levels, bits)
    numbers = words.numpy(), levels.numpy(), edges, cells, kind, bits, packed.numpy(), count, first, factors.numpy()
    return bool(_loops("turned.eden").encode(rows.numpy(), *numbers))


def _finder(levels: torch.Tensor, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """(edges, cells), as ``loops.turned.eden.quantized`` takes them."""
    return _edges(levels) if bits > 5 else (((levels[1:] + levels[:-1]) / 2).numpy(), _NO_CELLS)


def mixed(count: int, share: float, key: Key, stream: int) -> tuple[torch.Tensor, int]:
    """(uint8 flags of the elements whose uniform number is below ``share``, their number)."""
    flags = room(count, torch.uint8)
    found = _loops("random").below(*_key(key), stream, np.float32(share), flags.numpy())
    return flags, int(found)


def encode_mixed(
    rows: torch.Tensor, words: torch.Tensor, levels: tuple[torch.Tensor, torch.Tensor], flags: torch.Tensor,
    packed: torch.Tensor, extra: torch.Tensor, at: int, count: int, first: int, factors: torch.Tensor, kind: int,
) -> int:  # fmt: skip
    """As ``encode``; elements with ``flags`` use the second levels, with one bit more, which is written to uint8
    ``extra`` from ``at`` on. What ``at`` is then; -1 where the slow way is needed."""
    bits = (len(levels[0]) - 1).bit_length()
    few, more = (levels[0].numpy(), *_finder(levels[0], bits)), (levels[1].numpy(), *_finder(levels[1], bits + 1))
    out = flags.numpy(), packed.numpy(), extra.numpy(), at, count, first, factors.numpy()
    return int(_loops("turned.eden_mixed").encode_mixed(rows.numpy(), words.numpy(), *few, *more, kind, bits, *out))


def decode_mixed(
    packed: Any, extra: torch.Tensor, at: int, flags: torch.Tensor, words: torch.Tensor, levels: torch.Tensor,
    bits: int, count: int, first: int, factors: torch.Tensor, weight: float | None, out: torch.Tensor,
) -> int:  # fmt: skip
    """As ``decode``; levels: fp32 ``[512]``, from 256 on those of elements with ``flags``. Returns the new ``at``."""
    data = np.frombuffer(packed, np.uint8), extra.numpy(), at, flags.numpy(), words.numpy(), levels.numpy()
    numbers = bits, count, first, factors.numpy(), _factor(weight), weight is not None
    return int(_loops("turned.eden_mixed").decode_mixed(*data, *numbers, out.numpy()))


def decode(
    packed: Any, words: torch.Tensor, levels: torch.Tensor, count: int, first: int, factors: torch.Tensor,
    weight: float | None, out: torch.Tensor,
) -> None:  # fmt: skip
    """Codes of elements ``first`` on of ``count``, decoded into fp32 ``[rows, 2^k]``, or added to it with a weight."""
    bits, data = (len(levels) - 1).bit_length(), np.frombuffer(packed, np.uint8)
    numbers = words.numpy(), levels.numpy(), bits, count, first, factors.numpy()
    _loops("turned.eden").decode(data, *numbers, _factor(weight), weight is not None, out.numpy())


def encode_residual(
    rows: torch.Tensor, words: torch.Tensor, others: torch.Tensor, levels: torch.Tensor, packed: torch.Tensor,
    count: int, first: int, factors: torch.Tensor, signs: torch.Tensor, lengths: torch.Tensor, length: int,
) -> bool:  # fmt: skip
    """The fp32 factors and lengths of TurboQuant with its residual's signs, for fp32 ``[rows, 2^k]``; codes and signs
    are packed as elements ``first`` on of ``count``. One level, 0: no codes. length: of the
    elements in the rows. False: the torch code must be used."""
    bits = (len(levels) - 1).bit_length()
    edges, cells = _finder(levels, bits) if bits else (np.empty(0, np.float32), _NO_CELLS)
    numbers = levels.numpy(), edges, cells, bits, packed.numpy(), count, first, factors.numpy()
    loop = _loops("turned.residual").encode
    return bool(loop(rows.numpy(), words.numpy(), others.numpy(), *numbers, signs.numpy(), lengths.numpy(), length))


def decode_residual(
    packed: Any, signs: Any, words: torch.Tensor, others: torch.Tensor, levels: torch.Tensor, count: int, first: int,
    factors: torch.Tensor, lengths: torch.Tensor, weight: float | None, out: torch.Tensor,
) -> None:  # fmt: skip
    """The inverse of ``encode_residual``, as ``decode``."""
    data = np.frombuffer(packed, np.uint8), np.frombuffer(signs, np.uint8), words.numpy(), others.numpy()
    numbers = levels.numpy(), (len(levels) - 1).bit_length(), count, first, factors.numpy(), lengths.numpy()
    _loops("turned.residual").decode(*data, *numbers, _factor(weight), weight is not None, out.numpy())
