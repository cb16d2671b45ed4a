"""How one member encodes its contributions to a section's rounds: which vector, with which codec and seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .... import compress
from ....compress.blobs.pieces import Staged
from ....job.tables.outer import Outer
from ....job.tables.robust import Robust
from ...state.sections.section import Section
from ...state.sections.vectors import zeros
from ...wire.api import Blob
from ..protocol.messages import Contribution, Part, RoundPlan
from ..protocol.payloads import Place, contribution_of, joined, segments
from .batches import encoded


@dataclass(frozen=True)
class RoundTerms:
    """What a view fixes about the arithmetic of a section's rounds. All but ``me`` is the same on every member."""

    plan: RoundPlan
    me: int
    """This member's index. A spare that follows has the index of the member whose place it follows."""
    codec: compress.Codec
    dense_rounds: int
    """Number of dense rounds: the first ones, which go uncompressed."""
    gradient: bool
    seed: int
    outer: Outer
    robust: Robust
    follows: bool
    """Whether this node is a spare that only applies rounds; ``me`` is then the member whose place it follows."""
    explicit: bool
    """Delta mode: whether the residual is kept in a separate vector, not in x."""
    outer_until: float
    """The last round with an outer step. The rounds after it, at the run's end, only send what is left."""
    closing: compress.Codec | None
    """The codec of the rounds after ``outer_until``, if the usual codec loses much; None: the usual codec."""
    dense: compress.Codec

    @property
    def name(self) -> str:
        """This member's name."""
        return self.plan.members[self.me]

    @property
    def divisor(self) -> float:
        """The divisor of the weighted sum: the sum of all weights in delta mode, 1 in gradient mode."""
        return 1.0 if self.gradient else math.fsum(self.plan.weights)

    @property
    def weights(self) -> tuple[float, ...]:
        """Weights of the members' contributions."""
        return (1.0,) * len(self.plan.members) if self.gradient else self.plan.weights

    def codec_of(self, round: int) -> compress.Codec:
        """The codec of a round: none in dense rounds, one that loses little in the last rounds."""
        if self.closing is not None and round > self.outer_until:
            return self.closing
        return self.dense if round <= self.dense_rounds else self.codec

    def lossy(self, round: int) -> bool:
        """Whether a round's codec loses anything."""
        return str(self.codec_of(round).spec) != "none"

    def keeps_errors(self, round: int) -> bool:
        """Whether a round uses error feedback. Not with a codec whose error may be larger than its input (unbiased
        codecs): the errors would grow."""
        return self.lossy(round) and self.codec_of(round).traits.contracts


class Encoder:
    """Encodes this member's contribution to each part of a round."""

    def __init__(self, terms: RoundTerms, section: Section) -> None:
        self.terms, self.section = terms, section
        self.place: Place = joined
        self.last: compress.Codec | None = None
        """The codec of this node's contributions when no later round follows."""
        self.own: dict[int, Contribution] = {}
        """The newest contributions, by part."""
        self.own_norms: dict[int, float] = {}
        self._scratch = torch.empty(0, device=section.g.device)

    def contribution(self, round: int, part: Part) -> Contribution:
        """This node's contribution to a part: the encoded segments of its update."""
        pieces, norms = segments(part), list[float]()

        def blobs() -> Iterator[Blob]:
            for here in pieces:
                values = self.offered(here)
                norms.append(float(torch.linalg.vector_norm(values)))
                yield self.encode(values, round, here.start, self.terms.me)

        def stage(values: Tensor, here: slice) -> Staged:
            return self.stage(values, round, here.start, self.terms.me)

        there = self._scratch.device.type != "cpu"
        found = encoded(pieces, self.offered, stage, norms) if there else blobs()
        made = contribution_of(found, len(pieces), self.place)
        self.own_norms[part.index] = math.hypot(*norms)
        return made

    def offered(self, here: slice) -> Tensor:
        """This node's update in a slice of the vector, fp32: x - g (or the gradient) plus the explicit error feedback;
        valid until the next slice is asked for."""
        section, gradient = self.section, self.terms.gradient
        if gradient and section.feedback is None:
            return section.grad[here]
        values = section.grad[here] if gradient else torch.sub(section.x[here], section.g[here], out=self.piece(here))
        if (gradient or self.terms.explicit) and section.feedback is not None:
            return torch.add(values, section.feedback[here], out=self.piece(here))
        return values

    def encode(self, values: Tensor, round: int, start: int, rank: int) -> Blob:
        """Encode a segment's values, in pieces. All members use the same seed, so that they choose the same
        coordinates; the rank makes their rounding errors differ."""
        return self.stage(values, round, start, rank).pieces()

    def stage(self, values: Tensor, round: int, start: int, rank: int) -> Staged:
        """As `encode`, begun: see ``Codec.stage``."""
        terms = self.terms
        codec = self.last if self.last is not None and rank == terms.me else terms.codec_of(round)
        members, seed = len(terms.plan.members), (terms.seed + 0x9E3779B9 * start) & (2**63 - 1)
        return codec.stage(values, seed=seed, step=round, rank=rank, members=members if rank < members else 1)

    def piece(self, here: slice) -> Tensor:
        """A buffer for a piece of the vector, always the same one, to save allocations."""
        length = here.stop - here.start
        if self._scratch.numel() < length:
            self._scratch = zeros(length, self.section.g.device)
        return self._scratch[:length]

    @property
    def own_norm(self) -> float:
        """The norm of this node's newest contributions before encoding, over all parts that it has offered so far."""
        return math.hypot(*self.own_norms.values())

    def size_of(self, part: int | None) -> int:
        """Bytes of this node's newest contribution of a part; None: of all parts."""
        found = self.own.values() if part is None else [self.own[part]] if part in self.own else []
        return sum(sum(sent.sizes) for sent in found)

    def bits_sent(self) -> float:
        """Bits per element in this node's newest contributions."""
        parts = self.terms.plan.parts
        elements = sum(parts[index].stop - parts[index].start for index in self.own)
        return 8 * self.size_of(None) / max(elements, 1)


def is_finite(values: Tensor) -> bool:
    """Whether all values are finite. Usually one pass: a finite sum shows it; only otherwise each value is tested."""
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())
