"""What a blob may claim: every decoder's sizes are checked here, once, before anything is allocated.

A stranger writes any shape and any parameters into a header. Sizes are multiplied as Python's whole numbers, which do
not wrap, and a claim is held against the bytes that came with it.
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
"""Elements for each byte of a blob that a reader takes who does not say how many make sense."""
_LEAST = 16
"""A body is longer than its declared length over this, whatever the values are (test_claims.py measures it)."""


def elements(shape: Sequence[int]) -> int:
    """How many elements a shape has. CodecError where its sizes other than 0 make more than MAX_ELEMENTS: of an empty
    tensor too, whose other sizes a tensor library still multiplies."""
    count = 1
    for size in shape:
        count *= max(size, 1)
        if count > MAX_ELEMENTS:
            raise CodecError(f"shape {tuple(shape)} is of more than {MAX_ELEMENTS} elements")
    return 0 if 0 in shape else count


def check(spec: Spec, shape: Sequence[int], length: int, body: int, limit: int | None) -> int:
    """The elements of a blob of ``length`` bytes with a body of ``body``. CodecError for more than ``limit`` (None:
    than a blob of this length may have without one), or more than the codec can have written in so few bytes."""
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
