"""Where a document, or a part of a long one, begins in its file."""

from __future__ import annotations

from typing import BinaryIO, NamedTuple

LENGTH = 1 << 20
"""Most characters of a part. It ends at the last line end within this length, if there is one."""


Place = tuple[int, int, int]
"""Where a part begins in its file, three numbers. Text: (byte, 0, 0). jsonl: (byte, line, character in the document).
parquet: (row group, row, character). WebDataset: (byte, 0, character). In a compressed file, bytes are counted after
decompression."""


START: Place = (0, 0, 0)


class Part(NamedTuple):
    """A document's text, or one part of a long one; ``last``: it ends the document. Never empty."""

    place: Place
    text: str
    last: bool


def end_of_part(text: str, at: int) -> int:
    """The index of the character at which the part that begins at ``at`` ends."""
    if len(text) - at <= LENGTH:
        return len(text)
    end = text.rfind("\n", at, at + LENGTH) + 1
    return end if end > at else at + LENGTH


def skip(file: BinaryIO, offset: int) -> None:
    """Move a file from its start to a byte; by reading, where the storage can't seek (HTTP without ranges)."""
    try:
        file.seek(offset)
    except ValueError:
        while offset and (read := len(file.read(min(offset, LENGTH)))):
            offset -= read
