"""The arithmetic of a section's rounds: what is encoded, summed, and added to which vector.

Nothing here waits or sends. All sums are in sender order, with separate multiplications and additions, so that
every member computes the same bits from the same bytes. Everything goes segment by segment: what is as long as the
vector is kept for a reason, and named in the class.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
import xxhash
from torch import Tensor

from ... import compress
from ...compress.codec import tensor_bytes
from ...compress.spec import spec_feedback
from ...job.outer import Outer
from ...job.robust import Robust
from ..state.section import Section
from ..state.vectors import zeros
from ..wire.api import Blob
from .messages import Contribution, Decide, Part, Result, RoundPlan
from .outliers import FACTOR, GRADIENT_FACTOR, Norms
from .robust import exact_square, factors_of
from .update import Encoded, Terms, Update, void

PUBLISHER = 1 << 20
"""Rank of a publisher's encoding of a sum: no member's own."""
SEGMENT = 1 << 21
"""Elements that are encoded at once: bounds the memory of an encoding, not the size of a part. What is done to a
segment then finds it in the processor's cache; with fewer, what a codec does once for each piece counts."""

Payload = Sequence[bytes | memoryview] | Sequence[bytes] | memoryview
Offer = Contribution | Result
"""What a publisher adds up: what a member sent, or, in two levels, the sum of another region."""
Place = Callable[[Iterable[Blob], int], Sequence[bytes] | memoryview]
"""Lays encoded blobs where they are sent from, as they are made; ``count`` is how many will follow."""
TakeOff = Callable[[Tensor], None]
"""Takes values off a tensor, in place."""


class Sources(NamedTuple):
    """What is to be added up: weights, and encoded segments by their first element. With a robust average also how much
    counts of each contribution, and the weight that the centre takes instead."""

    terms: list[tuple[float, dict[int, bytes | memoryview]]]
    factors: tuple[float, ...] = ()
    center: float = 0.0


class Refused(Exception):
    """A member's contribution that must not be counted, with the reason."""

    def __init__(self, member: str, why: str) -> None:
        super().__init__(f"{member}: {why}")
        self.member, self.why = member, why


def absurd_norm(member: str, norm: float, limit: float) -> Refused:
    return Refused(member, f"an absurd norm: {norm:.3g}, where the group's median allows {limit:.3g}")


