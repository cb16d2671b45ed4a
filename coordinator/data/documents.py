"""The documents of a job, one after the other: text, jsonl, parquet, WebDataset shards, and files of tokens.

Every pattern may name any place that fsspec knows (``s3://bucket/*.jsonl``); a plain path is a local file. A file is
read as a stream, from its start or from the place of a part that was read before, so that memory holds one document, or
some MiB of a file of plain text, and never the corpus.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

import fsspec
import numpy as np
import numpy.typing as npt

from ...job.lfs import HINT, pointer_at
from ...job.patterns import as_glob
from ...proto.errors import JobError

_POINTER = range(1, 1024)  # bytes of a Git LFS pointer
_BOM = codecs.BOM_UTF8
_ENOUGH = 1000  # tokens that tell what a file holds

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


class Source(NamedTuple):
    """A file: ``size`` in bytes if its place knows it, ``stamp``: what tells it from another of that name (its times,
    etags, digests there), empty where its place tells nothing of the kind."""

    name: str
    size: int | None
    stamp: str


def text_files(kind: str, patterns: Iterable[str]) -> tuple[Source, ...]:
    """The files of a ``kind`` (a key of ``[data]``), in the order of the patterns, then of the names. JobError as
    `token_parts`."""
    return tuple(_names(kind, patterns))


def parts(kind: str, name: str, file: BinaryIO, field: str, start: Place = START) -> Iterator[Part]:
    """The documents of a file from one of its places on. JobError names the file, and what it should have been."""
    if kind == "text":
        yield from _text(file, start[0])
        return
    for one, two, text in _READERS[kind](name, file, field, start):
        at = start[2] if (one, two) == start[:2] else 0
        while at < len(text):
            end = _end(text, at)
            yield Part((one, two, at), text[at:end], end == len(text))
            at = end


def _end(text: str, at: int) -> int:
    """Where the part ends that begins at ``at``."""
    if len(text) - at <= LENGTH:
        return len(text)
    end = text.rfind("\n", at, at + LENGTH) + 1
    return end if end > at else at + LENGTH


@dataclass(frozen=True)
class TokenPart:
    """A file of tokens: ``tokens`` of a numpy ``dtype`` from byte ``start`` to its end, ``size`` bytes in all."""

    name: str
    dtype: str
    start: int
    tokens: int
    size: int


def token_parts(patterns: Iterable[str], kind: str = "<u2") -> Iterator[TokenPart]:
    """The files of ``data.tokens``, of which no more than a header is read; ``kind``: what tokens are where no header
    says it. JobError: half a token, an array of something else, no file."""
    for name, *_ in _names("tokens", patterns):
        with opened(name) as file:
            dtype, count = _header(name, file, kind)
            start = file.tell()
            size = file.seek(0, io.SEEK_END)
        if count is not None and count * dtype.itemsize != size - start:
            there = (size - start) // dtype.itemsize
            raise JobError(f"data: the header of {name} says {count} tokens, and {there} are there", "copy it again")
        if (size - start) % dtype.itemsize:
            raise JobError(f"data: {name} ends in half a token", f"a token has {dtype.itemsize} bytes there")
        yield TokenPart(name, dtype.str, start, (size - start) // dtype.itemsize, size)


def _header(name: str, file: BinaryIO, without: str) -> tuple[np.dtype[Any], int | None]:
    """What the tokens of a file are, and how many its header says; they are next."""
    start = file.read(_LLM_C[0])
    if name.endswith(".npy") or start.startswith(np.lib.format.MAGIC_PREFIX):
        file.seek(0)
        return _dtype(name, file), None
    kind = _LLM_C[1].get((int.from_bytes(start[:4], "little"), int.from_bytes(start[4:8], "little")))
    if kind and len(start) == _LLM_C[0]:
        return np.dtype(kind), int.from_bytes(start[8:12], "little")
    file.seek(0)
    if name.endswith(".bin") and (found := _megatron(name.removesuffix(".bin") + ".idx")):
        return found
    return np.dtype(_datatrove(name) or without), None


def _megatron(index: str) -> tuple[np.dtype[Any], int] | None:
    """What Megatron's index beside a file says its tokens are, and how many there are; None without an index."""
    if not _is_there(index):
        return None
    with opened(index) as file:
        start = file.read(34)
        magic, version, code = start[:9], int.from_bytes(start[9:17], "little"), start[17] if len(start) == 34 else 0
        rows = int.from_bytes(start[18:26], "little")
        if magic != b"MMIDIDX\0\0" or version != 1 or code not in _MEGATRON:
            hint = "convert it with Megatron's preprocess_data, or write the tokens with numpy.save as *.npy"
            raise JobError(f"data: {index} is no index of Megatron that is known here", hint)
        if not rows:
            return np.dtype(_MEGATRON[code]), 0
        file.seek(34 + 4 * (rows - 1))
        last = int.from_bytes(file.read(4), "little")
        file.seek(34 + 4 * rows + 8 * (rows - 1))
        pointer = int.from_bytes(file.read(8), "little")
    kind = np.dtype(_MEGATRON[code])
    return kind, pointer // kind.itemsize + last


