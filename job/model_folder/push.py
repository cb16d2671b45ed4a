"""Uploads an exported folder to the Hugging Face hub: ``farflung export STATE OUT --push org/name``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ...proto.errors import JobError
from .hub import NAME

_TOKEN = "`hf auth login` on this machine, or set HF_TOKEN to a token that may write"


def check_target(text: str) -> None:
    """JobError: ``text`` is no valid name of a model, or the hub's library is not installed."""
    found = NAME.fullmatch(text)
    if found is None:
        raise JobError(f"--push {text!r} is no name of a model", "write ORG/NAME, or ORG/NAME@BRANCH")
    _library()
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise JobError(f"--push {text}: this machine is offline (HF_HUB_OFFLINE)", "unset it")


def upload(folder: Path, text: str) -> str:
    """Upload every file of ``folder`` in one commit. Returns the model's address. A new model is private.

    Args:
        text: "org/name" or "org/name@branch"; the branch must exist.

    Raises:
        JobError: the token may not write there, or the hub refuses the upload; the folder stays where it is.
    """
    found = NAME.fullmatch(text)
    assert found is not None
    name, branch = found["name"], found["revision"]
    hub = _library()
    errors = hub.errors
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    api: Any = hub.HfApi(endpoint=endpoint, token=os.environ.get("HF_TOKEN") or None)
    kept = f"{folder} is written: `hf upload {name} {folder}` does the rest"
    try:
        api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, revision=branch, commit_message="Trained with farflung")
    except errors.RevisionNotFoundError:
        raise JobError(f"--push {text}: the model has no branch {branch!r}; {kept}", "make it there first") from None
    except errors.RepositoryNotFoundError:
        raise JobError(f"--push {text}: no such model may be seen with this token; {kept}", _TOKEN) from None
    except errors.LocalTokenNotFoundError:
        raise JobError(f"--push {text}: the hub wants a token; {kept}", _TOKEN) from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in (401, 403):
            raise JobError(f"--push {text}: the hub does not let this token write there; {kept}", _TOKEN) from None
        raise _not_taken(text, error, kept) from None
    except Exception as error:  # from whichever HTTP client is used
        raise _not_taken(text, error, kept) from None
    return f"{endpoint}/{name}"


def _not_taken(text: str, error: Exception, kept: str) -> JobError:
    why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return JobError(f"--push {text}: the hub did not take it: {why}", kept)


def _library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        raise JobError("--push: huggingface_hub is not installed here", "pip install huggingface_hub") from None
    return huggingface_hub
