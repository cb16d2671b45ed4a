"""The way in which a section's rounds add up: encodings are decoded and summed, or (phased.py, masked.py) summed
without decoding, in phases.

An exchange (exchange.py) has a way for each round and calls it for all that differs between the ways.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from ..... import compress
from ...protocol.messages import Contribution, Decide, Part, Result, Sent
from ...protocol.payloads import Refused, blobs_of, segment_at, segments
from ..aggregator import Aggregator, Sources
from ..applier import Applier, TakeOff
from ..encoder import Encoder
from ..update import Encoded, Update, void


class Way(Protocol):
    """The interface of a way. A way neither waits nor sends."""

    def offer(self, round: int, part: Part) -> Contribution:
        """This node's contribution to a part, at the beginning of a round."""

    def advance(self, result: Result) -> Contribution:
        """This node's contribution to the phase after the one that ``result`` answers."""

    def decide(self, round: int, decide: Decide) -> tuple[Result, list[Refused]]:
        """Sum the contributions to a part, as its publisher. Returns the result, and the refused members."""

    def check(self, round: int, found: Mapping[int, Result], contributions: Sent) -> None:
        """Check that the round may be applied. Raises Refused, which names the member whose result or contribution
        is wrong."""

    def updates(self, round: int, found: Mapping[int, Result], contributions: Sent) -> Iterator[tuple[slice, Update]]:
        """The update D of a checked round in pieces: (slice of the section, its values), each valid until the next
        is asked for."""

    def outcomes(self, results: Sequence[Result]) -> Iterator[tuple[Part, bool]]:
        """(part, whether this node was counted in it) for each part that was not void."""

    def own_pieces(self, part: Part) -> Iterator[tuple[slice, TakeOff]]:
        """For each piece of a part, cut as in ``updates``: a function that subtracts this node's contribution as the
        group decoded it."""

    def applied(self) -> None:
        """The round was applied."""


class Summed:
    """Encodings are decoded and summed: by a part's publisher, or in all-to-all by every member."""

    def __init__(self, encoder: Encoder, aggregator: Aggregator, applier: Applier) -> None:
        self._encoder, self._aggregator, self._applier = encoder, aggregator, applier
        self._terms = encoder.terms

    def offer(self, round: int, part: Part) -> Contribution:
        return self._encoder.contribution(round, part)

    def advance(self, result: Result) -> Contribution:
        raise RuntimeError(f"part {result.part} of {self._terms.plan.section} has no next phase")

    def decide(self, round: int, decide: Decide) -> tuple[Result, list[Refused]]:
        return self._aggregator.decide(round, decide)

    def check(self, round: int, found: Mapping[int, Result], contributions: Sent) -> None:
        plan, aggregator = self._terms.plan, self._aggregator
        for result in () if self._terms.follows else found.values():
            part = plan.parts[result.part]
            if plan.pattern == "all_to_all":
                for index in result.contributors:
                    sent, own = contributions[part.index, index], self._encoder.own.get(part.index)
                    if own is not None and own.payload is sent.payload:
                        continue  # its bytes were made here
                    aggregator.norm(sent.payload, sent.sizes, part, plan.members[index])
            elif part.publisher != self._terms.name:
                norm = aggregator.norm(result.payload, result.sizes, part, part.publisher)
                if not math.isnan(norm):
                    aggregator.check_result(part, norm)
                if self._terms.robust and result.sizes and not result.factors:
                    raise Refused(part.publisher, "a robust result that does not say how much of each counted")

    def updates(self, round: int, found: Mapping[int, Result], contributions: Sent) -> Iterator[tuple[slice, Update]]:
        plan, gradient = self._terms.plan, self._terms.gradient
        for result in found.values():
            part, who = plan.parts[result.part], result.contributors
            together = plan.pattern == "all_to_all"
            sent = [(index, contributions[part.index, index]) for index in who] if together else []
            if gradient and (
                any(not one.sizes for _, one in sent) or len(sent) < len(plan.members) if together else not result.sizes
            ):
                yield slice(part.start, part.stop), void(part.stop - part.start)
                continue
            if together:
                sources = self._aggregator.sources(part, sent)
                self._drawn_in(part.index, who, sources.factors)
            else:
                sources = Sources([(1.0, blobs_of(result.payload, result.sizes, part, part.publisher))])
                self._drawn_in(part.index, who, result.factors)
            yield from ((here, self._update(round, sources, here)) for here in segments(part))

    def _update(self, round: int, sources: Sources, here: slice) -> Update:
        """A segment of D, in the form that takes the least work to apply."""
        if self._terms.codec_of(round).sparse and not sources.center:
            return self._aggregator.terms_of(sources, here)
        if self._terms.plan.pattern != "all_to_all":
            ((_, blobs),) = sources.terms
            return Encoded(blobs[here.start], self._encoder.piece(here), not self._terms.follows)
        return Update(self._aggregator.sum(sources, here))

    def _drawn_in(self, part: int, contributors: Sequence[int], factors: Sequence[float]) -> None:
        me = self._terms.me
        self._applier.factors[part] = factors[contributors.index(me)] if factors and me in contributors else 1.0

    def outcomes(self, results: Sequence[Result]) -> Iterator[tuple[Part, bool]]:
        for result in results:
            yield self._terms.plan.parts[result.part], self._terms.me in result.contributors

    def own_pieces(self, part: Part) -> Iterator[tuple[slice, TakeOff]]:
        sent = self._encoder.own[part.index]
        for start, blob in blobs_of(sent.payload, sent.sizes, part, self._terms.name).items():
            yield segment_at(part, start), partial(compress.add, blob, weight=-1.0, known=True)

    def applied(self) -> None:
        """Nothing is kept from round to round."""
