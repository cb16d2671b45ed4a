"""Folders that `Dataset.save_to_disk` and `DatasetDict.save_to_disk` of the library datasets wrote: their shards in
order.

Such a folder has ``state.json``, which lists the Arrow files in the order of the rows; that of a DatasetDict has
``dataset_dict.json``, which lists the splits, each a folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from ....proto.errors import JobError

READ_BY = ("parquet", "chat", "labelled", "preferences")
"""The keys of ``[data]`` that read Arrow files."""
_SHOWN = 10
"""Names of splits in a message."""
_AGAIN = "save the dataset again with save_to_disk"


def shards_of(kind: str, system: Any, folder: str) -> Iterator[str]:
    """The Arrow files of a saved folder, in the order of its rows; none where the folder is no such one.

    Args:
        kind: the key of ``[data]`` that names the folder. system: fsspec's file system that has it.

    Raises:
        JobError: a shard is missing, there are several splits, or a file of the folder can't be read.
    """
    base = folder.rstrip("/")
    if system.exists(f"{base}/dataset_dict.json"):
        splits = _read(kind, system, f"{base}/dataset_dict.json").get("splits")
        if not isinstance(splits, list) or not splits or not all(map(_plain, splits)):
            raise JobError(f"data.{kind}: {base}/dataset_dict.json names no splits", _AGAIN)
        if len(splits) > 1:
            some = ", ".join(splits[:_SHOWN]) + (f" and {len(splits) - _SHOWN} more" if len(splits) > _SHOWN else "")
            raise JobError(
                f"data.{kind}: {base} has the splits {some}, and which is meant it does not say",
                f"name one of them: {base}/{splits[0]}",
            )
        base = f"{base}/{splits[0]}"
    if not system.exists(f"{base}/state.json"):
        return
    state = _read(kind, system, f"{base}/state.json")
    files = state.get("_data_files")
    names = [one.get("filename") if isinstance(one, dict) else None for one in files] if isinstance(files, list) else []
    if not names or not all(map(_plain, names)):
        raise JobError(f"data.{kind}: {base}/state.json names no files of the dataset", _AGAIN)
    if len(set(names)) != len(names):
        raise JobError(f"data.{kind}: {base}/state.json names a file twice: its rows would count twice", _AGAIN)
    if state.get("_indices_data_files"):
        what = f"data.{kind}: {base} is a selection of rows of other files"
        raise JobError(what, "call flatten_indices() on the dataset, then save_to_disk")
    if kind not in READ_BY:
        raise JobError(f"data.{kind}: {base} is a folder of the library datasets", f'write parquet = ["{base}"]')
    for name in names:
        if not system.isfile(f"{base}/{name}"):
            hint = f"copy the missing file, or {_AGAIN}"
            raise JobError(f"data.{kind}: {base}/state.json names {name}, which is not there", hint)
        yield f"{base}/{name}"


def _read(kind: str, system: Any, path: str) -> dict[str, Any]:
    try:
        found = json.loads(system.cat_file(path))
    except RecursionError:
        raise JobError(f"data.{kind}: {path} can't be read: lists in lists, too deep", _AGAIN) from None
    except (OSError, ValueError) as error:
        raise JobError(f"data.{kind}: {path} can't be read: {error}", _AGAIN) from None
    if not isinstance(found, dict):
        raise JobError(f"data.{kind}: {path} is no JSON object", _AGAIN)
    return found


def _plain(name: object) -> bool:
    """Whether a name is one, and leads nowhere but into its folder."""
    return isinstance(name, str) and bool(name) and PurePosixPath(name).name == name and name not in (".", "..")
