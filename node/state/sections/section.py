"""A section: the parameters that one group shares, as flat fp32 vectors, and the chain of rounds applied to them.

The **reference** ``g`` has the same bits on every member of the group and changes only by applying rounds. The
local weights ``x`` are what the model computes with: the model's parameters are views into ``x``. In ``gradient``
mode both are one vector. The optimiser's moments lie beside them in the same order.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import xxhash
from torch import Tensor

from ....proto.words.moments import factored
from .moments import STRETCH, Kept, closed, opened
from .passing import passing
from .residuals import EXACT, Residuals
from .room import Room, leave, room_for
from .vectors import PIECE, zeros

_MASK = 2**64 - 1
_PIECE = 1 << 21
"""Elements of a residual that are opened at a time."""
_SAMPLED = 61
"""One of so many elements is sampled to estimate how far the reference has moved. It is a prime, so that no parameter's
dimension is a multiple of it."""


@dataclass(frozen=True)
class Layout:
    """The position of each named parameter in a section's flat vector."""

    section: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    """The index of each parameter's first element, then the vector's length as the last entry."""

    @classmethod
    def of(cls, section: str, shapes: Mapping[str, Sequence[int]]) -> "Layout":
        """Lay the parameters out one after the other in the order given."""
        offsets = [0]
        for shape in shapes.values():
            offsets.append(offsets[-1] + torch.Size(shape).numel())
        return cls(section, tuple(shapes), tuple(tuple(s) for s in shapes.values()), tuple(offsets))

    @property
    def numel(self) -> int:
        return self.offsets[-1]

    def of_moments(self, kept: Kept) -> "Layout":
        """The positions in a moment's vector."""
        if not kept.factored:
            return self
        return Layout.of(self.section, {name: factored(s) for name, s in zip(self.names, self.shapes, strict=True)})

    def views(self, vector: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Each parameter as a view of the flat ``vector`` [numel]."""
        for name, shape, (start, stop) in zip(self.names, self.shapes, pairwise(self.offsets), strict=True):
            yield name, vector[start:stop].view(shape)

    def names_in(self, start: int, stop: int) -> list[str]:
        """The parameters that have elements in a range of the flat vector."""
        where = zip(self.names, pairwise(self.offsets), strict=True)
        return [name for name, (first, end) in where if first < stop and end > start]

    def slices(self) -> Iterator[tuple[str, slice]]:
        """Each parameter's name, and where it lies in the vector."""
        for name, (start, stop) in zip(self.names, pairwise(self.offsets), strict=True):
            yield name, slice(start, stop)

    def blocks(self, size: int) -> list[tuple[int, int]]:
        """The vector cut into ranges of ``size`` elements. They depend on the model alone, not on membership."""
        return [(start, min(start + size, self.numel)) for start in range(0, self.numel, size)]


@dataclass(frozen=True)
class Stretch:
    """A piece of one parameter, as views of the section's vectors, each fp32 [elements]."""

    x: Tensor
    grad: Tensor
    moments: Mapping[str, Tensor]
    is_matrix: bool
    """Whether the parameter has two dimensions or more."""
    name: str = ""
    shape: tuple[int, ...] = ()
    """Shape of the whole parameter."""


class Section:
    """One section on one node.

    Attributes:
        g: the reference, fp32 [numel].
        x: the local weights, fp32 [numel]; ``g`` itself in gradient mode.
        grad: the sum of a step's gradients (gradients.py), fp32 [numel].
        moments: the optimiser's state by name, in the dtype and place that ``kept`` says, each [numel] or, factored, as
            long as ``of_moments`` says.
        of_moments: their layout; ``layout`` itself unless they are factored.
        outer: the outer optimiser's momentum, fp32 [numel], which is part of the reference; None if it has no momentum.
        feedback: this node's residual, [numel], in fp32 or as ``residuals`` says, if it is not kept in x; None before
            the first round. It belongs to the node, not to the group. `feeding` changes it.
        weight: the node's weight in the group to which x - g and feedback are scaled: its term of the sum S (see
            docs/rounds.md) is weight (x - g + feedback). 0: x = g, and there is no feedback.
        round: the last round applied. chain: h(round).
    """

    def __init__(
        self,
        layout: Layout,
        shared: bool,
        kept: Kept,
        device: torch.device,
        outer: bool = False,
        room: Room | None = None,
        *,
        pinned: bool = False,
        residuals: Residuals = EXACT,
    ) -> None:
        """``room``: memory that processes share, on the CPU; all vectors lie in it. None: they are this process's.
        ``pinned``: weights and gradient lie in pinned memory, on the CPU."""
        self.layout, self.room, self.of_moments = layout, room, layout.of_moments(kept)
        self._kept = kept
        length = self.of_moments.numel

        def make() -> Tensor:
            return zeros(layout.numel, device, pinned=pinned) if room is None else room.zeros(layout.numel)

        self.g = make()
        self.x = self.g if shared else make()
        self.grad = make()
        self.moments = (
            kept.zeros(length, device) if room is None else {one: room.zeros(length, kept.dtype) for one in kept.names}
        )
        self.residuals = residuals
        self._feedback: Tensor | None = None if room is None else room.zeros(layout.numel, residuals.dtype)
        self._fed = None if room is None else room.zeros(1, torch.uint8)
        """Whether there is a feedback; None: there is one if ``_feedback`` says so."""
        self.weight = 0.0
        self.outer = make() if outer else None
        self.round = 0
        self.chain = 0
        self._begun: Tensor | None = None
        """A sample of g's elements at the time when this node took it up."""

    @staticmethod
    def room_of(layout: Layout, kept: Kept) -> Room:
        """A new room for a section's vectors: g, x, gradient, feedback, the outer step's momentum, and the moments."""
        return room_for(layout.numel, 5 + len(kept.names))

    def moments_in(self, offload: bool) -> dict[str, Tensor]:
        """New vectors like the moments, on the device or, with ``offload``, in main memory, for `keep`. The moments
        themselves where they have but one place: in a room, or on a CPU without a folder."""
        if self.room is not None or (self.x.device.type == "cpu" and self._kept.folder is None):
            return self.moments
        return replace(self._kept, offload=offload).zeros(self.of_moments.numel, self.x.device)

    def keep(self, moments: dict[str, Tensor]) -> None:
        """Keep the moments in these vectors from now on, with all their bits."""
        for name, vector in self.moments.items():
            if moments[name] is not vector:
                moments[name].copy_(vector)
        self.moments = moments

    @property
    def feedback(self) -> Tensor | None:
        """The error feedback, fp32 [numel]; None: there is none. With a room it is a copy of what it is set to."""
        return self._feedback if self._fed is None or self._fed[0] else None

    @feedback.setter
    def feedback(self, values: Tensor | None) -> None:
        if self._fed is None:
            self._feedback = values
            return
        if values is not None and self._feedback is not None:
            self._feedback.copy_(values)
        self._fed[0] = values is not None

    @contextmanager
    def feeding(self, here: slice) -> Iterator[Tensor]:
        """A context with the error feedback in a slice of the section, fp32, in which it is changed. Without a feedback
        there is one of zeros from now on."""
        if self.feedback is None:
            self.feedback = torch.zeros_like(self.g, dtype=self.residuals.dtype)
        kept = self.feedback
        assert kept is not None
        if self.residuals.is_exact:
            yield kept[here]
            return
        values = kept[here].float()
        yield values
        kept[here] = self.residuals.kept(values, f"{self.layout.section}/feedback", here.start, self.round)

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[slice]:
        """A range of the vector in slices for which a tensor is small beside the section; all of it in one where
        residuals need no other tensor."""
        stop = self.layout.numel if stop is None else stop
        step = max(1, stop - start) if self.residuals.is_exact else _PIECE
        yield from (slice(at, min(at + step, stop)) for at in range(start, stop, step))

    @property
    def nbytes(self) -> int:
        """Bytes of the vectors that a step touches: weights, gradient, moments, the error feedback if there is one."""
        found = [self.grad, *self.reference, *self.moments.values()]
        found += [one for one in (self.x if self.x is not self.g else None, self.feedback) if one is not None]
        return sum(one.nbytes for one in found)

    @property
    def moved(self) -> float:
        """An estimate, from a sample of elements, of the norm of g's change since this node took it up."""
        sample = self.g[::_SAMPLED]
        if self._begun is None or not sample.numel():
            return 0.0
        norm = float(torch.linalg.vector_norm(sample - self._begun))
        leave(self.g)
        return norm * math.sqrt(self.g.numel() / sample.numel())

    def begins(self) -> None:
        """This node takes up the present g: `moved` counts from here."""
        self._begun = self.g[::_SAMPLED].clone()
        leave(self.g)

    @property
    def reference(self) -> tuple[Tensor, ...]:
        """The vectors that a round changes, each fp32 [numel]: g, and the outer momentum if there is one."""
        return (self.g,) if self.outer is None else (self.g, self.outer)

    def stretches(self, step: int, whole: bool = False) -> Iterator[Stretch]:
        """The vectors cut into pieces of one parameter each: ``whole`` parameters, or, on a CPU, at most STRETCH
        elements. A piece's moments are fp32 on the weights' device; they are written back when the next piece is asked
        for, so change them before that. ``step``: the number of steps, for the dither. Factored moments go with whole
        parameters. Moments in main memory come to a device while it computes the piece before (passing.py)."""
        device = self.x.device
        away = device.type != "cpu" and any(one.device.type == "cpu" for one in self.moments.values())
        size = self.layout.numel if whole or device.type != "cpu" else STRETCH
        pieces = list(self._pieces(min(size, PIECE) if away and not whole else size))
        if away:
            places = [(there, here.start) for here, there, _, _ in pieces]
            found = passing(self.moments, places, device, step, 1 if whole else 2)
            for values, (here, _, name, shape) in zip(found, pieces, strict=True):
                yield Stretch(self.x[here], self.grad[here], values, len(shape) >= 2, name, shape)
            return
        for here, there, name, shape in pieces:
            moments = {name: vector[there] for name, vector in self.moments.items()}
            values = opened(moments, device)
            yield Stretch(self.x[here], self.grad[here], values, len(shape) >= 2, name, shape)
            closed(moments, values, here.start, step)

    def _pieces(self, size: int) -> Iterator[tuple[slice, slice, str, tuple[int, ...]]]:
        """(its place, its moments' place, the parameter and its shape) of each piece of at most ``size`` elements."""
        layout, places = self.layout, pairwise(self.of_moments.offsets)
        of_each = zip(pairwise(layout.offsets), places, layout.names, layout.shapes, strict=True)
        for (start, stop), place, name, shape in of_each:
            for first in range(start, stop, size):
                here = slice(first, min(first + size, stop))
                yield here, here if self.of_moments is layout else slice(*place), name, shape

    def adopt(self) -> None:
        """x := g, as for a joiner: the node has nothing of its own."""
        self.weight = 0.0
        if self.x is not self.g:
            self.x.copy_(self.g)
            leave(self.x, self.g)

    def weigh(self, weight: float) -> None:
        """Delta mode: this node's weight in the group is ``weight`` from now on. x - g and the feedback are rescaled so
        that the node's term of the sum S stays the same; an unchanged weight changes no bit."""
        if self.weight not in (0.0, weight):
            factor = self.weight / weight
            self.x.sub_(self.g).mul_(factor).add_(self.g)
            for here in self.pieces() if self.feedback is not None else ():
                with self.feeding(here) as fed:
                    fed.mul_(factor)
            self.leave()
        self.weight = weight

    def leave(self) -> None:
        """As `room.leave`, of all vectors."""
        if self.room is not None and not self.room.is_kept:
            self.room.let_go()

    def fingerprint(self, with_moments: bool) -> int:
        """A 64-bit hash of all that the members of the group must agree on."""
        digest = xxhash.xxh3_64()
        for vector in (*self.reference, *(self.moments.values() if with_moments else ())):
            digest.update(_bytes(vector))
            leave(vector)
        return digest.intdigest()

    def restart_chain(self, view: int, round: int) -> None:
        """Begin a new chain for a new view, from a hash of the content that all its members share."""
        self.round = round
        self.chain = xxhash.xxh3_64_intdigest(_words(view, round, self.fingerprint(False)))

    def next_chain(self, digests: Sequence[int], block: int, content: int | None = None) -> int:
        """h(round + 1): a hash of the chain so far, the digests of the results in part order, and some of the content:
        ``content``, or what `content_of` finds."""
        found = self.content_of(self.round + 1, block) if content is None else content
        return xxhash.xxh3_64_intdigest(_words(self.chain, *digests, found))

    def content_of(self, round: int, block: int) -> int:
        """A hash of one of every 64 blocks of the reference, a different 64th in each round, so that a copy that has
        diverged is found even if no message was wrong."""
        content = xxhash.xxh3_64()
        for start, stop in self.layout.blocks(block)[round % 64 :: 64]:
            content.update(_words(start))
            for vector in self.reference:
                content.update(_bytes(vector[start:stop]))
        return content.intdigest()

    def use_feedback(self) -> None:
        """Gradient mode, alone in its group: what no other member will be sent joins the gradient."""
        if self.feedback is not None:
            self.grad.add_(self.feedback)
            self.feedback = None


def _bytes(vector: Tensor) -> memoryview:
    return vector.detach().cpu().contiguous().view(torch.uint8).numpy().data.cast("B")


def _words(*values: int) -> bytes:
    return b"".join((value & _MASK).to_bytes(8, "little") for value in values)
