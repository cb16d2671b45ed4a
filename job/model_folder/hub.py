"""Models by their names on the Hugging Face hub: ``pretrained = "org/name@revision"``.

The coordinator's machine has the files in the cache that `huggingface_hub` keeps for all programs (HF_HOME): files in
it are not downloaded again. Nodes fetch their own layers' tensors from the coordinator, as for any folder.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ...proto.errors import JobError

NAME = re.compile(r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?")
CONFIG = ("config.json",)
WORDS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""Patterns of the files of a tokenizer and a configuration."""
WEIGHTS = ("*.safetensors", *WORDS)
_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_name(text: str) -> bool:
    """Whether ``text`` may be a model's name on the hub."""
    return NAME.fullmatch(text) is not None


def folder_of(text: str, key: str, patterns: Sequence[str]) -> str:
    """The folder of the cache with the files of a model; missing files are downloaded.

    Args:
        text: "org/name" or "org/name@revision". key: of the job, for messages. patterns: of the files.

    Raises:
        JobError: there is no such model, its licence has not been accepted, the hub does not answer, the disk is full.
    """
    found = NAME.fullmatch(text)
    assert found is not None
    name, revision = found["name"], found["revision"]
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError:
        hint = "pip install huggingface_hub, or download the model into a folder and name that"
        raise JobError(f"{key} = {text!r}: huggingface_hub is not installed here", hint) from None
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    endpoint = os.environ.get("HF_ENDPOINT") or None
    try:
        folder = huggingface_hub.snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(patterns),
            endpoint=endpoint,
            cache_dir=os.environ.get("HF_HUB_CACHE") or None,
            local_files_only=offline,
            token=os.environ.get("HF_TOKEN") or None,
        )
    except errors.GatedRepoError:
        page = f"{endpoint or 'https://huggingface.co'}/{name}"
        raise JobError(
            f"{key} = {text!r}: the hub gives this model only to people who have accepted its licence",
            f"accept it at {page}, then `hf auth login` on this machine, or set HF_TOKEN",
        ) from None
    except errors.RevisionNotFoundError:
        raise JobError(
            f"{key} = {text!r}: {name} has no revision {revision!r} on the hub", "leave @revision out for the newest"
        ) from None
    except errors.RepositoryNotFoundError:
        raise JobError(
            f"{key} = {text!r}: there is no folder of that name here and no such model on the hub, or it is private",
            "check the name; for a private model `hf auth login`, or set HF_TOKEN",
        ) from None
    except errors.LocalEntryNotFoundError as error:
        if offline:
            hint = "unset HF_HUB_OFFLINE, or run `hf download` where there is a network and copy the cache (HF_HOME)"
            raise JobError(f"{key} = {text!r} is not in the cache of this machine, which is offline", hint) from None
        raise _unreachable(key, text, error) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = os.environ.get("HF_HUB_CACHE") or os.environ.get("HF_HOME") or "~/.cache/huggingface"
            hint = "make room, or set HF_HOME to a folder on a larger disk; what is there is not downloaded again"
            raise JobError(f"{key} = {text!r}: no space is left for its files in {where}", hint) from None
        raise _unreachable(key, text, error) from None
    except Exception as error:  # from whichever HTTP client is used
        raise _unreachable(key, text, error) from None
    if not any(Path(folder).glob(patterns[0])):
        where = "in the cache of this machine, which is offline" if offline else "on the hub"
        hint = "load it with transformers, save it with save_pretrained(folder), and name that folder"
        raise JobError(f"{key} = {text!r} has no {patterns[0]} {where}", hint)
    return str(folder)


def _unreachable(key: str, text: str, error: Exception) -> JobError:
    why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    hint = "try again, it goes on where it stopped; or `hf download` it elsewhere and set HF_HUB_OFFLINE=1"
    return JobError(f"{key} = {text!r} is no folder here, and the hub did not give it: {why}", hint)


def check(path: Path, digest: str) -> None:
    """JobError when a file of the cache is damaged: the cache names large files by their sha256."""
    known = path.resolve().name
    if path.is_symlink() and _SHA256.fullmatch(known) and known != digest:
        raise JobError(
            f"{path.name} in the cache of the hub is damaged: its digest is {digest[:12]}..., not {known[:12]}...",
            f"remove {path.resolve()}, and start again: it is downloaded again",
        )
