"""Audits: a member sometimes recomputes a publisher's sum from the contributions that the result names.

A result carries the digests of the contributions, of its own bytes and of the publisher's server error after it. A
member that has staged it may ask the publisher, at random and unpredictably, to show all of these; the publisher still
holds them. The member compares the shown bytes with the digests. If it finds a lie, it passes the same bytes on as
evidence, and the other members check them too: a liar, or a false accuser, is caught by more than one member.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import xxhash
from torch import Tensor

from .... import compress
from ....compress import CodecError
from ....compress.codec import bytes_tensor, tensor_bytes
from ...state.sections.room import leave
from ..arithmetic.aggregator import PUBLISHER
from ..arithmetic.exchange import Exchange, error_digest
from ..protocol.messages import Contribution, Part, Result
from ..protocol.payloads import Refused, pieces_of, segments

PROVEN = 5
"""Points for a lie that this node can prove to others."""
REMEMBERED = 64
"""Digests of results are kept for so many rounds, for evidence that arrives late."""
PATIENCE = 20
"""Rounds within which a publisher must show a sum that it was asked for."""
TOLERANCE = 1e-3
"""Tolerated difference, as a fraction of the sum's norm: an encoder may break ties differently on another device."""


class NotShown(Exception):
    """The shown bytes do not match the result's digests: they prove nothing."""


@dataclass(frozen=True)
class _Entry:
    result: Result
    """The result without its payload."""
    before: int
    """Digest of the server error before the sum."""


@dataclass(frozen=True)
class _Material:
    """The data of one of its parts that a publisher keeps, to show it to members that ask."""

    result: Result
    contributions: tuple[Contribution, ...]
    error: Tensor | None
    holders: set[str] = field(default_factory=set)


