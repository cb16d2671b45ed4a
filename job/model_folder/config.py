"""Reads the config.json of a pretrained model's folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ...proto.errors import JobError
from ..schema import Job
from .lfs import HINT, pointer_at


def pretrained_config(folder: str) -> dict[str, Any]:
    """config.json of a model folder. JobError when it is missing or not JSON."""
    path = Path(folder) / "config.json"
    try:
        if pointer_at(path):
            raise JobError(f"model.pretrained: {path} is a Git LFS pointer, not the file itself", HINT)
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        what = "has no config.json" if Path(folder).is_dir() else "is not a folder"
        raise JobError(f"model.pretrained = {folder!r} {what}", folder_hint(folder)) from None
    except (OSError, ValueError) as error:
        raise JobError(f"model.pretrained: cannot read {path}: {error}") from None
    if not isinstance(config, dict):
        return {}
    for key in _COUNTS:
        value = config.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            hint = "copy or download it again, or save the model with save_pretrained"
            raise JobError(f"model.pretrained: {path} says {key} = {value!r:.40}, which is no number of them", hint)
    return config


_COUNTS = ("vocab_size", "num_hidden_layers", "n_layer")
"""Keys of a configuration that are counts, where it has them."""


def folder_hint(name: str) -> str:
    """The hint where ``name`` is no model folder; a name on the Hugging Face hub has to be downloaded first."""
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not Path(name).exists():
        local = name.rpartition("/")[2]
        return f"a name on the Hugging Face hub is downloaded first: hf download {name} --local-dir {local}"
    return "give a folder as transformers' save_pretrained writes it"


def block_count(job: Job) -> int | None:
    """The number of transformer blocks of the job's model, from the job or the model folder; None where neither has
    it."""
    if job.model.layers:
        return job.model.layers
    if job.model.pretrained:
        try:
            config = pretrained_config(job.model.pretrained)
        except JobError:
            return None
        count = config.get("num_hidden_layers", config.get("n_layer"))
        return count if isinstance(count, int) else None
    return None
