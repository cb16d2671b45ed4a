"""Finds the key of ``[data]`` for a file from its content, not from its name alone."""

from __future__ import annotations

from pathlib import Path, PurePath

from ...proto.errors import JobError
from .chat.rows import COLUMNS, first_row
from .files.sources import text_files

_CHAT = frozenset(COLUMNS) - {"tools", "system", "attention_mask", "labels"}
_TABLES = (".parquet", ".arrow")
_TEXT_FIELDS = ("text", "content", "body", "document")


def source_of(pattern: str) -> tuple[str, str | None]:
    """(the key of ``[data]``, the field where there is one) for the first file of a pattern. JobError: no file, or one
    that no key reads."""
    name = text_files("parquet" if Path(pattern).is_dir() else "text", [pattern])[0].name
    suffixes = [one for one in PurePath(name).suffixes if one not in (".gz", ".bz2", ".xz", ".zst")]
    suffix = suffixes[-1] if suffixes else ""
    if suffix in (".tar", ".tgz"):
        return "webdataset", None
    if suffix in (".bin", ".npy"):
        return "tokens", None
    if suffix not in (".jsonl", ".json", ".ndjson", *_TABLES):
        return "text", None
    row = first_row(name)
    if any(key in _CHAT for key in row) and ("prompt" not in row or "completion" in row):
        return "chat", None
    field = next((key for key in (*_TEXT_FIELDS, *row) if isinstance(row.get(key), str)), None)
    if field is None:
        raise JobError(f"{name} has neither messages nor a text; it has: {', '.join(row)}", "docs/how-to/data.md")
    return "parquet" if suffix in _TABLES else "jsonl", None if field == "text" else field
