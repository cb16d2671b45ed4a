"""Converts conversations to rows of marked tokens: the assistant's turns train, all other tokens are only context.

Every conversation is one document. With ``data.pack`` a row has several documents, and none attends to another
(job/data/marks.py); without it each document has a row of its own, padded to the row's length. A document longer than a
row is truncated at its end.
"""

from __future__ import annotations

import bisect
import contextlib
import operator
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ....job.data.marks import MARKED, marked, trained_in
from ....job.data.tokenizer import Tokenizer
from ....job.schema import Job
from ....proto.errors import JobError
from ....proto.process.progress import Meter, Tell
from ..data import TokenFile, counts_path, write_rows
from ..files.sources import text_files
from .packing import Spool, packed
from .rendering import Span
from .rows import FORMS, Conversation, conversations
from .template import Asked, Templates, find_template

_ONCE = 64  # conversations rendered and tokenised at once
LEFT_OUT = {
    "nothing": "have no turn of the assistant to learn",
    "border": "have a token that lies across the border of the assistant's turn",
    "cut away": "have nothing to learn before the sample's end",
}


class Reader:
    """Reads conversations from files as documents of marked tokens, and counts how many are kept, cut and left out."""

    def __init__(self, job: Job, tokenizer: Tokenizer, context: int) -> None:
        self._data, self._tokenizer, self._most = job.data, tokenizer, context + 1
        self._folder = None if job.data.tokenizer == "bytes" else Path(job.data.tokenizer)
        self.left_out: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.cut = self.ended = self.conversations = 0
        self.filled = 0
        """Tokens of all documents that are kept."""
        self._templates: Templates | None = None
        self._added = frozenset(tokenizer.added)

    def documents(self, names: Iterable[str]) -> Iterator[tuple[str, npt.NDArray[np.uint32]]]:
        """(file and line, document) one after the other. A document is no longer than a row and has at least one token
        that trains."""
        with contextlib.ExitStack() as stack:
            rows = (one for name in names for row in conversations(name) for one in self._turns(row))
            while some := list(islice(rows, _ONCE)):
                yield from self._read(some, stack)

    def _turns(self, row: Conversation) -> Iterator[Conversation]:
        """The row itself; with ``turns = "each"`` one conversation for each turn of the assistant, which ends with that
        turn."""
        self.conversations += 1
        if self._data.turns != "each" or not row.messages:
            yield row
            return
        ends = [at for at, one in enumerate(row.messages) if one["role"] == "assistant" and at >= row.begin]
        if not ends:
            yield row
        for end in ends:
            yield Conversation(row.where, row.messages[: end + 1], row.tools, row.begin)

    def _read(
        self, rows: Sequence[Conversation], stack: contextlib.ExitStack
    ) -> Iterator[tuple[str, npt.NDArray[np.uint32]]]:
        for row, found in zip(rows, self.marked(rows, stack), strict=True):
            if found is not None:
                yield row.where, found

    def marked(
        self, rows: Sequence[Conversation], stack: contextlib.ExitStack
    ) -> Iterator[npt.NDArray[np.uint32] | None]:
        """The document of each row; None where it has no token to learn and is counted as left out."""
        shown = self._rendered(rows, stack)
        texts = [text for text, _ in shown]
        for row, (text, spans), (tokens, places) in zip(rows, shown, self._tokenizer.located(texts), strict=True):
            if row.tokens is not None:
                yield self._limited(row.where, *row.tokens)
            else:
                yield self._marked(row.where, text, spans, tokens, places)

    def _rendered(
        self, rows: Sequence[Conversation], stack: contextlib.ExitStack
    ) -> list[tuple[str, tuple[Span, ...]]]:
        """For each row its text, and the spans of characters in it that are learnt."""
        turns = "all" if self._data.turns == "all" else "last"
        asked = [Asked(row.messages, row.tools, turns, row.begin) for row in rows if row.messages]
        answers = iter(self._opened(rows, stack).render(asked) if asked else ())
        found: list[tuple[str, tuple[Span, ...]]] = []
        for row in rows:
            if row.texts is not None:
                found.append(("".join(row.texts), ((len(row.texts[0]), sum(map(len, row.texts))),)))
            elif row.messages:
                said = next(answers)
                if said.error:
                    raise JobError(f"{row.where}: {said.error}", _HINT)
                found.append((said.text, said.spans))
            else:
                found.append(("", ()))
        return found

    def _opened(self, rows: Sequence[Conversation], stack: contextlib.ExitStack) -> Templates:
        if self._templates is None:
            template = None if self._folder is None else find_template(self._folder)
            if template is None:
                where = next(row.where for row in rows if row.messages)
                raise JobError(
                    f"{where}: messages need a chat template, and data.tokenizer = {self._data.tokenizer!r} has none",
                    "put chat_template.jinja into the tokenizer's folder: that of the instruction-tuned model of the "
                    "same family, or the one in docs/how-to/chat.md",
                )
            self._templates = Templates(template)
            stack.callback(self._close)
        return self._templates

    def _close(self) -> None:
        if self._templates is not None:
            self._templates.close()
            self._templates = None

    def _marked(
        self, where: str, text: str, spans: Sequence[Span], tokens: list[int], places: list[Span]
    ) -> npt.NDArray[np.uint32] | None:
        spans = [span for span in spans if span[1] > span[0]]
        if not spans:
            self._leave_out("nothing", where)
            return None
        borders = [border for span in spans for border in span]
        if any(_crosses(places, border) for border in borders):
            if not self._tokenizer.cuts:
                self._leave_out("border", where)
                return None
            tokens, places = self._in_pieces(text, borders)
        trains = [False] * len(tokens)
        for span in spans:
            for at in learnt(text, span, tokens, places, self._added):
                trains[at] = True
        return self._limited(where, *self._with_end(text, spans[-1], tokens, trains))

    def _with_end(self, text: str, span: Span, tokens: list[int], trains: list[bool]) -> tuple[list[int], list[bool]]:
        """The tokens with the token that ends a text appended, where the last turn ends with the text and no end token
        follows."""
        end = self._tokenizer.end
        if end is None or text[span[1] :].strip() or not any(trains):
            return tokens, trains
        last = max(at for at, one in enumerate(trains) if one)
        if tokens[last] in self._added or tokens[last] == end:
            return tokens, trains
        self.ended += 1
        return [*tokens[: last + 1], end], [*trains[: last + 1], True]

    def _in_pieces(self, text: str, borders: Sequence[int]) -> tuple[list[int], list[Span]]:
        """(tokens, their spans) of a text that is tokenised in pieces cut at ``borders``, as between prompt and
        answer."""
        cuts = sorted({0, *borders, len(text)})
        pieces = [text[a:b] for a, b in pairwise(cuts)]
        tokens: list[int] = []
        places: list[Span] = []
        for begin, (some, where) in zip(cuts, self._tokenizer.located(pieces), strict=False):
            tokens += some
            places += [(begin + a, begin + b) for a, b in where]
        return tokens, places

    def _limited(self, where: str, tokens: Sequence[int], trains: Sequence[bool]) -> npt.NDArray[np.uint32] | None:
        """The document, truncated to a row; None where no token that trains is left."""
        if len(tokens) and max(tokens) >= self._tokenizer.vocabulary:
            limit = self._tokenizer.vocabulary
            raise JobError(f"{where} has the token {max(tokens)}, but data.tokenizer has only {limit}")
        if not any(trains[1:]):
            self._leave_out("nothing", where)
            return None
        if not any(trains[1 : self._most]):
            self._leave_out("cut away", where)
            return None
        self.cut += len(tokens) > self._most
        return marked(tokens[: self._most], trains[: self._most])

    def _leave_out(self, why: str, where: str) -> None:
        self.left_out[why] += 1
        self.examples.setdefault(why, where)

    def report(self, rows: int, trained: int, tell: Tell) -> None:
        """Tell how many conversations became samples, and how many were cut or left out and why."""

        def say(message: str) -> None:
            tell({"event": "notice", "time": time.time(), "message": f"data.chat: {message}"})

        full = 100 * self.filled / max(1, rows * self._most)
        many = f"{self.conversations:,} conversations are {rows:,} samples of {self._most - 1} tokens"
        say(f"{many}, {full:.0f} % of them filled; {trained:,} tokens train")
        if self.cut:
            say(f"{self.cut:,} conversations are longer than model.context = {self._most - 1}: the rest is cut off")
        for why, count in self.left_out.items():
            say(f"{count:,} conversations {LEFT_OUT[why]} and are left out, the first of them {self.examples[why]}")
        if self.ended:
            ends = self._tokenizer.ending
            say(f"no token ends the last turn of {self.ended:,} conversations: {ends} is added, and learnt")


