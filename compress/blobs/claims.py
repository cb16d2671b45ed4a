"""Checks the sizes that a blob's header claims, once for all decoders, before memory is allocated.

An attacker can write any shape and any parameters into a header. Sizes are multiplied as Python integers, which do not
overflow, and the number of elements is compared with the length of the blob.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ..errors import CodecError
from ..specs import registry
from ..specs.spec import Spec

MAX_ELEMENTS = 1 << 34
FEW = 1 << 20
"""Elements (4 MiB of fp32) that a blob of any length may claim."""
PER_BYTE = 1 << 16
"""Without a ``limit``, a blob may have FEW elements plus so many for each of its bytes."""
_LEAST = 16
"""A body is always longer than its declared length divided by this, whatever the values (test_claims.py measures
it)."""


def elements(shape: Sequence[int]) -> int:
    """How many elements a shape has. CodecError if the product of its nonzero sizes is above MAX_ELEMENTS, also for an
    empty tensor, because a tensor library still multiplies the other sizes."""
    count = 1
    for size in shape:
        count *= max(size, 1)
        if count > MAX_ELEMENTS:
            raise CodecError(f"shape {tuple(shape)} is of more than {MAX_ELEMENTS} elements")
    return 0 if 0 in shape else count


def check(spec: Spec, shape: Sequence[int], length: int, body: int, limit: int | None) -> int:
    """The number of elements of a blob of ``length`` bytes with a body of ``body`` bytes. CodecError for more than
    ``limit`` (None: FEW + PER_BYTE * length), or for more than the codec can have written in so few bytes."""
    count = elements(shape)
    if limit is None:
        if count > FEW + PER_BYTE * length:
            raise CodecError(
                f"the blob claims {count} elements in {length} bytes: give decode limit={count} if that can be right"
            )
    elif count > limit:
        raise CodecError(f"the blob claims shape {tuple(shape)}, more than {limit} elements")
    if count > FEW and 8 * _LEAST * body < _declared(spec, count):
        raise CodecError(f"the blob claims {count} elements, too many for its {body} bytes")
    return count


@lru_cache(maxsize=256)
def _declared(spec: Spec, count: int) -> float:
    return spec.declaration.bits(dict(spec.values), count)


registry.on_change(_declared.cache_clear)
