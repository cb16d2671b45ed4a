"""A checkpoint's ``manifest.json``.

It has ``step``, ``files``, ``digests`` (sha256, hex), and the ``job`` and ``facts``, so that a folder can be understood
alone. It also has the metadata that nodes sent with their files. Merged: tables key by key; of ``optimizer_steps`` the
largest, because nodes may count different numbers of local steps; of ``redo`` and ``unfinished`` the union; of any
other key the last value. And under ``meta`` for each file, without the position in the stream, which all files share.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...job.data.sampling import Position
from ...proto.process.files import file_digest
from ...proto.words.border import Hostile, below
from .tensor_header import makes_no_sense

MANIFEST = "manifest.json"
TENSORS = ".safetensors"
_LARGEST = {"optimizer_steps"}
_POSITION = {"step", "cursor", "redo", "unfinished", "pipelines"}


def damaged(folder: Path) -> str:
    """What is wrong with a complete checkpoint's files; empty where nothing is."""
    try:
        manifest = read_manifest(folder)
        position_in(manifest)
        for name, digest in manifest["digests"].items():
            path = below(folder, name)
            if file_digest(path) != digest:
                return f"{name} has another digest"
            if path.suffix == TENSORS and (wrong := makes_no_sense(path)):
                return f"{name} {wrong}"
    except (OSError, ValueError, KeyError, AttributeError, TypeError, OverflowError, Hostile) as error:
        return str(error) or type(error).__name__
    return ""


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a complete checkpoint."""
    content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def position_in(manifest: dict[str, Any]) -> Position:
    """The position in the stream of samples after the checkpoint's step."""
    redo: Iterable[int] = manifest.get("redo", [])
    return Position(int(manifest["step"]), int(manifest.get("cursor", 0)), tuple(int(one) for one in redo))


def manifest_of(meta: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The merged metadata of all files, and under ``meta`` that of each file. meta: file -> its metadata."""
    merged: dict[str, Any] = {}
    for said in meta.values():
        for key, value in said.items():
            before = merged.get(key)
            if key == "unfinished" and isinstance(value, dict) and isinstance(before, dict):
                merged[key] = {d: sorted({*before.get(d, ()), *value.get(d, ())}) for d in {*before, *value}}
            elif isinstance(value, dict) and isinstance(before, dict):
                merged[key] = {**before, **value}
            elif key in _LARGEST and isinstance(value, int) and isinstance(before, int):
                merged[key] = max(before, value)
            elif key == "redo" and isinstance(value, list) and isinstance(before, list):
                merged[key] = sorted({*before, *value})
            else:
                merged[key] = value
    own = {file: {key: said[key] for key in said if key not in _POSITION} for file, said in meta.items()}
    return {**merged, "meta": own}
