"""Counts bytes and tokens while texts are tokenised, and warns where their ratio looks wrong.

A run with a tokenizer that truncates texts, or does not know their language, has no error; only these numbers show it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...job.data.tokenizer import Classified, Located, Tokenizer
from ...proto.errors import JobError
from ...proto.process.progress import Tell

FEWEST, MOST = 0.03, 1.1
"""The usual range of tokens a byte: tokenizers of single bytes have 1, English has 0.2 to 0.3."""
STRANGE = 0.02
"""The largest usual part of unknown-tokens."""
ENOUGH = 10_000
"""Least bytes of text for which the ratio is judged."""


class Counted:
    """Wraps a tokenizer; ``encode`` counts bytes of UTF-8, tokens (without end tokens) and documents."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._of = tokenizer
        self.vocabulary, self.end, self.notes = tokenizer.vocabulary, tokenizer.end, tokenizer.notes
        self.unknown = tokenizer.unknown
        self.bytes = self.tokens = self.documents = self.strange = 0

    @property
    def ending(self) -> str:
        return self._of.ending

    def encode(self, texts: Sequence[tuple[str, bool]]) -> list[npt.NDArray[Any]]:
        """Like the tokenizer's own method. JobError: a token that is not in its vocabulary."""
        found = self._of.encode(texts)
        ends = sum(last for _, last in texts)
        self.bytes += sum(len(text.encode()) for text, _ in texts)
        self.documents += ends
        self.tokens += sum(map(len, found)) - (ends if self.end is not None else 0)
        if self.unknown is not None:
            self.strange += sum(int(np.count_nonzero(tokens == self.unknown)) for tokens in found)
        largest = max((int(tokens.max()) for tokens in found if len(tokens)), default=0)
        if largest >= self.vocabulary:
            raise JobError(f"data.tokenizer made the token {largest}, but has only {self.vocabulary}", "save it again")
        return found

    @property
    def counted(self) -> tuple[int, ...]:
        """The counts so far; set it to continue from earlier counts."""
        return self.bytes, self.tokens, self.documents, self.strange

    @counted.setter
    def counted(self, counted: tuple[int, ...]) -> None:
        self.bytes, self.tokens, self.documents, self.strange = counted

    @property
    def identity(self) -> str:
        return self._of.identity

    def located(self, texts: Sequence[str]) -> list[Located]:
        return self._of.located(texts)

    def classified(self, texts: Sequence[tuple[str, str | None]], most: int) -> list[Classified]:
        return self._of.classified(texts, most)

    @property
    def padding(self) -> int:
        return self._of.padding

    @property
    def added(self) -> Collection[int]:
        return self._of.added

    @property
    def cuts(self) -> bool:
        return self._of.cuts

    def prompt(self, text: str) -> list[int]:
        return self._of.prompt(text)

    def text(self, tokens: Sequence[int]) -> str:
        return self._of.text(tokens)

    def report(self, kind: str, name: str, tell: Tell) -> None:
        """Tell the counts for the texts of ``data.KIND``; warn where the ratio is outside the usual range."""
        if not self.bytes:
            return
        ratio = self.tokens / self.bytes
        ends = f"a document ends with {self.ending}" if self.ending else "no token ends a document"
        documents = "document" if self.documents == 1 else "documents"
        many = f"{self.bytes:,} bytes in {self.documents:,} {documents} are {self.tokens:,} tokens"
        per = "1 token" if f"{ratio:.3g}" == "1" else f"{ratio:.3g} tokens"
        counted = f"data.{kind}: {many}, {per} per byte; {ends}"
        _say("notice", "; ".join([counted, *self.notes]), tell)
        if self.bytes >= ENOUGH and self.strange > STRANGE * self.tokens:
            _say(
                "warning",
                f"data.{kind}: {self.strange / max(1, self.tokens):.0%} of the tokens are the one of what the "
                f"tokenizer does not know: look at the files and at data.tokenizer = {name}",
                tell,
            )
        if self.bytes >= ENOUGH and not FEWEST <= ratio <= MOST:
            few = "most of the text may be lost" if ratio < FEWEST else "it may not know this language or these files"
            _say(
                "warning",
                f"data.{kind}: {ratio:.3g} tokens per byte is far from what text has ({FEWEST} to {MOST}): {few}; look "
                f"at the files and at data.tokenizer = {name}",
                tell,
            )


def _say(kind: str, message: str, tell: Tell) -> None:
    tell({"event": kind, "time": time.time(), "message": message})
