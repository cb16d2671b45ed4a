"""Where a document, or a part of a long one, begins in its file."""

from __future__ import annotations

from typing import BinaryIO, NamedTuple

LENGTH = 1 << 20
"""Characters of a part at most: it ends at the last line's end among them, if there is one."""


Place = tuple[int, int, int]
"""Where a part begins in its file. Text: (byte, 0, 0). Others: what its document is found by, and the character in it:
(byte, line, character) of jsonl, (row group, row, character) of parquet, (byte, 0, character) of WebDataset. A byte of
a compressed file is one of what it unpacks to."""


START: Place = (0, 0, 0)


class Part(NamedTuple):
    """A text, or one of the parts of a long one, of which ``last`` ends the document. It is never empty."""

    place: Place
    text: str
    last: bool


def end_of_part(text: str, at: int) -> int:
    """Where the part ends that begins at ``at``."""
    if len(text) - at <= LENGTH:
        return len(text)
    end = text.rfind("\n", at, at + LENGTH) + 1
    return end if end > at else at + LENGTH


def skip(file: BinaryIO, offset: int) -> None:
    """Go to a byte of a file that is at its start; where its place cannot (HTTP without ranges), by reading."""
    try:
        file.seek(offset)
    except ValueError:
        while offset and (read := len(file.read(min(offset, LENGTH)))):
            offset -= read
