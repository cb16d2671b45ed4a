"""Which files make a tokenizer folder, how it is loaded, and which token ends a document.

A folder without ``tokenizer.json`` (slow tokenizers: vocab.json and merges.txt, sentencepiece) is converted once by
transformers in another process (``python -m farflung.job.data.tokenizer_folder FOLDER OUT``), so that the
coordinator never loads transformers' models or torch.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ...proto.errors import JobError
from ...proto.process import python
from ..model_folder.lfs import HINT, pointer_at
from .tokenizer import Bytes, Folder, Tokenizer

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
)
"""The files of a folder that belong to the tokenizer and not to a model in the same folder."""

VOCABULARIES = (
    ("tokenizer.json",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("tokenizer.model",),
    ("spiece.model",),
)
"""Files that hold a vocabulary: a folder that has all files of one row has a tokenizer, whatever other files it has."""

CLASS_ENDS = {
    "GPT2Tokenizer": "<|endoftext|>",
    "GPTNeoXTokenizer": "<|endoftext|>",
    "Qwen2Tokenizer": "<|endoftext|>",
    "LlamaTokenizer": "</s>",
    "CodeLlamaTokenizer": "</s>",
    "T5Tokenizer": "</s>",
    "GemmaTokenizer": "<eos>",
}
"""transformers' tokenizer class without ``Fast`` -> its end-of-text token; used where a folder names only the class."""

_CONVERT_TIMEOUT = 300


def tokenizer_files(folder: Path) -> list[Path]:
    """The files of the tokenizer in a folder; none where it has no vocabulary."""
    if not any(all((folder / name).is_file() for name in row) for row in VOCABULARIES):
        return []
    return [folder / name for name in FILES if (folder / name).is_file()]


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of ``data.tokenizer``. JobError when the folder has none that can be loaded."""
    if name == "bytes":
        return Bytes()
    folder = Path(name)
    if not folder.is_dir():
        raise JobError(f'data.tokenizer: {name} is no folder; allowed: "bytes" or a folder')
    if not tokenizer_files(folder):
        hint = 'give a folder with tokenizer.json (tokenizer.save_pretrained writes one), or tokenizer = "bytes"'
        raise JobError(f"data.tokenizer: the folder {name} has no tokenizer", hint)
    try:
        for path in tokenizer_files(folder):
            if pointer_at(path):
                raise JobError(f"data.tokenizer: {path} is a Git LFS pointer, not the file itself", HINT)
        if (folder / "tokenizer.json").exists():
            return _open(folder, folder)
        with tempfile.TemporaryDirectory() as made:
            _convert_apart(folder, Path(made))
            return _open(Path(made), folder)
    except JobError:
        raise
    except Exception as error:  # the Rust library raises plain Exception
        raise JobError(f"data.tokenizer: cannot load the tokenizer in {name}: {error}") from None


def _open(made: Path, folder: Path) -> Folder:
    """MADE/tokenizer.json, with the end-of-text token that the files beside it name, or else those of ``folder``."""
    from tokenizers import Tokenizer as Rust

    rust = Rust.from_file(str(made / "tokenizer.json"))
    return Folder(rust, _end_of(rust, made, folder), _padding_of(rust, made, folder))


def _end_of(rust: Any, made: Path, folder: Path) -> int | None:
    """The token that ends a document: from the tokenizer's configuration, the model's ``eos_token_id``, the default of
    the tokenizer's class, or the only special token that is the end token of some class in CLASS_ENDS."""
    words: list[str] = []
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        word = _json(made / file).get("eos_token")
        word = word.get("content") if isinstance(word, dict) else word
        words += [word] if isinstance(word, str) else []
    for word in words:
        if (found := rust.token_to_id(word)) is not None:
            return int(found)
    for token in (token for file in _CONFIGS for token in _ends(folder / file)):
        if rust.id_to_token(token) is not None:
            return token
    kind = str(_json(made / "tokenizer_config.json").get("tokenizer_class", "")).removesuffix("Fast")
    if kind in CLASS_ENDS and (found := rust.token_to_id(CLASS_ENDS[kind])) is not None:
        return int(found)
    special = {one.content: token for token, one in rust.get_added_tokens_decoder().items() if one.special}
    known = [special[word] for word in dict.fromkeys(CLASS_ENDS.values()) if word in special]
    return int(known[0]) if len(known) == 1 else None


def _padding_of(rust: Any, made: Path, folder: Path) -> int | None:
    """The padding token: the model's, else the tokenizer's; None where neither has one."""
    token = _json(folder / "config.json").get("pad_token_id")
    if isinstance(token, int) and not isinstance(token, bool) and token >= 0:
        return token
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        word = _json(made / file).get("pad_token")
        word = word.get("content") if isinstance(word, dict) else word
        if isinstance(word, str) and (found := rust.token_to_id(word)) is not None:
            return int(found)
    return None


def model_ends(folder: Path) -> list[int]:
    """The tokens at which a model stops, as in transformers: those of generation_config.json, else of config.json."""
    first = next((file for file in _CONFIGS if (folder / file).is_file()), None)
    return _ends(folder / first) if first else []


_CONFIGS = ("generation_config.json", "config.json")


def _ends(path: Path) -> list[int]:
    end = _json(path).get("eos_token_id")
    ends = [] if end is None else end if isinstance(end, list) else [end]
    if not all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 1 << 32 for one in ends):
        hint = "write the number of the token that ends a text, or remove the key"
        raise JobError(f"data.tokenizer: {path} says eos_token_id = {end!r:.60}", hint)
    return ends


def _json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where it is not there, or has something else. JobError: it is no JSON."""
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        hint = "copy or download it again, or remove it if nothing in it is needed"
        raise JobError(f"data.tokenizer: {path} can't be read: {error}", hint) from None
    return found if isinstance(found, dict) else {}


def _convert_apart(folder: Path, out: Path) -> None:
    sentences = next((name for name in ("tokenizer.model", "spiece.model") if (folder / name).is_file()), None)
    if sentences and importlib.util.find_spec("sentencepiece") is None:
        raise JobError(
            f"data.tokenizer: reading {folder / sentences} needs the package sentencepiece",
            "pip install sentencepiece protobuf; or save a tokenizer.json beside it with "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) where these are installed",
        )
    if not any((folder / name).is_file() for name in ("tokenizer_config.json", "config.json")):
        raise JobError(
            f"data.tokenizer: {folder} has a vocabulary and does not say of which kind of tokenizer it is",
            "copy its tokenizer_config.json, or the model's config.json, into it; or save a tokenizer.json with "
            "AutoTokenizer's save_pretrained",
        )
    command = python.module("farflung.job.data.tokenizer_folder", str(folder), str(out))
    nobody = subprocess.DEVNULL  # transformers would ask on stdin whether to run code of the folder
    done = subprocess.run(command, stdin=nobody, capture_output=True, text=True, timeout=_CONVERT_TIMEOUT, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise JobError(f"data.tokenizer: transformers cannot load the tokenizer in {folder}: {last}")


def _convert(folder: str, out: str) -> None:
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(folder, use_fast=True, local_files_only=True, trust_remote_code=False)
    made.save_pretrained(out)


if __name__ == "__main__":
    _convert(sys.argv[1], sys.argv[2])
