"""The one error of this package."""

from __future__ import annotations


class CodecError(ValueError):
    """An invalid spec, a tensor that a codec refuses, or bytes that no encoder writes."""
