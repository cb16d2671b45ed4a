"""Text to tokens without torch: the bytes of UTF-8, or the Rust tokenizer of a tokenizer folder.

What a tokenizer folder is, which token ends a document and how a text becomes tokens is decided here, for ``job init``,
for runs, for nodes with data of their own and for ``generate``. A folder without ``tokenizer.json`` (slow tokenizers:
vocab.json and merges.txt, sentencepiece) is converted once by transformers in a process of its own
(``python -m farflung.job.data.tokenizer FOLDER OUT``), so that the coordinator never loads transformers' models or
torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...proto.errors import JobError
from ...proto.process import python
from ..model_folder.lfs import HINT, pointer_at

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

VOCABULARIES = (
    ("tokenizer.json",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("tokenizer.model",),
    ("spiece.model",),
)
"""Files that hold a vocabulary: a folder with all of one row has a tokenizer, whatever else is in it or is not."""

CLASS_ENDS = {
    "GPT2Tokenizer": "<|endoftext|>",
    "GPTNeoXTokenizer": "<|endoftext|>",
    "Qwen2Tokenizer": "<|endoftext|>",
    "LlamaTokenizer": "</s>",
    "CodeLlamaTokenizer": "</s>",
    "T5Tokenizer": "</s>",
    "GemmaTokenizer": "<eos>",
}
"""What ends a text where a folder names nothing but one of transformers' classes, without its ``Fast``."""

_CONVERT_TIMEOUT = 300


Located = tuple[list[int], list[tuple[int, int]]]
"""Tokens, and of each the first of its characters in the text and the one behind its last."""


class Tokenizer(Protocol):
    """``vocabulary``: the largest token and 1; ``encode`` gives the tokens of each of some texts, of whom the ones with
    ``True`` end a document, which it may mark. ``end``: the token that does so, None without one; ``ending``: the mark
    in words, empty without one. ``unknown``: the token of what it does not know, None where it knows everything.
    ``identity``: another one where it may make other tokens of a text.

    ``located`` gives of each text its tokens, and of each token the characters that it stands for; ``added`` are the
    tokens with a meaning of their own, and ``cuts``: whether the tokens of a text's pieces are those of the text.

    ``prompt`` gives the tokens of a text that is to go on, as training has them, ``text`` what tokens say; those that a
    vocabulary lacks, and those with a meaning of their own, say nothing. ``notes``: what a person should know of it.
    """

    vocabulary: int
    end: int | None
    unknown: int | None
    notes: Sequence[str]

    @property
    def ending(self) -> str: ...

    @property
    def identity(self) -> str: ...

    def encode(self, texts: Sequence[tuple[str, bool]]) -> list[npt.NDArray[Any]]: ...

    def located(self, texts: Sequence[str]) -> list[Located]: ...

    @property
    def added(self) -> Collection[int]: ...

    @property
    def cuts(self) -> bool: ...

    def prompt(self, text: str) -> list[int]: ...

    def text(self, tokens: Sequence[int]) -> str: ...


class Bytes:
    """The bytes of UTF-8 are the tokens. Documents that end without a newline get one."""

    vocabulary = 256
    end: int | None = None
    unknown: int | None = None
    notes: Sequence[str] = ()
    ending = "a newline"
    identity = "bytes"

    def encode(self, texts: Sequence[tuple[str, bool]]) -> list[npt.NDArray[Any]]:
        """uint8 arrays."""
        ends = ("\n" if last and not text.endswith("\n") else "" for text, last in texts)
        return [np.frombuffer((text + end).encode(), np.uint8) for (text, _), end in zip(texts, ends, strict=True)]

    def located(self, texts: Sequence[str]) -> list[Located]:
        found = []
        for text in texts:
            places = [(at, at + 1) for at, letter in enumerate(text) for _ in letter.encode()]
            found.append((list(text.encode()), places))
        return found

    added: Collection[int] = ()
    cuts = True

    def prompt(self, text: str) -> list[int]:
        return list(text.encode())

    def text(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < self.vocabulary).decode(errors="replace")


