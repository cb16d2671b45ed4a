"""Stores digests of a `Trainer`'s inputs in the run's folder: a later call with other inputs is refused.

A run in an existing folder resumes where it stopped, whatever model the caller has. So it resumes only if the caller's
model, tokenizer, rows and arguments are those with which the run began.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
import xxhash

from ..proto.errors import FarflungError
from ..proto.process.files import write_whole

FILE = "given.json"
_HINT = "give Arguments(output_dir=...) another folder to start anew; to go on, hand in what that run began with"


def digests(
    model: Any, tokenizer: Any, rows: Mapping[str, npt.NDArray[Any] | None], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Digests of weights, tokenizer and rows, and the arguments themselves, by name."""
    weights = xxhash.xxh3_128()
    for name, tensor in sorted(model.state_dict().items()):
        weights.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        weights.update(_bytes(tensor))
    words = json.dumps([sorted(tokenizer.get_vocab().items()), str(tokenizer.special_tokens_map)])
    given: dict[str, Any] = {"weights": weights.hexdigest(), "tokenizer": xxhash.xxh3_128_hexdigest(words.encode())}
    for word, tokens in rows.items():
        said = None if tokens is None else f"{tokens.dtype}".encode() + tokens.tobytes()
        given[word] = said and xxhash.xxh3_128_hexdigest(said)
    plain: dict[str, Any] = json.loads(json.dumps(dict(arguments), default=str))
    return given | {f"argument {name}": value for name, value in plain.items()}


def begin_or_go_on(folder: Path, given: Mapping[str, Any]) -> bool:
    """True: ``folder`` has no run yet. False: it has one with the same inputs. FarflungError: one with other inputs."""
    path = folder / FILE
    if not path.is_file():
        if (folder / "run.sqlite").exists():
            raise FarflungError(f"{folder} has a run that does not say what it began with", _HINT)
        return True
    before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    other = [word for word in {**before, **given} if before.get(word) != given.get(word)]
    if other:
        raise FarflungError(f"{folder} has a run that began with something else: {', '.join(other)}", _HINT)
    return False


def keep(folder: Path, given: Mapping[str, Any]) -> None:
    """Write the digests with which a run begins into ``folder``."""
    write_whole(folder / FILE, json.dumps(dict(given), indent=1).encode())


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    found: bytes = flat.view(torch.uint8).numpy().tobytes()
    return found
