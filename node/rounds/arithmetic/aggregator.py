"""How a publisher sums contributions: which ones may count, their sum, and the server error of its encoding.

All sums are in sender order, with separate multiplications and additions, so that every member computes the same bits
from the same bytes. All of this goes segment by segment.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
import xxhash
from torch import Tensor

from .... import compress
from ....compress.codec import norms, tensor_bytes
from ...state.sections.room import away, leave
from ...wire.api import Blob
from ..protocol.messages import Contribution, Decide, Part, Result
from ..protocol.payloads import Payload, Refused, absurd_norm, blobs_of, contribution_of, segment_at, segments
from .encoder import Encoder, is_finite
from .outliers import FACTOR, GRADIENT_FACTOR, Norms
from .robust import exact_square, factors_of
from .update import Terms

PUBLISHER = 1 << 20
"""The ``rank`` argument with which a publisher encodes a sum; no member has this rank."""
Offer = Contribution | Result
"""What a publisher adds up: a member's contribution, or, in two levels, the sum of another region."""


class Sources(NamedTuple):
    """The terms of a sum: for each its weight and its encoded segments by their first element. With a robust average
    also the factor of each contribution, and the weight of the centre, which replaces the rest."""

    terms: list[tuple[float, dict[int, bytes | memoryview]]]
    factors: tuple[float, ...] = ()
    center: float = 0.0