class Exchange:
    """What one member computes in the rounds of one section.

    In ``delta`` mode a round moves ``x - g``: what was not communicated stays in ``x``, which is CocktailSGD's error
    feedback (Wang et al., 2023), or, with ``feedback=true`` in the codec's spec, in a vector of its own, and ``x``
    begins again at ``g`` (SparseLoCo, Sarfi et al., 2025). ``outer`` makes of the sum what ``g`` moves by (DiLoCo,
    Douillard et al., 2023). In ``gradient`` mode a round moves gradients; what a codec loses stays in an error feedback
    that only a committed step changes.
    """

    def __init__(
        self,
        section: Section,
        plan: RoundPlan,
        me: str,
        codec: str,
        dense_rounds: int,
        gradient: bool,
        seed: int,
        outer: Outer | None = None,
        robust: Robust | None = None,
        follows: bool = False,
    ) -> None:
        """``follows``: this node only applies what the members, ``me`` for form's sake among them, have agreed on."""
        self.section = section
        self.plan = plan
        self.me = plan.members.index(me)
        self.follows = follows
        self.codec = compress.make(codec)
        self.dense = compress.make("none")
        self.dense_rounds = dense_rounds
        self.gradient = gradient
        self.outer = outer or Outer()
        self.robust = robust or Robust()
        self.center = torch.zeros_like(section.g) if self.robust.kind == "centered" else None
        """What contributions are drawn in to: the last D of each element, fp32 [numel]; None for 0."""
        self.counts = False
        """Whether the round that is open, or was last, has been applied."""
        self.outer_until: float = math.inf
        """The last round that is an outer step. Those after it only bring in what is left at the run's end."""
        self.closing: compress.Codec | None = None
        """What the rounds after ``outer_until`` go with, where the codec loses much; None: as all others."""
        self.seed = xxhash.xxh3_64_intdigest(f"{seed}/{section.layout.section}".encode()) >> 1
        self.divisor = 1.0 if gradient else math.fsum(plan.weights)
        self.weights = (1.0,) * len(plan.members) if gradient else plan.weights
        self.share = plan.weights[self.me] / math.fsum(plan.weights)
        """This node's part of the section's members; they add up to 1."""
        self.explicit = not gradient and spec_feedback(self.codec.spec)
        if not gradient and section.feedback is not None and (not self.explicit or len(plan.members) == 1):
            section.x.add_(section.feedback)  # of another codec, or of a group that is gone: nobody would send it
            section.feedback = None
        self.norms = Norms(GRADIENT_FACTOR if gradient else FACTOR)
        self.near = {
            part.index: {i for i in range(len(plan.members)) if part.taker(i) == part.taker(self.me)}
            for part in plan.parts
        }
        """Of each part, the members whose contributions are added up where this node's own is."""
        self.errors: dict[int, Tensor] = {}
        """Server errors of the parts that this node publishes: what its encodings of sums lost so far."""
        self._published: dict[int, Callable[[], Tensor]] = {}
        """What makes the errors after published sums, which count when those are applied."""
        self.error_shown: Callable[[int], bool] = lambda part: False
        """Whether somebody may still want to see the server error that a part's sum began with."""
        self.place: Place = joined
        self._own: dict[int, Contribution] = {}
        self.last: compress.Codec | None = None
        """What this node's own contributions go with when there will be no more of them."""
        self._own_norms: dict[int, float] = {}
        self.carries = False
        """Gradient mode: what this round's encodings lose is kept, so the gradient must stay until the commit."""
        self._factors: dict[int, float] = {}
        """How much of this node's own way from the centre counted, by part."""
        self._progress: dict[int, Tensor] = {}
        """With an explicit error feedback: x - g when the round began, by segment, where x has moved on since."""
        self._scratch = torch.empty(0, device=section.g.device)

    # ---- encoding --------------------------------------------------------------------------

    def contributions(self, round: int) -> dict[int, Contribution]:
        """This node's contribution of every part to a round. Changes no weights.

        Raises:
            compress.CodecError: in delta mode, if ``x - g`` is not finite; it must not be sent.
        """
        parts = self.plan.parts_in(round)
        self._published = {}  # what was not applied did not happen
        self._own = {}
        self.counts = False
        self.carries = self.gradient and self.keeps_errors(round)
        pieces = [here for part in parts if part.phase == 0 for here in segments(part)]
        if self.gradient and not all(_is_finite(self._offered(here)) for here in pieces):
            self._own = {part.index: Contribution((), (), 0) for part in parts if part.phase == 0}
            return self._own
        self._progress = {}
        self._own = {part.index: self._offer(round, part) for part in parts if part.phase == 0}
        return self._own

    def x_moves(self) -> None:
        """The local weights are about to move on: with an explicit error feedback what a round in flight takes off them
        has to be kept, which takes another vector; till here it was x - g."""
        if self.explicit and not self.counts and not self._progress:
            x, g, parts = self.section.x, self.section.g, self.plan.parts
            pieces = [here for index in self._own if parts[index].phase == 0 for here in segments(parts[index])]
            self._progress = {here.start: x[here] - g[here] for here in pieces}

    def _offer(self, round: int, part: Part) -> Contribution:
        pieces, norms = segments(part), []

        def blobs() -> Iterator[Blob]:
            for here in pieces:
                values = self._offered(here)
                norms.append(float(torch.linalg.vector_norm(values)))
                yield self.encode(values, round, here.start, self.me)

        made = contribution_of(blobs(), len(pieces), self.place)
        self._own_norms[part.index] = math.hypot(*norms)
        return made

    def _offered(self, here: slice) -> Tensor:
        """What this node has to say of a piece of the vector; good until the next one is asked for."""
        section = self.section
        if self.gradient and section.feedback is None:
            return section.grad[here]
        values = (
            section.grad[here] if self.gradient else torch.sub(section.x[here], section.g[here], out=self._piece(here))
        )
        if (self.gradient or self.explicit) and section.feedback is not None:
            return torch.add(values, section.feedback[here], out=self._piece(here))
        return values

    def _piece(self, here: slice) -> Tensor:
        """Room for a piece of the vector, always the same, so that it need not be found again for each."""
        length = here.stop - here.start
        if self._scratch.numel() < length:
            self._scratch = zeros(length, self.section.g.device)
        return self._scratch[:length]

    def advance(self, result: Result) -> Contribution:
        """Rounds in phases: this node's contribution to the phase after the one that ``result`` answers."""
        raise RuntimeError(f"part {result.part} of {self.plan.section} has no next phase")

    def bits_sent(self) -> float:
        """Bits of each element in this node's newest contribution."""
        elements = sum(self.plan.parts[index].stop - self.plan.parts[index].start for index in self._own)
        return 8 * self.size_of(None) / max(elements, 1)

    @property
    def own_norm(self) -> float:
        """The norm of what this node's newest contributions encode; of all parts that it has offered so far."""
        return math.hypot(*self._own_norms.values())

    def size_of(self, part: int | None) -> int:
        """Bytes of this node's newest contribution of a part; None: of all parts."""
        found = self._own.values() if part is None else [self._own[part]] if part in self._own else []
        return sum(sum(sent.sizes) for sent in found)

    def codec_of(self, round: int) -> compress.Codec:
        """The dense warm-up rounds go without a codec."""
        if self.closing is not None and round > self.outer_until:
            return self.closing
        return self.dense if round <= self.dense_rounds else self.codec

    def lossy(self, round: int) -> bool:
        return str(self.codec_of(round).spec) != "none"

    def keeps_errors(self, round: int) -> bool:
        """Whether errors are carried on. An unbiased codec whose error is larger than its input goes without: it could
        not make up for its own errors, they would grow."""
        return self.lossy(round) and self.codec_of(round).traits.contracts

    def encode(self, values: Tensor, round: int, start: int, rank: int) -> Blob:
        """A segment's values, in pieces. The seed is shared by all members, who offer the same coordinates; the rank
        makes their errors differ."""
        codec = self.last if self.last is not None and rank == self.me else self.codec_of(round)
        return codec.pieces(values, seed=(self.seed + 0x9E3779B9 * start) & (2**63 - 1), step=round, rank=rank)

    # ---- deciding --------------------------------------------------------------------------

    def decide(self, round: int, decide: Decide) -> tuple[Result, list[Refused]]:
        """Sum what was sent, as the part's publisher: the result, and who had to be left out.

        The sum is divided by the weight of the whole view. The absent still hold their part and send it later;
        dividing by the contributors would count it twice.
        """
        part = self.plan.parts[decide.part]
        counted, refused = self._acceptable(part, decide)
        found: dict[int, int] = {}
        for index, sent in counted:
            of_one = [(index, sent.digest)]
            found.update(zip(sent.contributors, sent.digests, strict=True) if isinstance(sent, Result) else of_one)
        who = tuple(sorted(found))
        digests = tuple(found[index] for index in who)
        if self.plan.pattern == "all_to_all":
            return Result(part.index, who, digests), refused
        # A share of a step cannot be sent later: without it, and without a finite one, the step is dropped everywhere.
        void = self.gradient and (bool(refused) or any(not sent.sizes for _, sent in counted))
        made = None if void else self._publish(round, part, counted)
        if made is None:
            return Result(part.index, who, digests), refused
        sent, told, error = made
        return Result(part.index, who, digests, sent.payload, sent.sizes, sent.digest, error, told), refused

    def _acceptable(self, part: Part, decide: Decide) -> tuple[list[tuple[int, Offer]], list[Refused]]:
        """Who may count, by index and in order, and why the others may not; a region's sum goes by its taker."""
        norms: dict[int, float] = {}
        refused: list[Refused] = []
        offers: list[tuple[int, Offer]] = [*decide.contributions, *decide.sums]
        for index, sent in offers:
            try:
                norms[index] = self.norm(sent.payload, sent.sizes, part, self.plan.members[index])
            except Refused as problem:
                refused.append(problem)
        for index, regional in decide.sums:  # as a mean over its region, to be held against the others
            if index in norms:
                norms[index] *= self.divisor / math.fsum(self.weights[one] for one in regional.contributors)
        finite = {index: norm for index, norm in norms.items() if not math.isnan(norm)}
        absurd = self.norms.absurd(part.index, finite, self.me)
        refused += [absurd_norm(self.plan.members[index], norms[index], limit) for index, limit in absurd.items()]
        return [(index, sent) for index, sent in offers if index in norms and index not in absurd], refused

    def _publish(
        self, round: int, part: Part, counted: Sequence[tuple[int, Offer]]
    ) -> tuple[Contribution, tuple[float, ...], int] | None:
        """The encoded sum, how much counts of each, and the digest of what encoding loses (0: that is not kept). None
        where the sum is not finite."""
        sources = self.sources(part, counted)
        rank = PUBLISHER if part.publisher == self.plan.members[self.me] else PUBLISHER + 1 + self.me
        keeps = part.index in self.errors or self.keeps_errors(round)
        # The error after it is made again where the messages that it follows from are shorter than it is.
        light = sum(sum(sent.sizes) for _, sent in counted) < 4 * (part.stop - part.start)
        after = torch.empty(part.stop - part.start if keeps and not light else 0, device=self.section.g.device)
        pieces, lost = segments(part), xxhash.xxh3_64()

        def blobs() -> Iterator[Blob]:
            for here in pieces:
                total = self._with_error(part, sources, here)
                if not _is_finite(total):
                    return
                blob = self.encode(total, round, here.start, rank)
                if not keeps:
                    yield blob
                    continue
                whole = b"".join(blob)
                yield (whole,)
                compress.add(whole, total, -1.0, known=True)
                lost.update(tensor_bytes(total))
                if not light:
                    after[here.start - part.start : here.stop - part.start] = total

        made = contribution_of(blobs(), len(pieces), self.place)
        if len(made.sizes) < len(pieces):
            return None
        if keeps:
            self._published[part.index] = partial(self._error_after, part, sources, made) if light else lambda: after
        return made, sources.factors, lost.intdigest() if keeps else 0

    def _with_error(self, part: Part, sources: Sources, here: slice) -> Tensor:
        """A segment of the sum and the server error; good until the next piece is asked for."""
        total, error = self.sum(sources, here), self.errors.get(part.index)
        return total if error is None else total.add_(error[here.start - part.start : here.stop - part.start])

    def _error_after(self, part: Part, sources: Sources, made: Contribution) -> Tensor:
        """The server error after a published sum, in the place of the one before where that is not wanted any more."""
        error = self.errors.get(part.index)
        after = error
        if after is None or self.error_shown(part.index):
            after = torch.empty(part.stop - part.start, device=self.section.g.device)
        for start, blob in self.blobs(made.payload, made.sizes, part, part.publisher).items():
            here = slice(start, min(start + SEGMENT, part.stop))
            total = self._with_error(part, sources, here)
            compress.add(blob, total, -1.0, known=True)
            after[here.start - part.start : here.stop - part.start] = total
        return after

    def sources(self, part: Part, counted: Iterable[tuple[int, Offer]]) -> Sources:
        """What is to be added up. A region's sum has its weights in it."""
        terms = [
            (
                1.0 if isinstance(sent, Result) else self.weights[index] / self.divisor,
                self.blobs(sent.payload, sent.sizes, part, self.plan.members[index]),
            )
            for index, sent in counted
        ]
        if not self.robust:
            return Sources(terms)
        kept = factors_of(self.robust, [self._distance(part, blobs) for _, blobs in terms])
        drawn = [(weight * factor, blobs) for (weight, blobs), factor in zip(terms, kept, strict=True)]
        center = math.fsum(weight * (1.0 - factor) for (weight, _), factor in zip(terms, kept, strict=True))
        return Sources(drawn, tuple(kept), center if self.center is not None else 0.0)

    def _distance(self, part: Part, blobs: Mapping[int, bytes | memoryview]) -> float:
        """How far a contribution lies from the centre, the same bits on every device."""
        squares = []
        for here in segments(part):
            values = self._piece(here)
            compress.decode_into(blobs[here.start], values)
            if self.center is not None:
                values.sub_(self.center[here])
            squares.append(exact_square(values))
        return math.sqrt(math.fsum(squares))

    def sum(self, sources: Sources, here: slice) -> Tensor:
        """One segment of the sum, fp32, good until the next piece is asked for."""
        total = self._terms(sources, here).values()
        if sources.center and self.center is not None:
            total.add_(self.center[here] * sources.center)
        return total

    def norm(self, payload: Payload, sizes: Sequence[int], part: Part, member: str) -> float:
        """The norm of a part's values. Empty bytes are a gradient that was not finite: NaN, so nobody applies it."""
        if not sizes and self.gradient:
            return math.nan
        try:
            blobs = self.blobs(payload, sizes, part, member)
            device = self.section.g.device
            return math.hypot(
                *(compress.norm(blobs[here.start], here.stop - here.start, device) for here in segments(part))
            )
        except compress.CodecError as problem:
            raise Refused(member, f"bytes that do not decode: {problem}") from None

    def blobs(self, payload: Payload, sizes: Sequence[int], part: Part, member: str) -> dict[int, bytes | memoryview]:
        """A part's encoded segments by their first element."""
        wanted = segments(part)
        if len(sizes) != len(wanted):
            raise Refused(member, f"{len(sizes)} pieces where part {part.index} has {len(wanted)}")
        return {here.start: blob for here, blob in zip(wanted, pieces_of(payload, sizes), strict=True)}

    # ---- applying --------------------------------------------------------------------------

    def check(
        self, round: int, found: Mapping[int, Result], contributions: Mapping[tuple[int, int], Contribution]
    ) -> None:
        """Look whether the round may be applied. ``found``: the result of every part.

        Raises:
            Refused: not with these results; names who sent what is wrong with them.
        """
        for result in () if self.follows else found.values():
            part = self.plan.parts[result.part]
            if self.plan.pattern == "all_to_all":
                for index in result.contributors:
                    sent = contributions[part.index, index]
                    self.norm(sent.payload, sent.sizes, part, self.plan.members[index])
            elif part.publisher != self.plan.members[self.me]:
                norm = self.norm(result.payload, result.sizes, part, part.publisher)
                if not math.isnan(norm):
                    self._check_result(part, norm)
                if self.robust and result.sizes and not result.factors:
                    raise Refused(part.publisher, "a robust result that does not say how much of each counted")

    def _check_result(self, part: Part, norm: float) -> None:
        """A published sum that is absurdly long is refused, unless what this node itself sent is as long."""
        limit = self.norms.absurd_result(part.index, norm, self._own_norms.get(part.index, 0.0))
        if limit:
            raise Refused(part.publisher, f"a result of an absurd norm: {norm:.3g}, more than {limit:.3g}")

    def updates(
        self, round: int, found: Mapping[int, Result], contributions: Mapping[tuple[int, int], Contribution]
    ) -> Iterator[tuple[slice, Update]]:
        """The update D of a round that was checked, in pieces: where, and what, good until the next."""
        for result in found.values():
            part, who = self.plan.parts[result.part], result.contributors
            together = self.plan.pattern == "all_to_all"
            sent = [(index, contributions[part.index, index]) for index in who] if together else []
            if self.gradient and (
                any(not one.sizes for _, one in sent) or len(sent) < len(self.weights) if together else not result.sizes
            ):
                yield slice(part.start, part.stop), void(part.stop - part.start)
                continue
            if together:
                sources = self.sources(part, sent)
                self._drawn_in(part.index, who, sources.factors)
            else:
                sources = Sources([(1.0, self.blobs(result.payload, result.sizes, part, part.publisher))])
                self._drawn_in(part.index, who, result.factors)
            yield from ((here, self._update(round, sources, here)) for here in segments(part))

    def _update(self, round: int, sources: Sources, here: slice) -> Update:
        """A segment of D, in the form that is applied with the least work."""
        if self.codec_of(round).sparse and not sources.center:
            return self._terms(sources, here)
        if self.plan.pattern != "all_to_all":
            ((_, blobs),) = sources.terms
            return Encoded(blobs[here.start], self._piece(here), not self.follows)
        return Update(self.sum(sources, here))

    def _terms(self, sources: Sources, here: slice) -> Terms:
        terms = [(weight, blobs[here.start]) for weight, blobs in sources.terms]
        return Terms(terms, self._piece(here), not self.follows)

    def _drawn_in(self, part: int, contributors: Sequence[int], factors: Sequence[float]) -> None:
        self._factors[part] = factors[contributors.index(self.me)] if factors and self.me in contributors else 1.0

    def apply_delta(self, updates: Iterable[tuple[slice, Update]], results: Sequence[Result]) -> None:
        """g and x move by the outer step of the update; what of this node's own was counted leaves x.

        With an explicit error feedback all that was offered leaves x, and what was not counted stays in the feedback.
        """
        section = self.section
        for result in results:
            if not self.near[result.part].isdisjoint(result.contributors):  # else it went on without this region's sum
                self._keep_error(result.part)
        if self.explicit and section.feedback is None:
            section.feedback = torch.zeros_like(section.g)
        counted = {
            here.start: (take_off, part.index)
            for part, was_counted in self._outcomes(results)
            if was_counted
            for here, take_off in self._own_pieces(part)
        }
        for here, update in updates:
            kept = section.x
            if self.explicit:
                assert section.feedback is not None
                progress = self._progress.get(here.start)
                if progress is None:
                    progress = section.x[here] - section.g[here]
                section.x[here].sub_(progress)
                kept = section.feedback
                kept[here].add_(progress)
            self._move(update, here)
            if here.start in counted:
                self._let_go(*counted[here.start], kept, here)
            if self.center is not None:
                update.write_to(self.center[here])
        self._applied()

    def _keep_error(self, part: int) -> None:
        """The published sum of a part counts, so its encoding's error is owed. Before anything moves that it follows
        from."""
        if part in self._published:
            self.errors[part] = self._published.pop(part)()

    def _let_go(self, take_off: TakeOff, part: int, kept: Tensor, here: slice) -> None:
        """As much of this node's own as counted leaves x (or the feedback). The rest stays there and goes again."""
        factor = self._factors.get(part, 1.0)
        if factor == 1.0:
            take_off(kept[here])
            return
        own = torch.zeros(here.stop - here.start, device=kept.device)
        take_off(own)
        kept[here].add_(own * factor)
        if self.center is not None:
            kept[here].sub_(self.center[here] * (1.0 - factor))

    def follow(self, updates: Iterable[tuple[slice, Update]]) -> None:
        """What the members do with an update to which this node gave nothing: g moves, or it is the gradient."""
        for here, update in updates:
            if self.gradient:
                update.write_to(self.section.grad[here])
            else:
                self._move(update, here)
            if self.center is not None:
                update.write_to(self.center[here])
        self._applied()

    def _outcomes(self, results: Sequence[Result]) -> Iterator[tuple[Part, bool]]:
        """Each part that moved, and whether this node was counted in it."""
        for result in results:
            yield self.plan.parts[result.part], self.me in result.contributors

    def _own_pieces(self, part: Part) -> Iterator[tuple[slice, TakeOff]]:
        """Takes what the group took for this node's values off the pieces of a part, cut as ``updates`` cuts them."""
        sent = self._own[part.index]
        for start, blob in self.blobs(sent.payload, sent.sizes, part, self.plan.members[self.me]).items():
            yield slice(start, min(start + SEGMENT, part.stop)), partial(compress.add, blob, weight=-1.0, known=True)

    def _applied(self) -> None:
        """The round counts."""
        self.counts = True
        self._published = {}
        self._progress = {}
        self._factors = {}

    def apply_alone(self, round: int) -> None:
        """A round of a section without a second member: its D is this node's own x - g."""
        section = self.section
        if self._outer.is_average:
            section.g.copy_(section.x)
            return
        for part in self.plan.parts_in(round):
            here = slice(part.start, part.stop)
            self._move(Update(section.x[here] - section.g[here]), here)
            section.x[here] = section.g[here]

    @property
    def _outer(self) -> Outer:
        """What the round that is being applied does with its mean update."""
        return self.outer if self.section.round < self.outer_until else Outer()

    def _move(self, update: Update, here: slice) -> None:
        """Move g and x by what the outer optimiser makes of an update."""
        section = self.section
        if self._outer.is_average:
            update.add_to(section.g[here], section.x[here])
            return
        moved = outer_step(self._outer, update.values(), None if section.outer is None else section.outer[here])
        section.g[here].add_(moved)
        section.x[here].add_(moved)

    def commit_gradient(self, updates: Iterable[tuple[slice, Update]] = ()) -> None:
        """The step was committed: the error feedback takes what this node's encodings lost, and the gradient becomes
        the ``updates``. Where the exchange ``carries``, it must still be what it was when the round began."""
        section = self.section
        for part in list(self._published):
            self._keep_error(part)
        if not self.carries:
            section.feedback = None  # what was kept before has all been offered, and no error is carried on
        elif section.feedback is None:
            section.feedback = section.grad.clone()
        else:
            section.feedback.add_(section.grad)
        if section.feedback is not None:
            for index in self._own:
                for here, take_off in self._own_pieces(self.plan.parts[index]):
                    take_off(section.feedback[here])
        for here, update in updates:
            update.write_to(section.grad[here])
        if self.center is not None:
            self.center.copy_(section.grad)
        self._applied()

    def unsent(self) -> dict[str, Tensor]:
        """What this node alone holds of S, as a view's end would leave it: ``rest.`` x - g, ``feedback.`` the error
        feedback, with the server errors in one of them. Copies, fp32 [numel] on the CPU; without what is nothing."""
        section = self.section
        found: dict[str, Tensor] = {}
        if section.feedback is not None or (self.gradient and self.errors):
            found["feedback."] = torch.zeros(section.g.numel())
            if section.feedback is not None:
                found["feedback."].copy_(section.feedback)
        if not self.gradient:
            found["rest."] = torch.empty(section.g.numel())
            for start in range(0, section.g.numel(), SEGMENT):
                here = slice(start, start + SEGMENT)
                found["rest."][here] = section.x[here] - section.g[here]
        into = found.get("feedback." if self.gradient else "rest.")
        for index, error in self.errors.items():
            part = self.plan.parts[index]
            assert into is not None
            into[part.start : part.stop].add_((error * (self.divisor / self.weights[self.me])).cpu())
        return found

    def fold_errors(self) -> None:
        """A view ends: a publisher's error goes back into its own x (in gradient mode into its own error feedback), so
        that nothing of the sum is lost."""
        self._published = {}
        section = self.section
        if self.gradient and self.errors and section.feedback is None:
            section.feedback = torch.zeros_like(section.g)
        into = section.feedback if self.gradient else section.x
        for index, error in self.errors.items():
            part = self.plan.parts[index]
            assert into is not None
            into[part.start : part.stop].add_(error * (self.divisor / self.weights[self.me]))
        self.errors = {}


