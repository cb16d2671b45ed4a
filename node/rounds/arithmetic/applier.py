"""How a round's update changes a member's vectors: the reference g, the local weights x, and error feedbacks.

In ``delta`` mode a round communicates ``x - g``. What was not communicated stays in ``x``, which is CocktailSGD's error
feedback (Wang et al., 2023), or, with ``feedback=true`` in the codec's spec, goes to a separate vector, and ``x`` is
reset to ``g`` (SparseLoCo, Sarfi et al., 2025). The outer optimiser turns the mean update into the step of ``g``
(DiLoCo, Douillard et al., 2023). In ``gradient`` mode a round communicates gradients; what a codec loses stays in an
error feedback, which changes only when a step is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from ....job.tables.outer import Outer
from ...state.sections.section import Section
from ..protocol.messages import Part
from ..protocol.payloads import segments
from .encoder import RoundTerms
from .update import Update

TakeOff = Callable[[Tensor], None]
"""Subtracts values from a tensor in place."""
Updates = Iterable[tuple[slice, Update]]
"""The update D of a round in pieces: (slice of the section, its values), each valid until the next is asked for."""


class Applier:
    """Moves the vectors of one member's section in one view."""

    def __init__(self, terms: RoundTerms, section: Section, center: Tensor | None) -> None:
        """``center``: the centre that contributions are clipped towards, set to each round's D; None: zero."""
        self.terms, self.section, self._center = terms, section, center
        self.counts = False
        """Whether the open round, or without one the last round, has been applied."""
        self._progress: dict[int, Tensor] = {}
        """With an explicit error feedback: x - g at the round's beginning, by segment, if x has changed since."""
        self.factors: dict[int, float] = {}
        """The factor with which this node's own contribution counted, by part."""
        if not terms.gradient and section.feedback is not None and (not terms.explicit or len(terms.plan.members) == 1):
            section.x.add_(section.feedback)  # of a codec or group that is gone: from here it would not be sent
            section.feedback = None

    # ---- the open round ----------------------------------------------------------------------

    def begin(self) -> None:
        """A round begins; it is not applied yet."""
        self.counts, self._progress = False, {}

    def x_moves(self, offered: Iterable[int]) -> None:
        """The local weights are about to change while a round is in flight. With an explicit error feedback the present
        x - g must be kept, because the round will take it off x; this costs another vector. ``offered``: parts in
        flight."""
        if self.terms.explicit and not self.counts and not self._progress:
            x, g, parts = self.section.x, self.section.g, self.terms.plan.parts
            pieces = [here for index in offered if parts[index].phase == 0 for here in segments(parts[index])]
            keep, name, round = self.section.residuals.kept, self.section.layout.section, self.section.round
            self._progress = {
                here.start: keep(x[here] - g[here], f"{name}/progress", here.start, round) for here in pieces
            }

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept for the open round."""
        return sum(one.nbytes for one in self._progress.values())

    def applied(self) -> None:
        """The round counts."""
        self.counts, self._progress, self.factors = True, {}, {}

    # ---- delta mode --------------------------------------------------------------------------

    def apply_delta(self, updates: Updates, counted: Mapping[int, tuple[TakeOff, int]]) -> None:
        """Move g and x by the outer step of the update, and subtract from x what was counted of this node's own update.

        With an explicit error feedback all that was offered leaves x, and what was not counted stays in the feedback.
        ``counted``: first element of a piece -> (function that subtracts this node's contribution, the part's index).
        """
        section = self.section
        for here, update in updates:
            with section.feeding(here) if self.terms.explicit else nullcontext(section.x[here]) as kept:
                if self.terms.explicit:
                    progress = self._progress.get(here.start)
                    if progress is None:
                        progress = section.x[here] - section.g[here]
                    section.x[here].sub_(progress)
                    kept.add_(progress)
                self._move(update, here)
                if here.start in counted:
                    self._let_go(*counted[here.start], kept, here)
            if self._center is not None:
                update.write_to(self._center[here])

    def _let_go(self, take_off: TakeOff, part: int, kept: Tensor, here: slice) -> None:
        """Subtract this node's contribution, times the factor with which it counted, from x (or the feedback) in
        ``here``, ``kept``. The rest stays there for a later round."""
        factor = self.factors.get(part, 1.0)
        if factor == 1.0:
            take_off(kept)
            return
        own = torch.zeros(here.stop - here.start, device=kept.device)
        take_off(own)
        kept.add_(own * factor)
        if self._center is not None:
            kept.sub_(self._center[here] * (1.0 - factor))

    def apply_alone(self, parts: Iterable[Part]) -> None:
        """A round of a section without a second member: its D is this node's own x - g."""
        section = self.section
        if self._outer.is_average:
            section.g.copy_(section.x)
            return
        for part in parts:
            here = slice(part.start, part.stop)
            self._move(Update(section.x[here] - section.g[here]), here)
            section.x[here] = section.g[here]

    @property
    def _outer(self) -> Outer:
        """The outer step of the round that is being applied, from its mean update."""
        return self.terms.outer if self.section.round < self.terms.outer_until else Outer()

    def _move(self, update: Update, here: slice) -> None:
        """Move g and x by the outer step of an update."""
        section = self.section
        if self._outer.is_average:
            update.add_to(section.g[here], section.x[here])
            return
        moved = outer_step(self._outer, update.values(), None if section.outer is None else section.outer[here])
        section.g[here].add_(moved)
        section.x[here].add_(moved)

    # ---- gradient mode -----------------------------------------------------------------------

    def settle(self, part: Part, own: Iterator[tuple[slice, TakeOff]]) -> None:
        """In a part, the gradient becomes the error feedback that follows if the step is committed: the feedback plus
        the gradient minus this node's contribution, ``own``."""
        section = self.section
        if section.feedback is not None:
            here = slice(part.start, part.stop)
            section.grad[here].add_(section.feedback[here])
        for here, take_off in own:
            take_off(section.grad[here])

    def commit_gradient(
        self, updates: Updates, own: Iterator[tuple[slice, TakeOff]], carries: bool, settled: Sequence[slice] = ()
    ) -> None:
        """The step was committed: the error feedback becomes what this node's encodings lost, and the gradient becomes
        the ``updates``. If the round ``carries`` errors, the gradient must still be that of the round's beginning, but
        where it is ``settled``; ``own``: this node's contributions elsewhere."""
        section = self.section
        if not carries:
            section.feedback = None  # the earlier feedback was sent without loss, and this round keeps none
        else:
            self._feed(settled)
            for here, take_off in own:
                with section.feeding(here) as fed:
                    take_off(fed)
        for here, update in updates:
            update.write_to(section.grad[here])
        if self._center is not None:
            self._center.copy_(section.grad)

    def _feed(self, settled: Sequence[slice]) -> None:
        """The gradient joins the error feedback, or, where that is ``settled`` or new, becomes it."""
        section, at, is_new = self.section, 0, self.section.feedback is None
        end = section.layout.numel
        for whole in (*sorted(settled, key=lambda one: one.start), slice(end, end)):
            for here in section.pieces(at, whole.start):
                with section.feeding(here) as fed:
                    fed.copy_(section.grad[here]) if is_new else fed.add_(section.grad[here])
            for here in section.pieces(whole.start, whole.stop):
                with section.feeding(here) as fed:
                    fed.copy_(section.grad[here])
            at = whole.stop

    # ---- a spare -----------------------------------------------------------------------------

    def follow(self, updates: Updates) -> None:
        """Apply an update to which this node contributed nothing: move g, or in gradient mode set the gradient to
        it."""
        for here, update in updates:
            if self.terms.gradient:
                update.write_to(self.section.grad[here])
            else:
                self._move(update, here)
            if self._center is not None:
                update.write_to(self._center[here])


def outer_step(outer: Outer, update: Tensor, momentum: Tensor | None) -> Tensor:
    """The step of ``g``, fp32 [n], for the mean update D, fp32 [n]; updates ``momentum`` [n] in place. The same bits on
    every device."""
    if momentum is not None and outer.momentum:
        momentum.mul_(outer.momentum).add_(update)
        update = update + momentum * outer.momentum if outer.nesterov else momentum
    return update if outer.rate == 1.0 else update * outer.rate