class Aggregator:
    """One member's sums of a section's rounds, and the errors of those that it publishes."""

    def __init__(self, encoder: Encoder) -> None:
        self.terms, self._encoder = encoder.terms, encoder
        section, plan = encoder.section, encoder.terms.plan
        self._device = section.g.device
        self._empty: Callable[[int], Tensor] = partial(torch.empty, device=self._device)
        self._residuals, dtype = section.residuals, section.residuals.dtype
        self._room_for_error: Callable[[int], Tensor] = partial(torch.empty, device=self._device, dtype=dtype)
        """Makes the centre, or, in the dtype of residuals, a server error. If an island's ranks keep the section, it
        lies outside of this process, as the section does."""
        if section.room is not None:
            self._empty, self._room_for_error = away, partial(away, dtype=dtype)
        centered = self.terms.robust.kind == "centered"
        self.center = self._empty(section.g.numel()).zero_() if centered else None
        """The centre that contributions are clipped towards: the last update D, fp32 [numel]; None: zero."""
        self.norms = Norms(GRADIENT_FACTOR if self.terms.gradient else FACTOR)
        me = self.terms.me
        self._near = {
            part.index: {i for i in range(len(plan.members)) if part.taker(i) == part.taker(me)} for part in plan.parts
        }
        """For each part, the members (indices) with the same taker as this node."""
        self.errors: dict[int, Tensor] = {}
        """Server errors of the parts that this node publishes: what its encodings of sums have lost so far."""
        self._norms: dict[tuple[int, str], tuple[weakref.ref[memoryview], float]] = {}
        """(part, member) -> the newest bytes whose norm was computed, and that: a publisher's round asks twice."""
        self._published: dict[int, Callable[[], Tensor]] = {}
        """Functions that compute the server errors after published sums; called when those sums are applied."""
        self._made: dict[int, Tensor] = {}
        """Of these, the errors that are computed already, because the contributions take as much memory."""
        self.error_shown: Callable[[int], bool] = lambda part: False
        """Whether an audit may still need the server error from before a part's sum."""

    # ---- deciding --------------------------------------------------------------------------

    def decide(self, round: int, decide: Decide) -> tuple[Result, list[Refused]]:
        """Sum the contributions to a part, as its publisher or taker. Returns the result, and the refused members.

        The sum is divided by the weight of the whole view. Absent members still hold their update and send it later;
        dividing by the contributors' weight would then count too much.
        """
        plan = self.terms.plan
        part = plan.parts[decide.part]
        counted, refused = self._acceptable(part, decide)
        found: dict[int, int] = {}
        for index, sent in counted:
            of_one = [(index, sent.digest)]
            found.update(zip(sent.contributors, sent.digests, strict=True) if isinstance(sent, Result) else of_one)
        who = tuple(sorted(found))
        digests = tuple(found[index] for index in who)
        if plan.pattern == "all_to_all":
            return Result(part.index, who, digests), refused
        # A member's gradient of a step cannot be sent later: if one is refused or not finite, all drop the step.
        void = self.terms.gradient and (bool(refused) or any(not sent.sizes for _, sent in counted))
        made = None if void else self._publish(round, part, counted)
        if made is None:
            return Result(part.index, who, digests), refused
        sent, factors, error = made
        return Result(part.index, who, digests, sent.payload, sent.sizes, sent.digest, error, factors), refused

    def _acceptable(self, part: Part, decide: Decide) -> tuple[list[tuple[int, Offer]], list[Refused]]:
        """(contributions that may count, by index and in order; refusals of the others). A region's sum has its taker's
        index."""
        members = self.terms.plan.members
        norms: dict[int, float] = {}
        refused: list[Refused] = []
        offers: list[tuple[int, Offer]] = [*decide.contributions, *decide.sums]
        for index, sent in offers:
            try:
                norms[index] = self.norm(sent.payload, sent.sizes, part, members[index])
            except Refused as problem:
                refused.append(problem)
        weights = self.terms.weights
        for index, regional in decide.sums:  # as a mean over its region, so that its norm compares with the others'
            if index in norms:
                norms[index] *= self.terms.divisor / math.fsum(weights[one] for one in regional.contributors)
        finite = {index: norm for index, norm in norms.items() if not math.isnan(norm)}
        absurd = self.norms.absurd(part.index, finite, self.terms.me)
        refused += [absurd_norm(members[index], norms[index], limit) for index, limit in absurd.items()]
        return [(index, sent) for index, sent in offers if index in norms and index not in absurd], refused

    def norm(self, payload: Payload, sizes: Sequence[int], part: Part, member: str) -> float:
        """The norm of a part's values. NaN for empty bytes, which stand for a gradient that was not finite.

        Raises:
            Refused: ``member`` sent bytes that do not decode.
        """
        if not sizes and self.terms.gradient:
            return math.nan
        of, found = self._norms.get((part.index, member), (None, math.nan))
        if of is not None and of() is payload:
            return found
        try:
            blobs = blobs_of(payload, sizes, part, member)
            lengths = norms([(blobs[here.start], here.stop - here.start) for here in segments(part)], self._device)
        except compress.CodecError as problem:
            raise Refused(member, f"bytes that do not decode: {problem}") from None
        found = math.hypot(*lengths)
        if isinstance(payload, memoryview):
            self._norms[part.index, member] = weakref.ref(payload), found
        return found

    def check_result(self, part: Part, norm: float) -> None:
        """Refuse a published sum whose norm is absurd, unless this node's own contribution has a similar norm."""
        limit = self.norms.absurd_result(part.index, norm, self._encoder.own_norms.get(part.index, 0.0))
        if limit:
            raise Refused(part.publisher, f"a result of an absurd norm: {norm:.3g}, more than {limit:.3g}")

    # ---- the sum ---------------------------------------------------------------------------

    def sources(self, part: Part, counted: Iterable[tuple[int, Offer]]) -> Sources:
        """The terms of a part's sum. A region's sum has weight 1, because its members' weights are in it."""
        members, weights, divisor = self.terms.plan.members, self.terms.weights, self.terms.divisor
        terms = [
            (
                1.0 if isinstance(sent, Result) else weights[index] / divisor,
                blobs_of(sent.payload, sent.sizes, part, members[index]),
            )
            for index, sent in counted
        ]
        if not self.terms.robust:
            return Sources(terms)
        kept = factors_of(self.terms.robust, [self._distance(part, blobs) for _, blobs in terms])
        drawn = [(weight * factor, blobs) for (weight, blobs), factor in zip(terms, kept, strict=True)]
        center = math.fsum(weight * (1.0 - factor) for (weight, _), factor in zip(terms, kept, strict=True))
        return Sources(drawn, tuple(kept), center if self.center is not None else 0.0)

    def _distance(self, part: Part, blobs: Mapping[int, bytes | memoryview]) -> float:
        """A contribution's distance from the centre, with the same bits on every device."""
        squares = []
        for here in segments(part):
            values = self._encoder.piece(here)
            compress.decode_into(blobs[here.start], values)
            if self.center is not None:
                values.sub_(self.center[here])
            squares.append(exact_square(values))
        return math.sqrt(math.fsum(squares))

    def sum(self, sources: Sources, here: slice) -> Tensor:
        """One segment of the sum, fp32, valid until the next piece is asked for."""
        total = self.terms_of(sources, here).values()
        if sources.center and self.center is not None:
            total.add_(self.center[here] * sources.center)
        return total

    def terms_of(self, sources: Sources, here: slice) -> Terms:
        """One segment of the sum without the centre's term, as blobs that are not added up yet."""
        terms = [(weight, blobs[here.start]) for weight, blobs in sources.terms]
        return Terms(terms, self._encoder.piece(here), not self.terms.follows)

    # ---- publishing ------------------------------------------------------------------------

    def _publish(
        self, round: int, part: Part, counted: Sequence[tuple[int, Offer]]
    ) -> tuple[Contribution, tuple[float, ...], int] | None:
        """(encoded sum, factor of each contribution, digest of the new server error or 0 if none is kept). None if the
        sum is not finite."""
        sources = self.sources(part, counted)
        rank = PUBLISHER if part.publisher == self.terms.name else PUBLISHER + 1 + self.terms.me
        keeps = part.index in self.errors or self.terms.keeps_errors(round)
        # If the contributions take less memory than the error, keep them and compute the error when it is needed.
        light = sum(sum(sent.sizes) for _, sent in counted) < 4 * (part.stop - part.start)
        after = self._room_for_error(part.stop - part.start if keeps and not light else 0)
        pieces, lost = segments(part), xxhash.xxh3_64()

        def blobs() -> Iterator[Blob]:
            for here in pieces:
                total = self._with_error(part, sources, here)
                if not is_finite(total):
                    return
                blob = self._encoder.encode(total, round, here.start, rank)
                if not keeps:
                    yield blob
                    continue
                whole = b"".join(blob)
                yield (whole,)
                compress.add(whole, total, -1.0, known=True)
                left = self.kept_error(total, here.start, round)
                lost.update(tensor_bytes(left))
                if not light:
                    after[here.start - part.start : here.stop - part.start] = left

        made = contribution_of(blobs(), len(pieces), self._encoder.place)
        self._leave(after, self.errors.get(part.index))
        if len(made.sizes) < len(pieces):
            return None
        if keeps and light:
            self._published[part.index] = partial(self._error_after, round, part, sources, made)
        elif keeps:
            self._made[part.index] = after
            self._published[part.index] = partial(self._made.pop, part.index)
        return made, sources.factors, lost.intdigest() if keeps else 0

    def _with_error(self, part: Part, sources: Sources, here: slice) -> Tensor:
        """A segment of the sum plus the server error; valid until the next piece is asked for."""
        total, error = self.sum(sources, here), self.errors.get(part.index)
        return total if error is None else total.add_(error[here.start - part.start : here.stop - part.start])

    def kept_error(self, left: Tensor, start: int, round: int) -> Tensor:
        """What is kept of a segment of a server error after a round: on all members that compute it the same."""
        return self._residuals.kept(left, f"{self._encoder.section.layout.section}/error", start, round)

    def _error_after(self, round: int, part: Part, sources: Sources, made: Contribution) -> Tensor:
        """The server error after a published sum; reuses the old one's buffer if no audit needs that."""
        error = self.errors.get(part.index)
        after = error
        if after is None or self.error_shown(part.index):
            after = self._room_for_error(part.stop - part.start)
        for start, blob in blobs_of(made.payload, made.sizes, part, part.publisher).items():
            here = segment_at(part, start)
            total = self._with_error(part, sources, here)
            compress.add(blob, total, -1.0, known=True)
            after[here.start - part.start : here.stop - part.start] = self.kept_error(total, here.start, round)
        self._leave(after, error)
        return after

    def _leave(self, *errors: Tensor | None) -> None:
        leave(*(one for one in errors if one is not None))

    # ---- server errors -----------------------------------------------------------------------

    def forget_published(self) -> None:
        """Forget sums that were published and never applied."""
        self._published, self._made = {}, {}

    @property
    def nbytes(self) -> int:
        """Bytes of the server errors, before and after sums, and of the centre."""
        center = [] if self.center is None else [self.center]
        return sum(one.nbytes for one in (*self.errors.values(), *self._made.values(), *center))

    def keep_errors(self, results: Iterable[Result]) -> None:
        """Published sums count: keep the errors of their encodings. Call it before the vectors change from which they
        are computed."""
        for result in results:
            counted = not self._near[result.part].isdisjoint(result.contributors)  # else: not used
            if counted and result.part in self._published:
                self.errors[result.part] = self._published.pop(result.part)()

    def keep_all_errors(self) -> None:
        """Keep the errors of all published sums: in gradient mode every sum counts."""
        for part in list(self._published):
            self.errors[part] = self._published.pop(part)()

    def add_errors_to(self, vector: Tensor, at: int = 0) -> None:
        """Add the server errors, divided by this node's share, to its own vector, fp32 on any device: all of the
        section, or the elements from ``at`` on."""
        factor = self.terms.divisor / self.terms.weights[self.terms.me]
        for index, error in self.errors.items():
            part = self.terms.plan.parts[index]
            for here in segments(part):
                first, end = max(here.start, at), min(here.stop, at + vector.numel())
                if first < end:
                    own = error[first - part.start : end - part.start].float() * factor
                    vector[first - at : end - at].add_(own.to(vector.device))
            leave(error)
