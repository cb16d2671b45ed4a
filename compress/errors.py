"""The one error of this package."""

from __future__ import annotations


class CodecError(ValueError):
    """A spec that means nothing, a tensor that a codec refuses, or bytes that no encoder wrote."""
