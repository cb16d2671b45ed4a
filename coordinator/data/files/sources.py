"""Which files a job's patterns name, and how one is opened.

A pattern may name files of any storage that fsspec supports (``s3://bucket/*.jsonl``); a plain path is a local file.
"""

from __future__ import annotations

import contextlib
import lzma
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import fsspec

from ....job.data.patterns import as_glob
from ....job.model_folder.lfs import HINT, pointer_at
from ....proto.errors import JobError
from .saved import shards_of

_POINTER = range(1, 1024)  # bytes of a Git LFS pointer


class Source(NamedTuple):
    """A file. ``size``: bytes, None where the storage does not tell. ``stamp``: the storage's times, etags and digests
    of it, by which a change shows; empty where the storage has none."""

    name: str
    size: int | None
    stamp: str


def text_files(kind: str, patterns: Iterable[str]) -> tuple[Source, ...]:
    """The files of a ``kind`` (a key of ``[data]``), in the order of the patterns, then of the names. Raises the
    JobErrors of `sources_of`."""
    return tuple(sources_of(kind, patterns))


_STAMPS = {
    *("mtime", "created", "modified", "last_modified", "lastmodified", "last-modified", "updated", "timecreated"),
    *("etag", "checksum", "md5", "md5hash", "content_md5", "contentmd5", "crc32c", "generation", "versionid"),
}
"""The names, in lower case, that fsspec's storages use for a file's times, etags and digests."""


def _stamp(entry: dict[str, Any]) -> str:
    found = {name.lower(): value for name, value in entry.items() if name.lower() in _STAMPS and value is not None}
    return " ".join(f"{name}={found[name]}" for name in sorted(found))


def sources_of(kind: str, patterns: Iterable[str]) -> Iterator[Source]:
    """The files with their full names, each pattern's sorted. If a pattern matches folders alone, those that the
    library datasets saved there, in the order that the folder says.

    Raises:
        JobError: a pattern matches no file, or a storage can't be listed.
    """
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
            names = [name for folder in sorted(found) for name in shards_of(kind, system, folder)]
            found |= {name: system.info(name) for name in names}
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
    """A file opened for reading. JobError: it can't be read, or is not UTF-8 where text is read from it."""
    try:
        with fsspec.open(name, "rb", compression=compression) as file:
            yield file
    except UnicodeError as error:
        raise JobError(f"data: cannot read {name}: {error}", "text must be UTF-8") from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise JobError(f"data: cannot read {name}: {error}") from None


def compression_of(name: str) -> str:
    """fsspec's name of a file's compression, by the file's name."""
    return "gzip" if name.endswith(".tgz") else "infer"
