"""Decides which piece of a state is asked of which holder: a pure machine, fed with arrivals and the time.

Tensors are cut into pieces. Each holder gets the next piece that it can serve from one queue, with as many under way as
it sends in about two seconds, so that several holders serve one joiner, and joiners spread over holders. If a holder
stalls or is lost, its pieces go back to the front of the queue, for the others. Some holders are also asked for the
digests of all pieces. A piece whose digest differs from that of the majority is refused, and its sender not asked
again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

PIECE = 3 << 16
"""Bytes of a piece: a message of one frame, which takes a second at 1.5 Mbit/s."""
STALL_SECONDS = 4.0
"""A holder stalls if it sends nothing for so many seconds, or for 8 times its longest pause so far if that is more."""
LONGEST_PATIENCE = 60.0
STRIKES = 5
"""A holder is given up after so many stalls and losses in a row; each doubles its patience and its pause."""
WITNESSES = 3
"""How many holders are asked for digests."""
_LEAST, _MOST = 2 * PIECE, 64 * PIECE  # bytes under way from one holder
_MOST_PIECES = 512
_AHEAD_SECONDS = 2.0


@dataclass(frozen=True)
class Piece:
    """A range of bytes of a tensor's concatenated vectors. Without a name: the digests of all pieces."""

    name: str
    offset: int = 0
    length: int = 0


DIGESTS = Piece("")


def pieces_of(name: str, size: int) -> list[Piece]:
    """The pieces of a tensor of ``size`` bytes."""
    return [Piece(name, start, min(PIECE, size - start)) for start in range(0, size, PIECE)]


def piece_at(name: str, size: int, offset: int) -> Piece | None:
    """The piece of a tensor of ``size`` bytes that begins at ``offset``; None if no piece begins there."""
    if offset % PIECE or not 0 <= offset < size:
        return None
    return Piece(name, offset, min(PIECE, size - offset))


@dataclass
class _Source:
    """One holder. ``since``: since when a piece is awaited from it; ``heard``: when it last sent something."""

    under_way: dict[Piece, None] = field(default_factory=dict)
    since: float = 0.0
    heard: float = 0.0
    received: int = 0
    """Bytes received since ``since``."""
    longest: float = 0.0
    strikes: int = 0
    paused_until: float = 0.0
    left: str = ""
    """Why it is not asked any more; empty: it may be asked."""

    def room(self, now: float) -> float:
        """How many more bytes may be asked of it now."""
        if len(self.under_way) >= _MOST_PIECES:
            return 0
        rate = self.received / max(now - self.since, 1e-3)
        return max(_LEAST, min(_MOST, rate * _AHEAD_SECONDS)) - sum(piece.length for piece in self.under_way)

    @property
    def patience(self) -> float:
        return min(LONGEST_PATIENCE, max(STALL_SECONDS, 8 * self.longest) * 2.0**self.strikes)


