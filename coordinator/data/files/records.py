"""Documents that are records of a file: lines of jsonl, rows of parquet, members of a WebDataset shard."""

from __future__ import annotations

import codecs
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from ....proto.errors import JobError
from .arrow import batches, is_arrow
from .places import Place, skip

BOM = codecs.BOM_UTF8


def jsonl(name: str, file: BinaryIO, field: str, start: Place) -> Iterator[tuple[int, int, str]]:
    offset, first, _ = start
    skip(file, offset)
    for number, line in enumerate(file, first):
        text = line.removeprefix(BOM) if not offset else line
        if text.strip():
            yield offset, number, field_of(f"{name}:{number + 1}", text, field)
        offset += len(line)


def field_of(where: str, line: str | bytes, field: str) -> str:
    try:
        item = json.loads(line, object_pairs_hook=once(where))
    except RecursionError:
        raise JobError(f"{where}: lists in lists, too deep for a row", "one JSON object is wanted here") from None
    except ValueError as error:
        raise JobError(f"{where}: not JSON: {error}", "one JSON object is wanted here") from None
    value = item.get(field) if isinstance(item, dict) else None
    if isinstance(item, dict) and field in item and not isinstance(value, str):
        raise no_text(f"{where}: {field!r}", value)
    if not isinstance(value, str):
        keys = ", ".join(item) if isinstance(item, dict) else "no object"
        raise JobError(f"{where}: no text under {field!r}; it has: {keys}", "set data.field to one of them")
    return whole_text(value)


def once(where: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """A hook of ``json.loads``: an object as a dictionary. JobError: a key is there twice, and which of its values is
    meant nobody can know."""

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            unique([name for name, _ in pairs], where, "key")
        return found

    return made


def unique(names: Sequence[str], where: str, kind: str = "column") -> None:
    """JobError for the first name that is there twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise JobError(f"{where}: the {kind} {name!r} is there twice", "rename one of them, or leave it out")
        seen.add(name)


def no_text(where: str, value: Any) -> JobError:
    """The error for a field that exists but holds no text."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return JobError(
            f"{where} holds a list of messages, not text",
            "write chat = [...] under [data] in place of this key (docs/how-to/chat.md)",
        )
    kind = "nothing (null)" if value is None else type(value).__name__
    return JobError(f"{where} holds {kind}, not text", "leave such rows out, or set data.field to another")


def whole_text(text: str) -> str:
    """The text with U+FFFD in place of unpaired surrogates, which JSON allows and UTF-8 does not."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _arrow(name: str, file: BinaryIO, field: str, start: Place) -> Iterator[tuple[int, int, str]]:
    for group, batch in enumerate(batches(name, file, "parquet")):
        if field not in batch.schema.names:
            keys = ", ".join(batch.schema.names)
            raise JobError(f"{name}: no column {field!r}; it has: {keys}", "set data.field to one of them")
        unique([one for one in batch.schema.names if one == field], name)
        begin = start[1] if group == start[0] else 0 if group > start[0] else len(batch)
        for number, value in enumerate(batch.column(field).slice(begin).to_pylist(), begin):
            if not isinstance(value, str):
                raise no_text(f"{name}: row {number + 1} of batch {group}: column {field!r}", value)
            yield group, number, value


def parquet(name: str, file: BinaryIO, field: str, start: Place) -> Iterator[tuple[int, int, str]]:
    """The rows of a parquet file; of an Arrow file too, recognised by its first bytes."""
    begins = file.read(8)
    file.seek(0)
    if is_arrow(begins):
        yield from _arrow(name, file, field, start)
        return
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
        unique([one for one in columns if one == field], name)
        for group in range(start[0], table.num_row_groups):
            before = sum(table.metadata.row_group(one).num_rows for one in range(group))
            row, skipped = 0, start[1] if group == start[0] else 0
            for batch in table.iter_batches(columns=[field], batch_size=1024, row_groups=[group]):
                begin = min(max(skipped - row, 0), len(batch))
                for number, value in enumerate(batch.column(0).slice(begin).to_pylist(), row + begin):
                    if not isinstance(value, str):
                        where = f"{name}: row {before + number + 1} (row group {group})"
                        raise no_text(f"{where}: column {field!r}", value)
                    yield group, number, value
                row += len(batch)
    except ArrowInvalid as error:
        raise JobError(f"{name}: not parquet: {error}") from None


def webdataset(name: str, file: BinaryIO, field: str, start: Place) -> Iterator[tuple[int, int, str]]:
    """The members ``*.txt``, and the texts under ``field`` in the members ``*.json``; all other members are ignored."""
    try:
        skip(file, start[0])
        with tarfile.open(fileobj=file, mode="r|") as shard:
            for member in shard:
                kind = PurePosixPath(member.name).suffix
                content = shard.extractfile(member) if member.isfile() and kind in (".txt", ".json") else None
                if content is None:
                    continue
                raw = content.read()
                text = raw.decode() if kind == ".txt" else field_of(f"{name}: {member.name}", raw, field)
                yield start[0] + member.offset, 0, text
    except tarfile.TarError as error:
        hint = "data.webdataset wants shards as *.tar, or compressed as *.tar.gz, *.tgz, *.tar.bz2 or *.tar.xz"
        raise JobError(f"{name}: not a tar file: {error}", hint) from None
