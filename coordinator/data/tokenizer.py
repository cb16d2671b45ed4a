"""Text to tokens without torch: the bytes of UTF-8, or the Rust tokenizer of a tokenizer folder.

A folder without ``tokenizer.json`` (slow tokenizers: vocab.json and merges.txt, sentencepiece) is converted once by
transformers in a process of its own (``python -m farflung.coordinator.data.tokenizer FOLDER OUT``), so that
the coordinator never loads transformers' models or torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...proto import python
from ...proto.errors import JobError

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
"""Files of a tokenizer folder that belong to the tokenizer, and not to the model beside it."""

_CONVERT_TIMEOUT = 300


class Tokenizer(Protocol):
    """``vocabulary`` tokens; ``encode`` gives the tokens of each of some texts, of whom the ones with ``True`` end a
    document, which it may mark.

    ``prompt`` gives the tokens of a text that is to go on, ``text`` what tokens say; those that a vocabulary lacks, and
    those with a meaning of their own, say nothing.
    """

    vocabulary: int

    def encode(self, texts: Sequence[tuple[str, bool]]) -> list[npt.NDArray[Any]]: ...

    def prompt(self, text: str) -> list[int]: ...

    def text(self, tokens: Sequence[int]) -> str: ...


class Bytes:
    """The bytes of UTF-8 are the tokens. Documents that end without a newline get one."""

    vocabulary = 256

    def encode(self, texts: Sequence[tuple[str, bool]]) -> list[npt.NDArray[Any]]:
        """uint8 arrays."""
        ends = ("\n" if last and not text.endswith("\n") else "" for text, last in texts)
        return [np.frombuffer((text + end).encode(), np.uint8) for (text, _), end in zip(texts, ends, strict=True)]

    def prompt(self, text: str) -> list[int]:
        return list(text.encode())

    def text(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < self.vocabulary).decode(errors="replace")


class Folder:
    """A tokenizer folder; documents end with its end-of-text token where it has one."""

    def __init__(self, rust: Any, end: int | None) -> None:
        self._rust, self._end = rust, end
        self.vocabulary: int = rust.get_vocab_size(with_added_tokens=True)

    def encode(self, texts: Sequence[tuple[str, bool]]) -> list[npt.NDArray[Any]]:
        """uint32 arrays. Other threads run on meanwhile."""
        end = [] if self._end is None else [self._end]
        found = self._rust.encode_batch([text for text, _ in texts], add_special_tokens=False)
        pairs = zip(found, texts, strict=True)
        return [np.array(one.ids + end if last else one.ids, np.uint32) for one, (_, last) in pairs]

    def prompt(self, text: str) -> list[int]:
        ids: list[int] = self._rust.encode(text).ids
        return ids

    def text(self, tokens: Sequence[int]) -> str:
        said: str = self._rust.decode(list(tokens), skip_special_tokens=True)
        return said


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of ``data.tokenizer``. JobError when the folder has none that can be loaded."""
    if name == "bytes":
        return Bytes()
    folder = Path(name)
    if not folder.is_dir():
        raise JobError(f'data.tokenizer: {name} is no folder; allowed: "bytes" or a folder')
    if not any((folder / file).exists() for file in FILES if file != "chat_template.jinja"):
        hint = 'give a folder with tokenizer.json (tokenizer.save_pretrained writes one), or tokenizer = "bytes"'
        raise JobError(f"data.tokenizer: the folder {name} has no tokenizer", hint)
    try:
        if (folder / "tokenizer.json").exists():
            return _open(folder)
        with tempfile.TemporaryDirectory() as made:
            _convert_apart(folder, Path(made))
            return _open(Path(made))
    except JobError:
        raise
    except Exception as error:  # the Rust library raises plain Exception
        raise JobError(f"data.tokenizer: cannot load the tokenizer in {name}: {error}") from None


def _open(folder: Path) -> Folder:
    """FOLDER/tokenizer.json, with the end-of-text token that the files beside it name."""
    from tokenizers import Tokenizer as Rust

    rust = Rust.from_file(str(folder / "tokenizer.json"))
    rust.no_padding()  # several texts are encoded at once, and the tokens of each depend on it alone
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        path = folder / file
        word = json.loads(path.read_text(encoding="utf-8")).get("eos_token") if path.exists() else None
        word = word.get("content") if isinstance(word, dict) else word
        if isinstance(word, str):
            return Folder(rust, rust.token_to_id(word))
    return Folder(rust, None)


def _convert_apart(folder: Path, out: Path) -> None:
    command = python.module("farflung.coordinator.data.tokenizer", str(folder), str(out))
    nobody = subprocess.DEVNULL  # transformers asks there whether to run code of the folder
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