class Fetching:
    """One joiner's fetch of some tensors.

    ``sizes``: bytes of each tensor; ``holders``: the nodes that can serve it. ``me``: this node's name, which decides
    which holder is asked first.
    """

    def __init__(
        self, sizes: Mapping[str, int], holders: Mapping[str, Sequence[str]], me: str, compares: bool = False
    ) -> None:
        """``compares``: some pieces may be here already, so none is asked for until a holder has sent its digests."""
        names = sorted({name for found in holders.values() for name in found})
        begin = sum(me.encode()) % max(1, len(names))
        self.sources = {name: _Source() for name in names[begin:] + names[:begin]}
        self._queues: dict[tuple[str, ...], deque[Piece]] = {}
        self._holders = {name: tuple(found) for name, found in holders.items()}
        self.missing: set[Piece] = set()
        for name, size in sizes.items():
            cut = pieces_of(name, size)
            self.missing.update(cut)
            self._queues.setdefault(self._holders[name], deque()).extend(cut)
        self._came: dict[Piece, tuple[str, int]] = {}
        self._said: dict[str, Mapping[Piece, int]] = {}
        self._witnesses = list(self.sources)[:WITNESSES] if self.missing else []
        self._to_ask = set(self._witnesses)
        self.liars: list[tuple[str, Piece]] = []
        """Holders whose digest disagrees with the majority's, until they are refused."""
        self.troubles: list[tuple[str, str]] = []
        """(holder, what went wrong), not yet told to the person."""
        self._bytes, self._here = sum(sizes.values()), 0
        self._compares = compares

    @property
    def done(self) -> bool:
        """Whether all pieces are here, and no digests are awaited that could show one of them to be wrong."""
        return not self.missing and all(
            name in self._said or self.sources[name].left or self.sources[name].strikes for name in self._witnesses
        )

    @property
    def reached(self) -> tuple[int, int]:
        """(bytes that are here, bytes of all pieces)."""
        return self._here, self._bytes

    @property
    def failure(self) -> str:
        """If some piece has no usable holder left: its holders and why each failed. Else empty."""
        for holders, queue in self._queues.items():
            if queue and all(self.sources[name].left for name in holders):
                return "; ".join(f"{name} {self.sources[name].left}" for name in holders)
        return ""

    def ask(self, now: float) -> list[tuple[str, Piece]]:
        """The (holder, piece) requests to send now. Also treats holders that are silent for too long as lost."""
        for name, source in self.sources.items():
            if source.under_way and now - max(source.since, source.heard) > source.patience:
                self.lost(name, f"sent nothing for {now - max(source.since, source.heard):.0f} s", now)
        asked = []
        for name, source in self.sources.items():
            if source.left or now < source.paused_until:
                continue
            if name in self._to_ask:
                self._to_ask.discard(name)
                asked.append((name, DIGESTS))
                self._await(source, DIGESTS, now)
            if self._waits_for_digests:
                continue
            queues = [queue for holders, queue in self._queues.items() if name in holders]
            while source.room(now) > 0:
                piece = next((queue.popleft() for queue in queues if queue), None)
                if piece is None:
                    break
                if piece in self.missing:  # else it has arrived meanwhile
                    asked.append((name, piece))
                    self._await(source, piece, now)
        return asked

    def came(self, name: str, piece: Piece, digest: int, now: float) -> bool:
        """A piece came from a holder. Returns whether its bytes are to be used."""
        source = self.sources[name]
        self._heard(source, piece, now)
        source.received += piece.length
        source.strikes, source.paused_until = 0, 0.0
        if piece not in self.missing or source.left:
            return False
        expected = self._expected(piece)
        if expected is not None and digest != expected:
            self._lied(name, piece)
            return False
        self.missing.discard(piece)
        self._here += piece.length
        self._came[piece] = (name, digest)
        return True

    def coming(self, name: str, now: float) -> None:
        """A holder says that it is still loading the requested tensor: it counts as heard."""
        if name in self.sources:
            self.sources[name].heard = now

    def spoiled(self, name: str, piece: Piece, now: float) -> None:
        """A piece was truncated, or did not match the digest that came with it: ask for it again."""
        self._heard(self.sources[name], piece, now)
        self._again([piece])
        self._strike(self.sources[name], f"sent {piece.name} at {piece.offset} damaged", now)

    def lacks(self, name: str, piece: Piece, now: float) -> None:
        """A holder does not have the tensor after all."""
        source = self.sources[name]
        source.left = f"does not hold {piece.name or 'what was asked for'}"
        self._release(source)

    def digests(self, name: str, said: Mapping[Piece, int], now: float) -> None:
        """Take a holder's digests. A piece that differs from the majority's digest is asked of another holder."""
        self._heard(self.sources[name], DIGESTS, now)
        self._said[name] = said
        for piece, (sender, digest) in list(self._came.items()):
            expected = self._expected(piece)
            if piece in self._came and expected is not None and digest != expected:
                self._lied(sender, piece)

    def here(self, name: str, piece: Piece, digest: int) -> None:
        """A piece is here, with the digest that holder ``name`` has for it."""
        if piece in self.missing:
            self.missing.discard(piece)
            self._here += piece.length
            self._came[piece] = (name, digest)

    @property
    def _waits_for_digests(self) -> bool:
        witnesses = (self.sources[name] for name in self._witnesses)
        return self._compares and not self._said and not all(one.left or one.strikes for one in witnesses)

    def lost(self, name: str, why: str, now: float) -> None:
        """A holder is silent or its connection broke: give its pieces to the others."""
        source = self.sources.get(name)
        if source is not None and not source.left:
            self._release(source)
            self._strike(source, why, now)

    def moved(self, present: Collection[str]) -> None:
        """A new view: pieces under way are lost, and holders that are not ``present`` are gone."""
        for name, source in self.sources.items():
            self._release(source)
            source.paused_until = 0.0
            if name not in present and not source.left:
                source.left = "has left"

    # ---- inside ----------------------------------------------------------------------------

    def _await(self, source: _Source, piece: Piece, now: float) -> None:
        if not source.under_way:
            source.since, source.received = now, 0
        source.under_way[piece] = None

    def _heard(self, source: _Source, piece: Piece, now: float) -> None:
        if piece in source.under_way:
            source.longest = max(source.longest, now - max(source.since, source.heard))
            del source.under_way[piece]
        source.heard = now

    def _strike(self, source: _Source, why: str, now: float) -> None:
        source.strikes += 1
        self.troubles += [(name, why) for name, one in self.sources.items() if one is source]
        source.paused_until = now + 2.0 ** (source.strikes - 1)
        if source.strikes >= STRIKES:
            source.left = why

    def _release(self, source: _Source) -> None:
        if DIGESTS in source.under_way:
            self._to_ask.update(name for name, one in self.sources.items() if one is source)
        self._again([piece for piece in source.under_way if piece.name])
        source.under_way.clear()

    def _again(self, pieces: Sequence[Piece]) -> None:
        for piece in reversed(pieces):
            if piece in self.missing:
                self._queues[self._holders[piece.name]].appendleft(piece)

    def _lied(self, name: str, piece: Piece) -> None:
        source = self.sources[name]
        if not source.left:
            self.liars.append((name, piece))
            source.left = f"sent {piece.name} at {piece.offset} with bytes that the other holders do not have"
        self._release(source)
        # Its other pieces are not trusted either.
        doubtful = [one for one, (sender, _) in self._came.items() if sender == name]
        for one in doubtful:
            del self._came[one]
            self._here -= one.length
        self.missing.update(doubtful)
        self._again(sorted({piece, *doubtful}, key=lambda one: (one.name, one.offset)))

    def _expected(self, piece: Piece) -> int | None:
        """The digest of a piece that more than half of the holders that know it give, and at least two; else None."""
        votes = Counter(chain.from_iterable([said[piece]] for said in self._said.values() if piece in said))
        for digest, count in votes.most_common(1):
            if count >= 2 and 2 * count > votes.total():
                return digest
        return None