_MEGATRON = {1: "<u1", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Megatron's codes of what a token is."""


def _datatrove(name: str) -> str | None:
    """What the line that datatrove (and so nanotron) writes beside a file says its tokens are; None without one."""
    if not name.endswith(".ds") or not _is_there(f"{name}.metadata"):
        return None
    with opened(f"{name}.metadata") as file:
        size = file.readline(1000).decode(errors="replace").strip().rpartition("|")[2]
    if size not in ("2", "4"):
        raise JobError(f"data: {name}.metadata does not say that a token has 2 or 4 bytes", "its first line: NAME|2")
    return f"<u{size}"


def _is_there(name: str) -> bool:
    system, path = fsspec.url_to_fs(name)
    return bool(system.exists(path))


_LLM_C = (1024, {(20240520, 1): "<u2", (20240801, 7): "<u4"})
"""llm.c's files, and those of who took its format: a header of 256 int32 (magic, version, tokens), then the tokens."""


def check_tokens(name: str, tokens: npt.NDArray[Any], vocabulary: int) -> None:
    """JobError for a token that the tokenizer does not have, and for uint32 where uint16 is read: every second token
    is then the upper half of one, 0 for every vocabulary of uint16."""
    if tokens.dtype.kind == "i" and int(tokens.min(initial=0)) < 0:
        raise JobError(f"data: {name} has the token {int(tokens.min())}: below 0", "its index may be of another file")
    if int(tokens.max(initial=0)) >= vocabulary:
        raise JobError(
            f"data: {name} has the token {int(tokens.max())}, but data.tokenizer has only {vocabulary}",
            "set data.tokenizer to the folder that the tokens were made with; if they are not little-endian uint16, as "
            "a .bin is, or uint32 with a tokenizer of more than 65,536, say so in data.token_type",
        )
    if tokens.dtype.itemsize == 2 and len(tokens) >= _ENOUGH:
        lower, upper = sorted((int(tokens[::2].max()), int(tokens[1::2].max())), reverse=True)
        if upper <= (vocabulary - 1) >> 16 < lower:
            raise JobError(
                f"data: {name} has nothing above {upper} in every second token: these seem to be uint32, not uint16",
                'write token_type = "uint32" under [data]',
            )


def _dtype(name: str, file: BinaryIO) -> np.dtype[Any]:
    """Reads the header of a .npy file; its values are next. Nothing is ever unpickled: such arrays are refused."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except ValueError as error:
        raise JobError(f"data: {name}: {error}") from None
    if len(shape) != 1 or dtype.kind != "u":
        raise JobError(f"data: {name} holds {dtype} {shape}", "data.tokens wants one row of uint16 or uint32")
    return dtype


_STAMPS = {
    *("mtime", "created", "modified", "last_modified", "lastmodified", "last-modified", "updated", "timecreated"),
    *("etag", "checksum", "md5", "md5hash", "content_md5", "contentmd5", "crc32c", "generation", "versionid"),
}
"""What the places that fsspec knows call the times, etags and digests of a file, in small letters."""


def _stamp(entry: dict[str, Any]) -> str:
    found = {name.lower(): value for name, value in entry.items() if name.lower() in _STAMPS and value is not None}
    return " ".join(f"{name}={found[name]}" for name in sorted(found))


def _names(kind: str, patterns: Iterable[str]) -> Iterator[Source]:
    """The files with their full names, each pattern's sorted. JobError: a pattern of no file, a place that
    cannot be asked."""
    for pattern in patterns:
        try:
            system, path = fsspec.url_to_fs(pattern)
            found = system.glob(as_glob(path), detail=True)
        except ImportError as error:
            raise JobError(f"data.{kind}: {pattern}: {error}", "install the package that it names") from None
        except (OSError, ValueError) as error:
            raise JobError(f"data.{kind}: {pattern}: {error}") from None
        names = sorted(name for name, entry in found.items() if entry["type"] != "directory")
        if not names:
            raise JobError(f"data.{kind}: there is no file {pattern}")
        for name in names:
            if "://" not in pattern and (found[name].get("size") or 0) in _POINTER and pointer_at(Path(name)):
                raise JobError(f"data.{kind}: {name} is a Git LFS pointer, not the file itself", HINT)
            if name.endswith((".zst", ".zstd")) and "zstd" not in fsspec.available_compressions():
                raise JobError(f"data.{kind}: {name} needs the package zstandard", "pip install zstandard")
            full = system.unstrip_protocol(name) if "://" in pattern else name
            yield Source(full, found[name].get("size"), _stamp(found[name]))


@contextlib.contextmanager
def opened(name: str, compression: str | None = None) -> Iterator[BinaryIO]:
    """A file to read. JobError: it cannot be read, or is no text where its lines are taken for such."""
    try:
        with fsspec.open(name, "rb", compression=compression) as file:
            yield file
    except UnicodeError as error:
        raise JobError(f"data: cannot read {name}: {error}", "text must be UTF-8") from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise JobError(f"data: cannot read {name}: {error}") from None


def compression_of(name: str) -> str:
    """What fsspec unpacks a file of text, lines or members with: by its name."""
    return "gzip" if name.endswith(".tgz") else "infer"


def _text(file: BinaryIO, offset: int) -> Iterator[Part]:
    """Any line ending is read as \\n; a byte order mark at the start is none of the text."""
    enough = 4 * (LENGTH + 2)  # bytes that hold more than LENGTH characters
    _skip(file, offset)
    held, ended = b"", False
    while True:
        while len(held) < enough and not ended:
            more = file.read(enough)
            held, ended = held + more, not more
            if not offset and len(held) >= len(_BOM) and held.startswith(_BOM):
                held, offset = held[len(_BOM) :], len(_BOM)
        raw = codecs.getincrementaldecoder("utf-8")().decode(held, final=ended)
        text = raw.replace("\r\n", "\n").replace("\r", "\n")
        end = _end(text, 0)
        if text:
            yield Part((offset, 0, 0), text[:end], end == len(text))
        if end == len(text):
            return
        used = len(raw[: _before(raw, end)].encode())
        held, offset = held[used:], offset + used


def _skip(file: BinaryIO, offset: int) -> None:
    """Go to a byte of a file that is at its start; where its place cannot (HTTP without ranges), by reading."""
    try:
        file.seek(offset)
    except ValueError:
        while offset and (read := len(file.read(min(offset, LENGTH)))):
            offset -= read


def _before(raw: str, count: int) -> int:
    """How many characters of ``raw`` are ``count`` where \\r\\n counts as one."""
    end = count
    while (more := count + raw.count("\r\n", 0, end)) != end:
        end = more
    return end + 1 if raw[end - 1 : end + 1] == "\r\n" else end


def _jsonl(name: str, file: BinaryIO, field: str, start: Place) -> Iterator[tuple[int, int, str]]:
    offset, first, _ = start
    _skip(file, offset)
    for number, line in enumerate(file, first):
        text = line.removeprefix(_BOM) if not offset else line
        if text.strip():
            yield offset, number, _field(f"{name}:{number + 1}", text, field)
        offset += len(line)


def _field(where: str, line: str | bytes, field: str) -> str:
    try:
        item = json.loads(line)
    except ValueError as error:
        raise JobError(f"{where}: not JSON: {error}", "one JSON object is wanted here") from None
    value = item.get(field) if isinstance(item, dict) else None
    if isinstance(item, dict) and field in item and not isinstance(value, str):
        raise _no_text(f"{where}: {field!r}", value)
    if not isinstance(value, str):
        keys = ", ".join(item) if isinstance(item, dict) else "no object"
        raise JobError(f"{where}: no text under {field!r}; it has: {keys}", "set data.field to one of them")
    return whole_text(value)


def _no_text(where: str, value: Any) -> JobError:
    """The error of a field that is there and holds something else."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return JobError(
            f"{where} holds a list of messages, not text",
            "write chat = [...] under [data] in place of this key (docs/how-to/chat.md)",
        )
    kind = "nothing (null)" if value is None else type(value).__name__
    return JobError(f"{where} holds {kind}, not text", "leave such rows out, or set data.field to another")


