"""Every codec: its name, its number on the wire, its parameters and its traits. No torch here.

A new codec is one entry in the file of its family. The order of a codec's parameters and their defaults are part of its
wire format: add at the end, change nothing.
"""

from __future__ import annotations

from . import dithered, elementwise, fitted, rotated, sparse
from .declaration import Declaration

CODECS: dict[str, Declaration] = {
    one.name: one for family in (elementwise, dithered, rotated, sparse, fitted) for one in family.CODECS
}

__all__ = ["CODECS", "Declaration"]
