"""Streams of tokens that can be read from any token on, from the original files of tokens or text.

A stream of text has a mark about every `_EVERY` tokens: the part of a file that begins there. A read begins at the mark
before it and tokenises the text again.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, BinaryIO

import fsspec
import numpy as np
import numpy.typing as npt

from ....job.data.tokenizer import Tokenizer
from ....job.data.tokenizer_folder import load_tokenizer
from ....proto.errors import FarflungError, JobError
from ....proto.messages.pieces import MOST
from ..files.documents import parts
from ..files.places import START, Place
from ..files.sources import compression_of, opened
from ..files.token_files import TokenPart, check_tokens
from .reading import Reading

_EVERY = 1 << 17  # tokens between two marks at least
_ONCE = 1 << 18  # characters that are tokenised at once, at least

Opened = Callable[[str, int | None], contextlib.AbstractContextManager[BinaryIO]]


class SourceChanged(FarflungError):
    """A file is not what it was when the run began."""


class SourceUnreachable(FarflungError):
    """The storage with a file does not answer now; the same request may succeed later."""


@dataclass(frozen=True)
class TokenFiles:
    """Files of tokens, one after the other, given as ``dtype``."""

    files: tuple[TokenPart, ...]
    dtype: str
    vocabulary: int
    kind: str = "tokens"

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return sum(part.tokens for part in self.files)

    @property
    def sizes(self) -> list[tuple[str, int | None]]:
        """(file name, bytes) of each file."""
        return [(part.name, part.size) for part in self.files]

    def read(self, start: int, count: int) -> npt.NDArray[Any]:
        """Tokens [start, start + count). SourceChanged: a file is gone or shorter than it was, or has a token that is
        not in the vocabulary. SourceUnreachable: its storage does not answer."""
        found = []
        for part, here in self._parts(start, count):
            dtype = np.dtype(part.dtype)
            begin, end = (part.start + at * dtype.itemsize for at in (here.start, here.stop))
            with _problems("tokens", part.name, part.size):
                raw = _range(part.name, begin, end)
            if len(raw) != end - begin:
                raise changed("tokens", part.name, f"it ends at byte {begin + len(raw)}")
            tokens = np.frombuffer(raw, dtype)
            check_tokens(part.name, tokens, self.vocabulary)
            found.append(tokens.astype(np.dtype(self.dtype).newbyteorder("<")))
        return np.concatenate(found)

    def names(self, start: int, count: int) -> str:
        """The files that these tokens come from."""
        return ", ".join(part.name for part, _ in self._parts(start, count))

    def _parts(self, start: int, count: int) -> Iterator[tuple[TokenPart, range]]:
        """The files that have some of the tokens [start, start + count), each with the range of its own tokens among
        these."""
        for part in self.files:
            if here := range(max(start, 0), min(start + count, part.tokens)):
                yield part, here
            start -= part.tokens


@dataclass(frozen=True)
class Texts:
    """The ``tokens`` of files of text, returned as ``dtype``. ``kind``: the key of ``[data]``; ``field``: the field of
    its records; ``name``: the tokenizer's. ``sizes``: (file name, bytes) of each file.

    For marks see `reading.py`.
    """

    kind: str
    field: str
    tokenizer: str
    dtype: str
    sizes: tuple[tuple[str, int | None], ...]
    marks: tuple[tuple[int, int, int, int, int], ...]
    _: KW_ONLY
    tokens: int

    def read(self, start: int, count: int) -> npt.NDArray[Any]:
        """Tokens [start, start + count). Raises the same errors as `TokenFiles.read`."""
        found, missing = [], count
        for tokens in self.stream(start):
            found.append(tokens[:missing])
            missing -= len(found[-1])
            if not missing:
                return np.concatenate(found)
        raise changed(self.kind, self.names(start, count), f"it has {missing} tokens less")

    def stream(self, start: int) -> Iterator[npt.NDArray[Any]]:
        """The tokens from ``start`` on."""
        at, number, *place = self.marks[self._mark(start)]
        first = (number, (place[0], place[1], place[2]))

        @contextlib.contextmanager
        def again(name: str, size: int | None) -> Iterator[BinaryIO]:
            with _problems(self.kind, name, size), fsspec.open(name, "rb", compression=compression_of(name)) as file:
                yield file

        for _, _, tokens in _tokenised(self.kind, self.sizes, self.field, _loaded(self.tokenizer), again, first):
            if at + len(tokens) > start:
                yield tokens[max(start - at, 0) :].astype(np.dtype(self.dtype).newbyteorder("<"))
            at += len(tokens)

    def names(self, start: int, count: int) -> str:
        """The files that these tokens come from: those between the mark before and the mark after."""
        last = bisect.bisect_left(self.marks, start + count, key=operator.itemgetter(0))
        files = range(self.marks[self._mark(start)][1], (*self.marks, (0, len(self.sizes) - 1))[last][1] + 1)
        return ", ".join(self.sizes[number][0] for number in files)

    def _mark(self, start: int) -> int:
        return bisect.bisect_right(self.marks, start, key=operator.itemgetter(0)) - 1


Stream = TokenFiles | Texts


def unread() -> Reading:
    """A new reading, at the first token."""
    return Reading(_EVERY)


def tokenised(
    kind: str,
    sizes: tuple[tuple[str, int | None], ...],
    field: str,
    tokenizer: Tokenizer,
    name: str,
    dtype: str,
    *,
    take: Callable[[npt.NDArray[Any]], None],
    reading: Reading | None = None,
    reached: Callable[[int, Place, int], None] = lambda number, place, tokens: None,
) -> Texts:
    """Tokenise files for the first time: ``take`` gets all tokens, in their order. JobError: a file has not the
    expected format. ``name``: the tokenizer's. ``reading``: the progress of an earlier start; reading continues there
    and adds marks to it. ``reached`` is called from time to time with a place (number of the file, place in it, tokens
    before it) up to which ``take`` has got everything."""

    @contextlib.contextmanager
    def first(file: str, _: int | None) -> Iterator[BinaryIO]:
        with opened(file, compression_of(file)) as found:
            yield found

    kept = reading or unread()
    count = kept.at.tokens

    def before(number: int, place: Place) -> None:
        reached(number, place, count)

    begin = (kept.at.number, kept.at.place)
    for number, place, tokens in _tokenised(kind, sizes, field, tokenizer, first, begin, before=before):
        if not kept.marks or count >= kept.marks[-1][0] + kept.every:
            kept.marks.append((count, number, *place))
        if len(kept.marks) > 2 * MOST:
            kept.marks, kept.every = kept.marks[::2], 2 * kept.every
        take(tokens.astype(np.dtype(dtype).newbyteorder("<"), copy=False))
        count += len(tokens)
    reached(len(sizes), START, count)
    return Texts(kind, field, name, dtype, sizes, tuple(kept.marks), tokens=count)


def _tokenised(
    kind: str,
    sizes: Sequence[tuple[str, int | None]],
    field: str,
    tokenizer: Tokenizer,
    open_file: Opened,
    first: tuple[int, Place],
    *,
    before: Callable[[int, Place], None] = lambda number, place: None,
) -> Iterator[tuple[int, Place, npt.NDArray[Any]]]:
    """(number of the file, place, tokens) of each part from ``first`` on. ``before`` is called with the place of the
    first of some parts that are tokenised together, when all tokens before it were taken."""
    places: list[tuple[int, Place]] = []
    texts: list[tuple[str, bool]] = []

    def encoded() -> Iterator[tuple[int, Place, npt.NDArray[Any]]]:
        if places:
            before(*places[0])
        for (number, place), tokens in zip(places, tokenizer.encode(texts), strict=True):
            yield number, place, tokens
        places.clear()
        texts.clear()

    length = 0
    for number in range(first[0], len(sizes)):
        with open_file(*sizes[number]) as file:
            for part in parts(kind, sizes[number][0], file, field, first[1] if number == first[0] else START):
                places.append((number, part.place))
                texts.append((part.text, part.last))
                length += len(part.text)
                if length >= _ONCE:
                    yield from encoded()
                    length = 0
    yield from encoded()


@functools.lru_cache(maxsize=2)
def _loaded(name: str) -> Tokenizer:
    return load_tokenizer(name)


@contextlib.contextmanager
def _problems(kind: str, name: str, size: int | None) -> Iterator[None]:
    """Converts errors when a file is read again to SourceChanged or SourceUnreachable."""
    try:
        yield
    except FileNotFoundError:
        raise changed(kind, name, "it is gone") from None
    except JobError as error:  # the file had no error at the start, so it has changed
        raise changed(kind, name, error.message) from None
    except UnicodeError as error:
        raise changed(kind, name, str(error)) from None
    except Exception as error:  # every kind of place has errors of its own, and some refuse a range that is not there
        if _another_size(name, size):
            raise changed(kind, name, "it has another size") from None
        raise SourceUnreachable(f"data.{kind}: cannot read {name} now: {error}") from error


def _range(name: str, begin: int, end: int) -> bytes:
    system, path = fsspec.url_to_fs(name)
    return bytes(system.cat_file(path, begin, end))


def _another_size(name: str, size: int | None) -> bool:
    """Whether the file has another size now; False where its storage does not tell the size."""
    with contextlib.suppress(Exception):
        system, path = fsspec.url_to_fs(name)
        system.invalidate_cache()
        return bool(system.size(path) != size)
    return False


def unchanged(stream: Stream) -> bool:
    """Whether every file is there and has the size that it had. The bytes are checked when they are read.
    SourceUnreachable: the storage of one does not answer."""
    for name, size in stream.sizes:
        try:
            system, path = fsspec.url_to_fs(name)
            if system.size(path) != size:
                return False
        except FileNotFoundError:
            return False
        except Exception as error:  # every kind of place has errors of its own
            raise SourceUnreachable(f"data.{stream.kind}: cannot read {name} now: {error}", "start again") from None
    return True


def changed(kind: str, names: str, how: str) -> SourceChanged:
    """The error for a file that has changed since the run began."""
    return SourceChanged(
        f"data.{kind}: {names} was changed since the run began: {how}",
        "put the file back as it was, or start another run with another --state",
    )