_HINT = (
    "correct or remove the row; where the template shows earlier turns otherwise (without what the assistant thought), "
    'write turns = "each" or "last" under [data]'
)


def _crosses(places: Sequence[Span], border: int) -> bool:
    """Whether a token lies on both sides of a border."""
    at = bisect.bisect_right(places, border, key=operator.itemgetter(1))
    return any(a < border < b for a, b in places[at : at + 4])


def learnt(text: str, span: Span, tokens: Sequence[int], places: Sequence[Span], added: Collection[int]) -> list[int]:
    """The numbers of the tokens of an assistant's turn that are learnt: all tokens in it, except blanks that a template
    writes after the token that ends the turn."""
    first = bisect.bisect_left(places, span[0], key=operator.itemgetter(0))
    inside = []
    for at in range(first, len(places)):
        if places[at][0] >= span[1]:
            break
        inside.append(at)
    ends = [at for at in inside if tokens[at] in added]
    if ends and not text[places[ends[-1]][1] : span[1]].strip():
        inside = [at for at in inside if at <= ends[-1]]
    return inside


def tokenise_chat(
    job: Job, tokenizer: Tokenizer, context: int, folder: Path, tell: Tell, room: int = sys.maxsize
) -> TokenFile:
    """Read the job's conversations, write FOLDER/<sha256> of their rows and FOLDER/<sha256>.counts. JobError: a row
    that is no conversation, or no token that trains."""
    folder.mkdir(parents=True, exist_ok=True)
    meter = Meter("tokenising", "tokens", tell)
    reader = Reader(job, tokenizer, context)
    with contextlib.ExitStack() as stack:

        def read(patterns: Sequence[str]) -> Spool:
            spool = stack.enter_context(contextlib.closing(Spool(folder)))
            spool.add(reader.documents(source.name for source in text_files("chat", patterns)), meter)
            if not spool.lengths:
                reader.report(0, 0, tell)
                message = f"nothing to learn in {', '.join(patterns)}: no conversation has a turn of the assistant's"
                raise JobError(f"data.chat: {message}", FORMS)
            return spool

        training = read(job.data.source()[1])
        if job.data.held_out():
            validation = read(job.data.held_out())
            kept, held = list(range(len(training.lengths))), list(range(len(validation.lengths)))
        else:
            assert isinstance(job.data.validation, float)
            validation = training
            kept, held = training.split(job.data.validation)
        several, most = job.data.pack, context + 1
        ways = [packed([spool.lengths[one] for one in some], most, several)
                for spool, some in ((training, kept), (validation, held))]  # fmt: skip
        size = 4 * most * sum(map(len, ways))
        if size > room:
            raise JobError(
                f"data.chat: {size / 1e9:.3g} GB of samples, more than the {room / 1e9:.3g} GB that may be kept here",
                "raise data.cache_gb, or make room",
            )
        counts: list[npt.NDArray[np.uint32]] = []

        def rows() -> Iterator[npt.NDArray[np.uint32]]:
            for spool, some, way in zip((training, validation), (kept, held), ways, strict=True):
                for block in spool.rows(some, way, most):
                    counts.append(trained_in(block))
                    yield block

        path, digest = write_rows(folder, rows())
        counted = np.concatenate(counts)
        counts_path(path).write_bytes(counted.astype("<u4").tobytes())
    samples, trained = len(ways[0]), int(counted[: len(ways[0])].sum())
    reader.filled = sum(training.lengths) + (sum(validation.lengths) if validation is not training else 0)
    reader.report(len(counted), int(counted.sum()), tell)
    return TokenFile(path, digest, MARKED, context, samples, len(ways[1]), packed=several, trained=trained)
