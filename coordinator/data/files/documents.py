"""The documents of a file, one after the other: plain text, and the records of jsonl, parquet and WebDataset shards.

A file is read as a stream, from its start or from the place of a part that was read before. So memory holds one
document, or some MiB of plain text, never the whole corpus.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from .places import LENGTH, START, Part, Place, end_of_part, skip
from .records import BOM, jsonl, parquet, webdataset


def parts(kind: str, name: str, file: BinaryIO, field: str, start: Place = START) -> Iterator[Part]:
    """The documents of a file from a place on. JobError names the file and the expected format."""
    if kind == "text":
        yield from plain_text(file, start[0])
        return
    for one, two, text in _READERS[kind](name, file, field, start):
        at = start[2] if (one, two) == start[:2] else 0
        while at < len(text):
            end = end_of_part(text, at)
            yield Part((one, two, at), text[at:end], end == len(text))
            at = end


def plain_text(file: BinaryIO, offset: int) -> Iterator[Part]:
    """A text file as parts. Line endings become \\n; a byte order mark at the start is dropped."""
    enough = 4 * (LENGTH + 2)  # bytes that hold more than LENGTH characters
    skip(file, offset)
    held, ended = b"", False
    while True:
        while len(held) < enough and not ended:
            more = file.read(enough)
            held, ended = held + more, not more
            if not offset and len(held) >= len(BOM) and held.startswith(BOM):
                held, offset = held[len(BOM) :], len(BOM)
        raw = codecs.getincrementaldecoder("utf-8")().decode(held, final=ended)
        text = raw.replace("\r\n", "\n").replace("\r", "\n")
        end = end_of_part(text, 0)
        if text:
            yield Part((offset, 0, 0), text[:end], end == len(text))
        if end == len(text):
            return
        used = len(raw[: _before(raw, end)].encode())
        held, offset = held[used:], offset + used


def _before(raw: str, count: int) -> int:
    """The number of characters of ``raw`` that make ``count`` where \\r\\n counts as one."""
    end = count
    while (more := count + raw.count("\r\n", 0, end)) != end:
        end = more
    return end + 1 if raw[end - 1 : end + 1] == "\r\n" else end


_READERS: dict[str, Callable[[str, Any, str, Place], Iterator[tuple[int, int, str]]]] = {
    "jsonl": jsonl,
    "parquet": parquet,
    "webdataset": webdataset,
}
