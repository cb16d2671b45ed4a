"""Converts pairs of answers, one chosen and one rejected, to rows of marked tokens (job/data/marks.py).

A row has two halves of ``context // 2`` tokens: the prompt and the chosen answer, the prompt and the rejected one. The
answers' tokens train. A row counts once.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ....job.data.marks import FIRST
from ....job.data.tokenizer import Tokenizer
from ....job.schema import Job
from ....proto.errors import JobError
from ....proto.process.progress import Tell
from ..chat.chat import LEFT_OUT, Reader
from ..chat.rows import Conversation, conversation
from ..data import TokenFile
from ..files.sources import compression_of, opened
from ..files.tables import rows_of
from .samples import write_samples

_ONCE = 64  # pairs rendered and tokenised at once
FORMS = 'rows need "prompt", "chosen" and "rejected": texts, or lists of messages (docs/how-to/dpo.md)'


class Pairs:
    """Converts rows of files to samples, and counts those kept, cut and left out."""

    def __init__(self, job: Job, tokenizer: Tokenizer, context: int) -> None:
        self._context, self._half = context, context // 2
        self._reader = Reader(job, tokenizer, self._half - 1)
        self.count = 0
        self.equal = 0

    def samples(self, names: Sequence[str]) -> Iterator[npt.NDArray[np.uint32]]:
        """Rows uint32 [context + 1]. A pair is left out if either answer has no token to learn, or both are the same.

        JobError: none is left.
        """
        before, empty = self.count, True
        with contextlib.ExitStack() as stack:
            pairs = (pair for name in names for pair in _pairs(name))
            while some := list(islice(pairs, _ONCE)):
                found = list(self._reader.marked([one for pair in some for one in pair], stack))
                for chosen, rejected in zip(found[::2], found[1::2], strict=True):
                    empty = False
                    if chosen is None or rejected is None:
                        continue
                    if np.array_equal(chosen, rejected):
                        self.equal += 1
                        continue
                    self.count += 1
                    yield self._row(chosen, rejected)
        if self.count == before and not empty:
            raise JobError(
                f"data.preferences: no pair to learn in {', '.join(names)}: {'; '.join(self._left_out())}",
                "look into the files; each answer has to fit half of model.context with its prompt",
            )

    def _left_out(self) -> list[str]:
        """Which pairs are left out, and why, in sentences."""
        said = []
        for why, count in self._reader.left_out.items():
            what, where = LEFT_OUT[why], self._reader.examples[why]
            said.append(f"{count:,} answers {what}: their pairs are left out, the first of them {where}")
        if self.equal:
            said.append(f"{self.equal:,} pairs have the same tokens twice within their halves, and are left out")
        return said

    def _row(self, *documents: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        row = np.zeros(self._context + 1, np.uint32)
        for begin, document in zip((0, self._half), documents, strict=True):
            end = begin + len(document)
            row[begin:end] = document
            row[end] |= FIRST  # begins the next half, or the padding
        return row

    def report(self, tell: Tell) -> None:
        """Tell how many pairs there are, and how many answers were cut or left out."""

        def say(message: str) -> None:
            tell({"event": "notice", "time": time.time(), "message": f"data.preferences: {message}"})

        say(f"{self.count:,} pairs, {self._half} tokens for each answer with its prompt")
        if self._reader.cut:
            say(f"{self._reader.cut:,} answers are longer than half of model.context: the rest is cut off")
        for sentence in self._left_out():
            say(sentence)


def _pairs(name: str) -> Iterator[tuple[Conversation, Conversation]]:
    with opened(name, compression_of(name)) as file:
        for where, row in rows_of(name, file, "preferences", FORMS):
            yield pair(where, row)


def pair(where: str, row: Any) -> tuple[Conversation, Conversation]:
    """(the chosen conversation, the rejected one) of a row. JobError: the row is no pair.

    Where answers are whole conversations, the messages with which both begin are the prompt.
    """
    if not isinstance(row, Mapping) or row.get("chosen") is None or row.get("rejected") is None:
        keys = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
        raise JobError(f"{where} has {keys}", FORMS)
    prompt, answers = row.get("prompt"), (row["chosen"], row["rejected"])
    if not any(all(isinstance(answer, kind) for answer in answers) for kind in (str, list)):
        raise JobError(f"{where}: chosen and rejected are not both texts, or both lists of messages", FORMS)
    if isinstance(answers[0], str):
        if not isinstance(prompt, str):
            raise JobError(f"{where}: chosen and rejected are texts, and prompt is not", FORMS)
        one, other = (conversation(where, {"prompt": prompt, "completion": answer}) for answer in answers)
        return one, other
    if isinstance(prompt, list):
        one, other = (conversation(where, {"prompt": prompt, "completion": answer}) for answer in answers)
        return one, other
    one, other = (conversation(where, {"messages": answer}) for answer in answers)
    same = 0
    while same < min(len(one.messages), len(other.messages)) and one.messages[same] == other.messages[same]:
        same += 1
    first, second = (Conversation(where, found.messages, found.tools, same) for found in (one, other))
    return first, second


def tokenise_preferences(
    job: Job, tokenizer: Tokenizer, context: int, folder: Path, tell: Tell, room: int = sys.maxsize
) -> TokenFile:
    """Read the job's pairs, write FOLDER/<sha256> of their rows and FOLDER/<sha256>.counts. JobError: a row that is no
    pair, or more than ``room`` bytes of rows."""
    pairs = Pairs(job, tokenizer, context)
    made = write_samples(job, pairs.samples, context, folder, tell, room)
    pairs.report(tell)
    return made
