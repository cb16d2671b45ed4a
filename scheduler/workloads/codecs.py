"""What a codec costs on the wire: as its declaration says. The scheduler never runs one."""

from __future__ import annotations

from ...compress.errors import CodecError
from ...compress.specs.registry import module_of
from ...compress.specs.spec import bits_of as blob_bits
from ..errors import PlanError

SUMMED = frozenset({"powersgd", "global_qsgd", "thc", "intsgd", "randomk"})
"""Codecs whose rounds go in phases: in each phase the publishers add up encodings. They allow no other pattern."""
BLOCK = 65536
"""Elements that a round encodes together, unless the job says otherwise."""


def bits_of(spec: str, elements: int = BLOCK, plain: float = 32.0) -> float:
    """Bits on the wire for each of ``elements`` elements that are encoded together. ``plain``: what codec none takes.

    A codec from the job owner's own module counts as codec none, because its code is not run here. PlanError where
    there is no such codec.
    """
    if spec == "none" or module_of(spec):
        return plain
    try:
        return blob_bits(spec, elements) / elements
    except CodecError as error:
        raise PlanError(str(error)) from error
