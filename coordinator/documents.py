"""The documents of a job, one after the other: text, jsonl, parquet, WebDataset shards, and files of tokens.

Every pattern may name any place that fsspec knows (``s3://bucket/*.jsonl``); a plain path is a local file. A file is
read as a stream, so that memory holds one document, or one file of plain text, and never the corpus.
"""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import fsspec
import numpy as np
import numpy.typing as npt

from ..proto.errors import JobError

_TOKENS_AT_ONCE = 1 << 22
_ENOUGH = 1000  # tokens that tell what a file holds


def documents(kind: str, patterns: Iterable[str], field: str) -> Iterator[str]:
    """The texts of files of a ``kind`` (a key of ``[data]``), in the order of the patterns, then of the names.

    JobError names the file that can't be read, and what it should have been.
    """
    read = _READERS[kind]
    for name in _names(kind, patterns):
        with _opened(name) as file:
            yield from read(name, file, field)


def token_arrays(patterns: Iterable[str], vocabulary: int) -> Iterator[npt.NDArray[Any]]:
    """The tokens of ``data.tokens``: files of little-endian uint16, as nanoGPT's prepare.py writes them, or *.npy.

    JobError: half a token, one that the tokenizer does not have, or an array of something else.
    """
    for name in _names("tokens", patterns):
        with _opened(name) as file:
            dtype = _dtype(name, file) if name.endswith(".npy") else np.dtype("<u2")
            while raw := file.read(dtype.itemsize * _TOKENS_AT_ONCE):
                if len(raw) % dtype.itemsize:
                    raise JobError(f"data: {name} ends in half a token", f"a token has {dtype.itemsize} bytes there")
                tokens = np.frombuffer(raw, dtype)
                check_tokens(name, tokens, vocabulary)
                yield tokens


@dataclass(frozen=True)
class TokenPart:
    """A file of tokens: ``tokens`` of a numpy ``dtype`` from byte ``start`` to its end, ``size`` bytes in all."""

    name: str
    dtype: str
    start: int
    tokens: int
    size: int


def token_parts(patterns: Iterable[str]) -> Iterator[TokenPart]:
    """The files of ``data.tokens``, of which no more than a header is read. JobError as `token_arrays`."""
    for name in _names("tokens", patterns):
        with _opened(name) as file:
            dtype = _dtype(name, file) if name.endswith(".npy") else np.dtype("<u2")
            start = file.tell()
            size = file.seek(0, io.SEEK_END)
        if (size - start) % dtype.itemsize:
            raise JobError(f"data: {name} ends in half a token", f"a token has {dtype.itemsize} bytes there")
        yield TokenPart(name, dtype.str, start, (size - start) // dtype.itemsize, size)


def check_tokens(name: str, tokens: npt.NDArray[Any], vocabulary: int) -> None:
    """JobError for a token that the tokenizer does not have, and for uint32 where uint16 is read: every second token
    is then the upper half of one, 0 for every vocabulary of uint16."""
    if int(tokens.max(initial=0)) >= vocabulary:
        raise JobError(
            f"data: {name} has the token {int(tokens.max())}, but data.tokenizer has only {vocabulary}",
            "set data.tokenizer to the folder that the tokens were made with; if they are not little-endian uint16, as "
            "a .bin must be, write them with numpy.save as *.npy of uint16 or uint32",
        )
    if tokens.dtype.itemsize == 2 and len(tokens) >= _ENOUGH:
        lower, upper = sorted((int(tokens[::2].max()), int(tokens[1::2].max())), reverse=True)
        if upper <= (vocabulary - 1) >> 16 < lower:
            raise JobError(
                f"data: {name} has nothing above {upper} in every second token: these seem to be uint32, not uint16",
                "write them with numpy.save as *.npy of uint32, or as uint16",
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


def _names(kind: str, patterns: Iterable[str]) -> Iterator[str]:
    """Full names of the files, each pattern's sorted. JobError: a pattern of no file, a place that cannot be asked."""
    for pattern in patterns:
        try:
            system, path = fsspec.url_to_fs(pattern)
            found = system.glob(path, detail=True)
        except ImportError as error:
            raise JobError(f"data.{kind}: {pattern}: {error}", "install the package that it names") from None
        except (OSError, ValueError) as error:
            raise JobError(f"data.{kind}: {pattern}: {error}") from None
        names = sorted(name for name, entry in found.items() if entry["type"] != "directory")
        if not names:
            raise JobError(f"data.{kind}: there is no file {pattern}")
        yield from map(system.unstrip_protocol, names) if "://" in pattern else names


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    try:
        with fsspec.open(name, "rb") as file:
            yield file
    except UnicodeDecodeError as error:
        raise JobError(f"data: cannot read {name}: {error}", "text must be UTF-8") from None
    except OSError as error:
        raise JobError(f"data: cannot read {name}: {error}") from None


def _text(_: str, file: BinaryIO, __: str) -> Iterator[str]:
    yield io.TextIOWrapper(io.BytesIO(file.read()), encoding="utf-8").read()  # any line ending is \n


def _jsonl(name: str, file: BinaryIO, field: str) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        if line.strip():
            yield _field(f"{name}:{number}", line, field)


def _field(where: str, line: str | bytes, field: str) -> str:
    try:
        item = json.loads(line)
    except ValueError as error:
        raise JobError(f"{where}: not JSON: {error}", "one JSON object is wanted here") from None
    value = item.get(field) if isinstance(item, dict) else None
    if not isinstance(value, str):
        keys = ", ".join(item) if isinstance(item, dict) else "no object"
        raise JobError(f"{where}: no text under {field!r}; it has: {keys}", "set data.field to one of them")
    return value


def _parquet(name: str, file: BinaryIO, field: str) -> Iterator[str]:
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
        for batch in table.iter_batches(columns=[field], batch_size=1024):
            for value in batch.column(0).to_pylist():
                if not isinstance(value, str):
                    raise JobError(f"{name}: column {field!r} holds {type(value).__name__}, not text", "name another")
                yield value
    except ArrowInvalid as error:
        raise JobError(f"{name}: not parquet: {error}") from None


def _webdataset(name: str, file: BinaryIO, field: str) -> Iterator[str]:
    """The members ``*.txt``, and the texts under ``field`` in the members ``*.json``; others belong to other fields."""
    try:
        with tarfile.open(fileobj=file, mode="r|*") as shard:
            for member in shard:
                kind = PurePosixPath(member.name).suffix
                content = shard.extractfile(member) if member.isfile() and kind in (".txt", ".json") else None
                if content is None:
                    continue
                raw = content.read()
                yield raw.decode() if kind == ".txt" else _field(f"{name}: {member.name}", raw, field)
    except tarfile.TarError as error:
        raise JobError(f"{name}: not a tar file: {error}", "data.webdataset wants shards as *.tar") from None


_READERS: dict[str, Callable[[str, Any, str], Iterator[str]]] = {
    "text": _text,
    "jsonl": _jsonl,
    "parquet": _parquet,
    "webdataset": _webdataset,
}