def outer_step(outer: Outer, update: Tensor, momentum: Tensor | None) -> Tensor:
    """What ``g`` moves by for the mean update D, fp32 [n]; ``momentum`` [n] moves on. The same bits on every device."""
    if momentum is not None and outer.momentum:
        momentum.mul_(outer.momentum).add_(update)
        update = update + momentum * outer.momentum if outer.nesterov else momentum
    return update if outer.rate == 1.0 else update * outer.rate


def segments(part: Part) -> list[slice]:
    """The pieces of a part that are encoded one by one."""
    return [slice(start, min(start + SEGMENT, part.stop)) for start in range(part.start, part.stop, SEGMENT)]


def _is_finite(values: Tensor) -> bool:
    """One pass over the memory: a sum is finite if all its terms are, but for an overflow."""
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def error_digest(error: Tensor | None) -> int:
    """What a result says of its publisher's server error fp32 [n]; 0 for none."""
    return 0 if error is None else xxhash.xxh3_64_intdigest(error.detach().cpu().contiguous().numpy().data)


def joined(blobs: Iterable[Blob], count: int = 0) -> tuple[bytes, ...]:
    """The blobs in this process's own memory."""
    return tuple(b"".join(pieces) for pieces in blobs)


def contribution_of(blobs: Iterable[Blob | bytes], count: int = 0, place: Place = joined) -> Contribution:
    """Blobs with their sizes and the digest of all their bytes; ``count`` of them go to a ``place``."""
    digest, sizes = xxhash.xxh3_64(), list[int]()

    def told() -> Iterator[Blob]:
        for blob in blobs:
            pieces = (blob,) if isinstance(blob, bytes) else blob
            for piece in pieces:
                digest.update(piece)
            sizes.append(sum(map(len, pieces)))
            yield pieces

    payload = place(told(), count)
    return Contribution(payload, tuple(sizes), digest.intdigest())


def received(payload: memoryview, sizes: Sequence[int]) -> Contribution:
    """A contribution (or a result's payload) as it came from the wire."""
    return Contribution(payload, tuple(sizes), xxhash.xxh3_64_intdigest(payload) if sizes else 0)


def pieces_of(payload: Payload, sizes: Sequence[int]) -> Iterator[bytes | memoryview]:
    """The blobs of a payload, which is either still in pieces or one buffer cut by ``sizes``."""
    if not isinstance(payload, memoryview):
        yield from payload
        return
    if sum(sizes) != payload.nbytes:
        raise compress.CodecError(f"{payload.nbytes} bytes where the sizes add up to {sum(sizes)}")
    start = 0
    for size in sizes:
        yield payload[start : start + size]
        start += size
