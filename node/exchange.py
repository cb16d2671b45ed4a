"""The arithmetic of a section's rounds: what is encoded, summed, and added to which vector.

Nothing here waits or sends. All sums are in sender order, with separate multiplications and additions, so that
every member computes the same bits from the same bytes.
"""

import math
from collections.abc import Iterator, Sequence

import torch
import xxhash
from torch import Tensor

from .. import compress
from ..compress.spec import spec_feedback
from ..proto.outer import Outer
from .outliers import Norms
from .round_messages import Contribution, Decide, Part, Result, RoundPlan
from .sections import Section

PUBLISHER = 1 << 20
"""Rank of a publisher's encoding of a sum: no member's own."""
SEGMENT = 1 << 22
"""Elements that are encoded at once: bounds the memory of an encoding, not the size of a part."""


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
    ) -> None:
        self.section = section
        self.plan = plan
        self.me = plan.members.index(me)
        self.codec = compress.make(codec)
        self.dense = compress.make("none")
        self.dense_rounds = dense_rounds
        self.gradient = gradient
        self.outer = outer or Outer()
        self.outer_until: float = math.inf
        """The last round that is an outer step. Those after it only bring in what is left at the run's end."""
        self.seed = xxhash.xxh3_64_intdigest(f"{seed}/{section.layout.section}".encode()) >> 1
        self.divisor = 1.0 if gradient else math.fsum(plan.weights)
        self.weights = (1.0,) * len(plan.members) if gradient else plan.weights
        self.share = plan.weights[self.me] / math.fsum(plan.weights)
        """This node's part of the section's members; they add up to 1."""
        self.explicit = not gradient and spec_feedback(self.codec.spec)
        if not gradient and section.feedback is not None and (not self.explicit or len(plan.members) == 1):
            section.x.add_(section.feedback)  # of another codec, or of a group that is gone: nobody would send it
            section.feedback = None
        self.norms = Norms()
        self.errors: dict[int, Tensor] = {}
        """Server errors of the parts that this node publishes: what its encodings of sums lost so far."""
        self._pending: dict[int, Tensor] = {}
        self._own: dict[int, Contribution] = {}
        self.last: compress.Codec | None = None
        """What this node's own contributions go with when there will be no more of them."""
        self._own_norms: dict[int, float] = {}
        self._sent: Tensor | None = None
        self._progress: Tensor | None = None
        """With an explicit error feedback: x - g when the round began."""

    # ---- encoding --------------------------------------------------------------------------

    def contributions(self, round: int) -> dict[int, Contribution]:
        """This node's contribution of every part to a round. Changes no weights.

        Raises:
            compress.CodecError: in delta mode, if ``x - g`` is not finite; it must not be sent.
        """
        section, parts = self.section, self.plan.parts_in(round)
        self._pending = {}
        self._progress = None
        if self.gradient:
            vector = section.grad if section.feedback is None else section.grad + section.feedback
            # A copy: the gradient's own vector is about to take the group's sum.
            self._sent = (vector.clone() if vector is section.grad else vector) if self._keeps(round) else None
            if not bool(torch.isfinite(vector).all()):
                self._own = {part.index: Contribution((), (), 0) for part in parts if part.phase == 0}
                return self._own
        else:
            vector = section.x - section.g
            if self.explicit:
                self._progress = vector
                vector = vector if section.feedback is None else vector + section.feedback
                self._sent = vector
        self._own_norms = {
            part.index: float(torch.linalg.vector_norm(vector[part.start : part.stop])) for part in parts
        }
        self._own = {part.index: self._offer(vector, round, part) for part in parts if part.phase == 0}
        return self._own

    def _offer(self, vector: Tensor, round: int, part: Part) -> Contribution:
        return self._encode(vector[part.start : part.stop], round, part, self.me)

    def advance(self, result: Result) -> Contribution:
        """Rounds in phases: this node's contribution to the phase after the one that ``result`` answers."""
        raise RuntimeError(f"part {result.part} of {self.plan.section} has no next phase")

    def bits_sent(self) -> float:
        """Bits of each element in this node's newest contribution."""
        elements = sum(self.plan.parts[index].stop - self.plan.parts[index].start for index in self._own)
        return 8 * sum(sum(sent.sizes) for sent in self._own.values()) / max(elements, 1)

    def codec_of(self, round: int) -> compress.Codec:
        """The dense warm-up rounds go without a codec."""
        return self.dense if round <= self.dense_rounds else self.codec

    def lossy(self, round: int) -> bool:
        return str(self.codec_of(round).spec) != "none"

    def _keeps(self, round: int) -> bool:
        """Whether errors are carried on. An unbiased codec whose error is larger than its input goes without: it could
        not make up for its own errors, they would grow."""
        return self.lossy(round) and self.codec.traits.contracts

    def _encode(self, values: Tensor, round: int, part: Part, rank: int) -> Contribution:
        """The seed is shared by all members, who offer the same coordinates; the rank makes their errors differ."""
        codec = self.last if self.last is not None and rank == self.me else self.codec_of(round)
        blobs = [
            codec.encode(
                values[start : start + SEGMENT],
                seed=(self.seed + 0x9E3779B9 * (part.start + start)) & (2**63 - 1),
                step=round,
                rank=rank,
            )
            for start in range(0, values.numel(), SEGMENT)
        ]
        return contribution_of(blobs)

    # ---- deciding --------------------------------------------------------------------------

    def decide(self, round: int, decide: Decide) -> tuple[Result, list[Refused]]:
        """Sum what was sent, as the part's publisher: the result, and who had to be left out.

        The sum is divided by the weight of the whole view. The absent still hold their part and send it later;
        dividing by the contributors would count it twice.
        """
        part = self.plan.parts[decide.part]
        total = torch.zeros(part.stop - part.start, device=self.section.g.device)
        counted: list[tuple[int, Contribution]] = []
        values, refused = self._acceptable(part, decide)
        for index, sent in decide.contributions:
            if index in values:
                total.add_(values[index] * (self.weights[index] / self.divisor))
                counted.append((index, sent))
        if refused and self.gradient:  # a share of a step cannot be sent later: the step is dropped everywhere
            total.fill_(torch.nan)
        who = tuple(index for index, _ in counted)
        digests = tuple(sent.digest for _, sent in counted)
        if self.plan.pattern == "all_to_all":
            return Result(part.index, who, digests), refused
        if not bool(torch.isfinite(total).all()):
            return Result(part.index, who, digests), refused  # gradient mode: empty, so that nobody applies it
        if part.index in self.errors:
            total.add_(self.errors[part.index])
        made = self._encode(total, round, part, PUBLISHER)
        if self._keeps(round):
            kept = self._decode(made.payload, made.sizes, part, self.plan.members[self.me])
            self._pending[part.index] = total - kept
        return Result(part.index, who, digests, made.payload, made.sizes, made.digest), refused

    def _acceptable(self, part: Part, decide: Decide) -> tuple[dict[int, Tensor], list[Refused]]:
        """The decoded values of the members that may count, and why the others may not."""
        values: dict[int, Tensor] = {}
        refused: list[Refused] = []
        for index, sent in decide.contributions:
            try:
                values[index] = self._decode(sent.payload, sent.sizes, part, self.plan.members[index])
            except Refused as problem:
                refused.append(problem)
        norms = {index: float(torch.linalg.vector_norm(one)) for index, one in values.items()}
        norms = {index: norm for index, norm in norms.items() if not math.isnan(norm)}
        for index, limit in self.norms.absurd(part.index, norms, self.me).items():
            del values[index]
            refused.append(absurd_norm(self.plan.members[index], norms[index], limit))
        return values, refused

    def _decode(self, payload: Sequence[bytes] | memoryview, sizes: Sequence[int], part: Part, member: str) -> Tensor:
        """The values of a part, fp32. Empty bytes are a gradient that was not finite: NaN, so nobody applies it."""
        length = part.stop - part.start
        if not sizes and self.gradient:
            return torch.full((length,), torch.nan, device=self.section.g.device)
        starts = range(0, length, SEGMENT)
        if len(sizes) != len(starts):
            raise Refused(member, f"{len(sizes)} pieces where part {part.index} has {len(starts)}")
        values = torch.empty(length, device=self.section.g.device)
        try:
            for start, blob in zip(starts, pieces_of(payload, sizes), strict=True):
                compress.decode_into(blob, values[start : start + SEGMENT])
        except compress.CodecError as problem:
            raise Refused(member, f"bytes that do not decode: {problem}") from None
        if not bool(torch.isfinite(values).all()):
            raise Refused(member, "values that are not finite")
        return values

    # ---- applying --------------------------------------------------------------------------

    def results(
        self, round: int, found: dict[int, Result], contributions: dict[tuple[int, int], Contribution]
    ) -> Tensor:
        """The round's update D [numel], the same bits on every member. ``found``: the result of every part."""
        update = torch.zeros_like(self.section.g)
        for result in found.values():
            part = self.plan.parts[result.part]
            target = update[part.start : part.stop]
            if self.plan.pattern == "all_to_all":
                for index in result.contributors:
                    sent = contributions[part.index, index]
                    values = self._decode(sent.payload, sent.sizes, part, self.plan.members[index])
                    target.add_(values * (self.weights[index] / self.divisor))
            else:
                target.copy_(self._decode(result.payload, result.sizes, part, part.publisher))
                self._check_result(part, target)
        return update

    def _check_result(self, part: Part, values: Tensor) -> None:
        """A published sum that is absurdly long is refused, unless what this node itself sent is as long."""
        norm = float(torch.linalg.vector_norm(values))
        if part.publisher == self.plan.members[self.me] or not math.isfinite(norm):
            return
        limit = self.norms.absurd_result(part.index, norm, self._own_norms.get(part.index, 0.0))
        if limit:
            raise Refused(part.publisher, f"a result of an absurd norm: {norm:.3g}, more than {limit:.3g}")

    def apply_delta(self, update: Tensor, results: Sequence[Result]) -> None:
        """g and x move by the outer step of the update; what of this node's own was counted leaves x.

        With an explicit error feedback all that was offered leaves x, and what was not counted stays in the feedback.
        """
        section = self.section
        for part, counted in self._outcomes(results):
            here = slice(part.start, part.stop)
            self._move(update[here], here)
            own = self._own_values(part) if counted else None
            if self._progress is None:
                if own is not None:
                    section.x[here].sub_(own)
                continue
            assert self._sent is not None
            if section.feedback is None:
                section.feedback = torch.zeros_like(section.g)
            section.x[here].sub_(self._progress[here])
            section.feedback[here] = self._sent[here] if own is None else self._sent[here] - own
        self._applied()

    def _outcomes(self, results: Sequence[Result]) -> Iterator[tuple[Part, bool]]:
        """Each part that moved, and whether this node was counted in it."""
        for result in results:
            yield self.plan.parts[result.part], self.me in result.contributors

    def _own_values(self, part: Part) -> Tensor:
        """What the group took for this node's values of a part."""
        sent = self._own[part.index]
        return self._decode(sent.payload, sent.sizes, part, self.plan.members[self.me])

    def _applied(self) -> None:
        """The round counts: what its encodings lost is kept."""
        self.errors.update(self._pending)
        self._pending = {}

    def apply_alone(self, round: int) -> None:
        """A round of a section without a second member: its D is this node's own x - g."""
        section = self.section
        if self._outer.is_average:
            section.g.copy_(section.x)
            return
        for part in self.plan.parts_in(round):
            here = slice(part.start, part.stop)
            self._move(section.x[here] - section.g[here], here)
            section.x[here] = section.g[here]

    @property
    def _outer(self) -> Outer:
        """What the round that is being applied does with its mean update."""
        return self.outer if self.section.round < self.outer_until else Outer()

    def _move(self, update: Tensor, here: slice) -> None:
        """Move g and x by what the outer optimiser makes of an update."""
        section = self.section
        moved = outer_step(self._outer, update, None if section.outer is None else section.outer[here])
        section.g[here].add_(moved)
        section.x[here].add_(moved)

    def commit_gradient(self) -> None:
        """The step was committed: now the error feedback holds what this node's encodings lost."""
        lost = self._sent  # None: what was kept before has all been offered, and no error is carried on
        if lost is not None:
            lost = lost.clone()
            for index in self._own:
                part = self.plan.parts[index]
                lost[part.start : part.stop].sub_(self._own_values(part))
        self.section.feedback = lost
        self._applied()

    def fold_errors(self) -> None:
        """A view ends: a publisher's error goes back into its own x (in gradient mode into its own error feedback), so
        that nothing of the sum is lost."""
        section = self.section
        if self.gradient and self.errors and section.feedback is None:
            section.feedback = torch.zeros_like(section.g)
        into = section.feedback if self.gradient else section.x
        for index, error in self.errors.items():
            part = self.plan.parts[index]
            assert into is not None
            into[part.start : part.stop].add_(error * (self.divisor / self.weights[self.me]))
        self.errors = {}
        self._pending = {}


def outer_step(outer: Outer, update: Tensor, momentum: Tensor | None) -> Tensor:
    """What ``g`` moves by for the mean update D, fp32 [n]; ``momentum`` [n] moves on. The same bits on every device."""
    if momentum is not None and outer.momentum:
        momentum.mul_(outer.momentum).add_(update)
        update = update + momentum * outer.momentum if outer.nesterov else momentum
    return update if outer.rate == 1.0 else update * outer.rate


def contribution_of(blobs: Sequence[bytes]) -> Contribution:
    """Blobs with their sizes and the digest of all their bytes."""
    digest = xxhash.xxh3_64()
    for blob in blobs:
        digest.update(blob)
    return Contribution(tuple(blobs), tuple(len(blob) for blob in blobs), digest.intdigest())


def received(payload: memoryview, sizes: Sequence[int]) -> Contribution:
    """A contribution (or a result's payload) as it came from the wire."""
    return Contribution(payload, tuple(sizes), xxhash.xxh3_64_intdigest(payload) if sizes else 0)


def pieces_of(payload: Sequence[bytes] | memoryview, sizes: Sequence[int]) -> Iterator[bytes | memoryview]:
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