class Folder:
    """The tokenizer of a folder; documents end with its end-of-text token where it has one.

    What is saved in a tokenizer beside its vocabulary and rules, and would change what is trained on, is switched off:
    truncation and padding (a text is whole, and its tokens depend on it alone), and dropout and sampling (two readings
    of a file have to give the same tokens).
    """

    def __init__(self, rust: Any, end: int | None) -> None:
        self._rust, self.end = rust, end
        # Ids may have holes, and a count would not say which they are.
        self.vocabulary: int = 1 + max(rust.get_vocab(with_added_tokens=True).values(), default=-1)
        if not self.vocabulary:
            raise JobError("data.tokenizer: its vocabulary is empty")
        self.notes: Sequence[str] = _neutral(rust)
        word = getattr(rust.model, "unk_token", None)
        self.unknown: int | None = None if word is None else rust.token_to_id(word)

    @property
    def ending(self) -> str:
        return "" if self.end is None else f"{self._rust.id_to_token(self.end)} ({self.end})"

    @property
    def identity(self) -> str:
        """A digest of all its rules, its end of text, and the version of the library that follows them."""
        import tokenizers

        return hashlib.sha256(f"{tokenizers.__version__} {self.end} {self._rust.to_str()}".encode()).hexdigest()

    def encode(self, texts: Sequence[tuple[str, bool]]) -> list[npt.NDArray[Any]]:
        """uint32 arrays. Other threads run on meanwhile."""
        end = [] if self.end is None else [self.end]
        found = self._rust.encode_batch([text for text, _ in texts], add_special_tokens=False)
        pairs = zip(found, texts, strict=True)
        return [np.array(one.ids + end if last else one.ids, np.uint32) for one, (_, last) in pairs]

    def located(self, texts: Sequence[str]) -> list[Located]:
        """A space before a word is of the word's token, whatever a tokenizer.json says of what offsets leave out."""
        processor, self._rust.post_processor = self._rust.post_processor, None
        try:
            found = self._rust.encode_batch(list(texts), add_special_tokens=False)
        finally:
            self._rust.post_processor = processor
        return [(one.ids, one.offsets) for one in found]

    @property
    def added(self) -> Collection[int]:
        found: Collection[int] = self._rust.get_added_tokens_decoder().keys()
        return found

    @property
    def cuts(self) -> bool:
        """False where a text's first word gets a space of its own before it, as sentencepiece has it."""
        return not any(word.startswith("\u2581") for word in self._rust.encode("b", add_special_tokens=False).tokens)

    def prompt(self, text: str) -> list[int]:
        ids: list[int] = self._rust.encode(text, add_special_tokens=False).ids
        return ids

    def text(self, tokens: Sequence[int]) -> str:
        said: str = self._rust.decode(list(tokens), skip_special_tokens=True)
        return said


def _neutral(rust: Any) -> list[str]:
    """Switches off what a tokenizer.json saves beside vocabulary and rules; what that was, in sentences."""
    said = []
    if rust.truncation is not None:
        said.append(f"truncation to {rust.truncation.get('max_length')} tokens, saved in the tokenizer, is left out")
    rust.no_truncation()
    rust.no_padding()
    model = rust.model
    for setting in ("dropout", "alpha", "nbest_size"):
        if getattr(model, setting, None):
            said.append(f"{setting} = {getattr(model, setting):g}, saved in the tokenizer, is left out")
            setattr(model, setting, None)
    return said


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
    return Folder(rust, _end_of(rust, made, folder))


def _end_of(rust: Any, made: Path, folder: Path) -> int | None:
    """The token that ends a document: the tokenizer's own word, the model's ``eos_token_id``, the default of the class
    that the tokenizer names, or the one special token that can mean nothing else."""
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


def model_ends(folder: Path) -> list[int]:
    """The tokens that end a text of a model folder, as transformers has it: generation_config.json's where there is
    one, or else config.json's."""
    first = next((file for file in _CONFIGS if (folder / file).is_file()), None)
    return _ends(folder / first) if first else []


_CONFIGS = ("generation_config.json", "config.json")


def _ends(path: Path) -> list[int]:
    end = _json(path).get("eos_token_id")
    return [] if end is None else [int(one) for one in (end if isinstance(end, list) else [end])]


def _json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file. ValueError: it is none."""
    found = json.loads(path.read_text(encoding="utf-8-sig")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _convert_apart(folder: Path, out: Path) -> None:
    sentences = next((name for name in ("tokenizer.model", "spiece.model") if (folder / name).is_file()), None)
    if sentences and importlib.util.find_spec("sentencepiece") is None:
        raise JobError(
            f"data.tokenizer: reading {folder / sentences} needs the package sentencepiece",
            "pip install sentencepiece protobuf; or save a tokenizer.json beside it with "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) where these are installed",
        )
    command = python.module("farflung.job.data.tokenizer", str(folder), str(out))
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
