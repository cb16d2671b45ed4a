"""Text to tokens without torch: the bytes of UTF-8, or the Rust tokenizer of a tokenizer folder.

How a text becomes tokens is decided here, for runs, for nodes with data of their own and for ``generate``.
tokenizer_folder.py decides which files make a tokenizer and loads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...proto.errors import JobError

Located = tuple[list[int], list[tuple[int, int]]]
"""(tokens, for each token its range of characters [begin, end) in the text)."""


Classified = tuple[list[int], list[int], bool]
"""(tokens of a text or of a pair of texts; for each token 1 if it is of the second text, else 0; whether anything was
cut off)."""


class Tokenizer(Protocol):
    """``vocabulary``: the largest token plus 1. ``encode`` returns the tokens of each text; a text with ``True`` ends a
    document, and may get an end-of-text token. ``end``: that token, None without one; ``ending``: the same in words,
    empty without one. ``unknown``: the token for unknown text, None where every text has tokens. ``identity``: a digest
    that differs whenever the tokens of a text may differ.

    ``located`` gives each text's tokens, and for each token its range of characters; ``added`` are the special tokens;
    ``cuts``: whether a text may be cut and its pieces tokenised one by one with the same result.

    ``classified`` returns for each text, or pair of texts, the tokens with the special tokens that begin, separate and
    end them, as encoder models expect, at most ``most`` (the longer text is cut first); 1 for each token of the second
    text; and whether anything was cut off. ``padding``: the token that fills shorter texts up.

    ``prompt`` gives the tokens of a text to be continued, as in training. ``text`` turns tokens into text; special
    tokens, and those outside the vocabulary, are left out. ``notes``: warnings for people.
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

    def classified(self, texts: Sequence[tuple[str, str | None]], most: int) -> list[Classified]: ...

    @property
    def padding(self) -> int: ...

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
    padding = 0

    def classified(self, texts: Sequence[tuple[str, str | None]], most: int) -> list[Classified]:
        """A newline separates the two texts."""
        found = []
        for first, second in texts:
            one, two = list(first.encode()), [] if second is None else list(f"\n{second}".encode())
            whole = len(one) + len(two)
            two = two[: max(most // 2, most - len(one))]
            one = one[: most - len(two)] or [ord("\n")]
            found.append((one + two, [0] * len(one) + [1] * len(two), whole > most))
        return found

    def prompt(self, text: str) -> list[int]:
        return list(text.encode())

    def text(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < self.vocabulary).decode(errors="replace")


class Folder:
    """The tokenizer of a folder; documents end with its end-of-text token where it has one.

    Settings in a tokenizer that would change the training data are switched off: truncation and padding (a text must
    stay whole, and its tokens depend only on it), and dropout and sampling (reading a file twice has to give the same
    tokens).
    """

    def __init__(self, rust: Any, end: int | None, padding: int | None = None) -> None:
        self._rust, self.end = rust, end
        self.padding = padding if padding is not None else end or 0
        # Ids may have gaps, so the number of tokens does not tell the largest id.
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
        """A digest of all its rules, its end of text, and the version of the library that applies them."""
        import tokenizers

        return hashlib.sha256(f"{tokenizers.__version__} {self.end} {self._rust.to_str()}".encode()).hexdigest()

    def encode(self, texts: Sequence[tuple[str, bool]]) -> list[npt.NDArray[Any]]:
        """uint32 arrays. Other threads can run meanwhile."""
        end = [] if self.end is None else [self.end]
        found = self._rust.encode_batch([text for text, _ in texts], add_special_tokens=False)
        pairs = zip(found, texts, strict=True)
        return [np.array(one.ids + end if last else one.ids, np.uint32) for one, (_, last) in pairs]

    def located(self, texts: Sequence[str]) -> list[Located]:
        """As in the protocol. A space before a word belongs to the word's token, whatever tokenizer.json says about
        offsets."""
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
        """False where the first word of a text gets a space before it, as in sentencepiece."""
        return not any(word.startswith("\u2581") for word in self._rust.encode("b", add_special_tokens=False).tokens)

    def classified(self, texts: Sequence[tuple[str, str | None]], most: int) -> list[Classified]:
        self._rust.enable_truncation(most)
        try:
            pairs = [first if second is None else (first, second) for first, second in texts]
            found = self._rust.encode_batch(pairs, add_special_tokens=True)
        finally:
            self._rust.no_truncation()
        if any(not one.ids for one in found):
            raise JobError("data.tokenizer makes no token of an empty text", "leave rows with empty texts out")
        return [(one.ids, one.type_ids, bool(one.overflowing)) for one in found]

    def prompt(self, text: str) -> list[int]:
        ids: list[int] = self._rust.encode(text, add_special_tokens=False).ids
        return ids

    def text(self, tokens: Sequence[int]) -> str:
        said: str = self._rust.decode(list(tokens), skip_special_tokens=True)
        return said


def _neutral(rust: Any) -> list[str]:
    """Switches off settings of a tokenizer.json that would change the data. Returns a sentence for each."""
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
