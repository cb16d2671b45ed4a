"""Rows of files that are tables: lines of JSON, one JSON list, csv and tsv with a first line of names, parquet,
arrow."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from ....proto.errors import JobError
from .arrow import batches, is_arrow
from .records import once, unique

_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zstd")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def rows_of(
    name: str, file: BinaryIO, key: str, forms: str, columns: Sequence[str] | None = None
) -> Iterator[tuple[str, Any]]:
    """(file and line, row) one after the other. The file's content decides its format; csv and tsv are known by the
    name.

    Args:
        key: the job's key of ``[data]`` that names the file, for messages.
        forms: which rows are expected, the hint of error messages.
        columns: the columns of parquet that are read; None: all.

    Raises:
        JobError: with file and line.
    """
    start = file.read(8)
    file.seek(0)
    if start.startswith(b"PAR1"):
        yield from _parquet(name, file, key, forms, columns)
    elif is_arrow(start):
        number = 0
        for batch in batches(name, file, key):
            unique(batch.schema.names, name)
            for row in batch.to_pylist():
                number += 1
                yield f"{name}: row {number}", row
    elif delimiter := _DELIMITERS.get(_kind(name)):
        yield from _csv(name, file, delimiter)
    elif start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        for number, row in enumerate(_json(name, file.read(), forms), 1):
            yield f"{name}: row {number}", row
    else:
        for number, line in enumerate(file, 1):
            if (text := line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip():
                yield f"{name}:{number}", _json(f"{name}:{number}", text, forms)


def _kind(name: str) -> str:
    path = PurePosixPath(name.lower())
    return PurePosixPath(path.stem).suffix if path.suffix in _PACKED else path.suffix


def _json(where: str, text: bytes, forms: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=once(where))
    except RecursionError:
        raise JobError(f"{where}: lists in lists, too deep for a row", forms) from None
    except ValueError as error:
        raise JobError(f"{where}: not JSON: {error}", "one JSON object is wanted here") from None


def _csv(name: str, file: BinaryIO, delimiter: str) -> Iterator[tuple[str, Any]]:
    text = io.TextIOWrapper(file, "utf-8-sig", newline="")
    # Strict: a quote that is never closed would take the rows behind it into one text.
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    begin = 1
    try:
        names = next(reader, [])
        unique([one for one in names if one], f"{name}:1")
        begin = reader.line_num + 1
        for row in reader:
            begin = reader.line_num + 1
            if len(row) > len(names):
                what = f"{len(row)} values where the first line names {len(names)}"
                raise JobError(f"{name}:{reader.line_num}: {what}", "values with a comma or a quote are quoted")
            if row:
                yield f"{name}:{reader.line_num}", dict(zip(names, row, strict=False))
    except csv.Error as error:
        raise JobError(
            f"{name}:{begin}: not csv: {error}",
            'a value that begins with a quote ends with one, and "" is a quote inside of it; jsonl has longer values',
        ) from None
    finally:
        text.detach()  # whoever opened the file closes it


def _parquet(
    name: str, file: BinaryIO, key: str, forms: str, columns: Sequence[str] | None
) -> Iterator[tuple[str, Any]]:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise JobError(f"data.{key}: parquet needs the package pyarrow", "pip install 'farflung[parquet]'") from None
    try:
        table = ParquetFile(file)
        wanted = [one for one in table.schema_arrow.names if columns is None or one in columns]
        if not wanted:
            raise JobError(f"{name} has the columns {', '.join(table.schema_arrow.names)}", forms)
        unique(wanted, name)
        number = 0
        for batch in table.iter_batches(columns=wanted, batch_size=256):
            for row in batch.to_pylist():
                number += 1
                yield f"{name}: row {number}", row
    except ArrowInvalid as error:
        raise JobError(f"{name}: not parquet: {error}") from None