class Auditor:
    """One member's audits of a section: it remembers results, decides whom to ask, and checks the answers."""

    def __init__(self, exchange: Exchange, share: float, dice: Callable[[], float] | None = None) -> None:
        """``share``: the fraction of a publisher's traffic that audits may add; 0: no audits."""
        self.exchange, self.plan = exchange, exchange.plan
        self._dtype = exchange.section.residuals.dtype
        self._others = set(self.plan.members) - {self.plan.members[exchange.me]}
        exchange.aggregator.error_shown = self._may_show
        self._possible = self.plan.pattern == "publishers" and self.exchange.terms.robust.kind != "centered"
        self._share = share
        self._dice = dice or random.SystemRandom().random
        self._entries: dict[tuple[int, int], _Entry] = {}
        self._errors: dict[int, int] = {}
        """The digest of each part's server error after the last round that counted."""
        self._kept: dict[tuple[int, int], _Material] = {}
        self._asked: dict[str, tuple[int, int, bool]] = {}
        """Publisher -> (round, part, whether it certainly received the request) of the sum that it was asked to
        show."""
        self._heard: set[tuple[str, int, int]] = set()

    # ---- as a member -----------------------------------------------------------------------

    def staged(self, round: int, result: Result) -> None:
        """This node has staged a result of the open round."""
        if not self._possible:
            return
        self._entries[round, result.part] = _Entry(replace(result, payload=b""), self._errors.get(result.part, 0))
        publisher = self._publisher(result.part)
        asked = self._asked.get(publisher)
        if asked is not None and round == asked[0] + 1:
            if self.exchange.me in result.contributors:  # it counted a contribution that was sent after the request
                self._asked[publisher] = (*asked[:2], True)
            else:
                del self._asked[publisher]

    def wants(self, round: int, part: int) -> bool:
        """Whether to ask the part's publisher to show its sum of the open round. If True, the caller must ask it."""
        result, publisher = self._entries.get((round, part)), self._publisher(part)
        if result is None or not result.result.sizes or publisher in self._asked or not self._share:
            return False
        # In gradient mode this part, or others, may not have been offered yet: their sizes follow from the part's.
        size = self.exchange.encoder.size_of(part) or sum(result.result.sizes)
        one, members = self.plan.parts[part], len(self.plan.members)
        length = one.stop - one.start
        shown = (members + 1) * size + (self._dtype.itemsize * length if result.before else 0)
        whole = size * sum(other.stop - other.start for other in self.plan.parts_in(round)) / length
        sends = 2 * (members - 1) / members * whole
        if self._dice() >= self._share * sends / shown / (members - 1):
            return False
        self._asked[publisher] = (round, part, False)
        return True

    def overdue(self, round: int) -> Iterator[tuple[str, str]]:
        """(publisher, sentence) for each publisher that did not show a sum although it certainly got the request and
        held the data."""
        for publisher, (when, part, certain) in list(self._asked.items()):
            if round - when >= PATIENCE:
                del self._asked[publisher]
                if certain:
                    yield publisher, f"does not show what went into part {part} of round {when}"

    def finished(self, round: int, results: Sequence[Result]) -> None:
        """The open round was applied; the server errors that its results name count from now on."""
        if self.exchange.applier.counts:
            self._errors.update({result.part: result.error for result in results if result.sizes})
        self._entries = {key: entry for key, entry in self._entries.items() if key[0] > round - REMEMBERED}
        self._heard = {key for key in self._heard if key[1:] in self._entries}

    def answered(self, publisher: str, round: int, part: int) -> bool:
        """A publisher shows a sum. False: it was not asked to."""
        if self._asked.get(publisher, ())[:2] != (round, part):
            return False
        del self._asked[publisher]
        return True

    def first_time(self, sender: str, round: int, part: int) -> bool:
        """Whether evidence of this sum comes from this member for the first time, and can be judged here."""
        key = (sender, round, part)
        if (round, part) not in self._entries or key in self._heard:
            return False
        self._heard.add(key)
        return True

    # ---- as the publisher ------------------------------------------------------------------

    def keep(self, round: int, result: Result, sent: Mapping[int, Contribution]) -> None:
        """This node has decided a part of the open round: keep its data, and drop those of earlier rounds."""
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] == round}
        if self._possible and result.sizes and self._share:
            counted = tuple(sent[index] for index in result.contributors)
            self._kept[round, result.part] = _Material(result, counted, self.exchange.errors.get(result.part))

    def held(self, sender: str, round: int, part: int) -> None:
        """``sender`` has staged the result, so it has sent its request to see the sum if it wants to. When all members
        have staged it, no more requests come, and the data are dropped."""
        kept = self._kept.get((round, part))
        if kept is not None:
            kept.holders.add(sender)
            if kept.holders.issuperset(self._others):
                del self._kept[round, part]

    def drop(self) -> None:
        """A later view has started: nobody asks for data of this one's sums any more."""
        self._kept = {}

    def _may_show(self, part: int) -> bool:
        return any(kept == part for _, kept in self._kept)

    def shown(self, round: int, part: int) -> list[bytes]:
        """The pieces that show a sum: those of the result, of each contribution, and the server error. Empty: the data
        have been dropped."""
        kept = self._kept.get((round, part))
        if kept is None:
            return []
        pieces = [bytes(one) for one in pieces_of(kept.result.payload, kept.result.sizes)]
        for sent in kept.contributions:
            pieces += [bytes(one) for one in pieces_of(sent.payload, sent.sizes)]
        if kept.error is None:
            return [*pieces, b""]
        pieces.append(bytes(tensor_bytes(kept.error)))
        leave(kept.error)
        return pieces

    # ---- the check -------------------------------------------------------------------------

    def check(self, round: int, part: int, payload: memoryview, sizes: Sequence[int]) -> str:
        """A sentence that says what is wrong with a shown sum; empty: nothing. Raises NotShown if the bytes do not
        match the result's digests."""
        entry = self._entries[round, part]
        told, exchange, one = entry.result, self.exchange, self.plan.parts[part]
        count, who = len(segments(one)), told.contributors
        if len(sizes) != count * (1 + len(who)) + 1 or sum(sizes) != payload.nbytes:
            raise NotShown("another number of pieces than went in")
        pieces = list(pieces_of(payload, sizes))
        blobs = [pieces[i : i + count] for i in range(0, len(pieces) - 1, count)]
        if [_digest(some) for some in blobs] != [told.digest, *told.digests]:
            raise NotShown("other bytes than the result's digests say")
        before = pieces[-1]
        if (_digest([before]) if len(before) else 0) != entry.before:
            raise NotShown("another server error than the result before left")
        if len(before) not in (0, wanted := self._dtype.itemsize * (one.stop - one.start)):
            return f"it keeps a server error of {len(before)} bytes, where the part's has {wanted}"
        sent = [
            (i, Contribution(tuple(some), tuple(map(len, some)), 0)) for i, some in zip(who, blobs[1:], strict=True)
        ]
        try:
            for index, some in sent:
                exchange.aggregator.norm(some.payload, some.sizes, one, self.plan.members[index])
            return self._compare(round, one, told, sent, blobs[0], before)
        except (Refused, CodecError) as problem:
            return f"it counted or published what nobody can: {problem}"

    def _compare(
        self,
        round: int,
        part: Part,
        told: Result,
        sent: Sequence[tuple[int, Contribution]],
        published: Sequence[bytes | memoryview],
        before: bytes | memoryview,
    ) -> str:
        exchange = self.exchange
        sources = exchange.aggregator.sources(part, sent)
        if sources.factors != told.factors:
            return "it drew contributions in by other factors than the robust average does"
        device = exchange.section.g.device
        error = bytes_tensor(before, self._dtype, device) if len(before) else None
        keeps, length = exchange.terms.keeps_errors(round), part.stop - part.start
        left = torch.zeros(length, device=device, dtype=self._dtype) if keeps or error is not None else None
        away = whole = 0.0
        for here, blob in zip(segments(part), published, strict=True):
            inside = slice(here.start - part.start, here.stop - part.start)
            total = exchange.aggregator.sum(sources, here).clone()
            if error is not None:
                total.add_(error[inside])
            made = b"".join(exchange.encoder.encode(total, round, here.start, PUBLISHER))
            whole += float(torch.linalg.vector_norm(total)) ** 2
            if left is not None:
                lost = total.clone()
                compress.add(blob, lost, -1.0)
                left[inside] = exchange.aggregator.kept_error(lost, here.start, round)
            if made != bytes(blob):
                compress.decode_into(blob, total)
                compress.add(made, total, -1.0)
                away += float(torch.linalg.vector_norm(total)) ** 2
        off = math.sqrt(away / max(whole, 1e-30))
        if not off <= TOLERANCE:
            return f"its result is {off:.2g} of the sum's norm away from the sum of what it counted"
        return "" if error_digest(left) == told.error else "what it keeps as server error is not what the sum left"

    def _publisher(self, part: int) -> str:
        return self.plan.parts[part].publisher


def _digest(blobs: Sequence[bytes | memoryview]) -> int:
    digest = xxhash.xxh3_64()
    for blob in blobs:
        digest.update(blob)
    return digest.intdigest()