def whole_text(text: str) -> str:
    """The text, with U+FFFD for halves of a surrogate pair, which JSON may have and UTF-8 has not."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _parquet(name: str, file: BinaryIO, field: str, start: Place) -> Iterator[tuple[int, int, str]]:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise JobError("data.parquet needs the package pyarrow", "pip install 'farflung[parquet]'") from None
    try:
        table = ParquetFile(file)
        columns = table.schema_arrow.names
        if field not in columns:
            keys = ", ".join(columns)
            raise JobError(f"{name}: no column {field!r}; it has: {keys}", "set data.field to one of them")
        for group in range(start[0], table.num_row_groups):
            before = sum(table.metadata.row_group(one).num_rows for one in range(group))
            row, skipped = 0, start[1] if group == start[0] else 0
            for batch in table.iter_batches(columns=[field], batch_size=1024, row_groups=[group]):
                begin = min(max(skipped - row, 0), len(batch))
                for number, value in enumerate(batch.column(0).slice(begin).to_pylist(), row + begin):
                    if not isinstance(value, str):
                        where = f"{name}: row {before + number + 1} (row group {group})"
                        raise _no_text(f"{where}: column {field!r}", value)
                    yield group, number, value
                row += len(batch)
    except ArrowInvalid as error:
        raise JobError(f"{name}: not parquet: {error}") from None


def _webdataset(name: str, file: BinaryIO, field: str, start: Place) -> Iterator[tuple[int, int, str]]:
    """The members ``*.txt``, and the texts under ``field`` in the members ``*.json``; others belong to other fields."""
    try:
        _skip(file, start[0])
        with tarfile.open(fileobj=file, mode="r|") as shard:
            for member in shard:
                kind = PurePosixPath(member.name).suffix
                content = shard.extractfile(member) if member.isfile() and kind in (".txt", ".json") else None
                if content is None:
                    continue
                raw = content.read()
                text = raw.decode() if kind == ".txt" else _field(f"{name}: {member.name}", raw, field)
                yield start[0] + member.offset, 0, text
    except tarfile.TarError as error:
        hint = "data.webdataset wants shards as *.tar, or compressed as *.tar.gz, *.tgz, *.tar.bz2 or *.tar.xz"
        raise JobError(f"{name}: not a tar file: {error}", hint) from None


_READERS: dict[str, Callable[[str, Any, str, Place], Iterator[tuple[int, int, str]]]] = {
    "jsonl": _jsonl,
    "parquet": _parquet,
    "webdataset": _webdataset,
}
