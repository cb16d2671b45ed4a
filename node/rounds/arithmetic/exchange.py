"""The arithmetic of a section's rounds: what is encoded, summed, and added to which vector.

Nothing here waits or sends. An exchange consists of an Encoder (encodes this member's update), an Aggregator (sums
contributions as a publisher), an Applier (changes g and x) and a Way (how encodings add up: ways/way.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
import xxhash
from torch import Tensor

from .... import compress
from ....compress.codec import tensor_bytes
from ....compress.specs.spec import spec_feedback
from ....job.tables.outer import Outer
from ....job.tables.robust import Robust
from ...state.optimizers.optimizers import squared_norm
from ...state.sections.room import leave
from ...state.sections.section import Section
from ..protocol.messages import Contribution, Decide, Part, Result, RoundPlan, Sent
from ..protocol.payloads import SEGMENT, Place, Refused, segments
from .aggregator import Aggregator
from .applier import Applier
from .batches import all_finite
from .elsewhere import Elsewhere
from .encoder import Encoder, RoundTerms
from .update import Update
from .ways.masked import Masked
from .ways.phased import Phased, phases_of
from .ways.way import Summed, Way


class Exchange:
    """One member's computations in the rounds of one section in one view."""

    def __init__(
        self,
        section: Section,
        plan: RoundPlan,
        me: str,
        codec: str,
        *,
        dense_rounds: int = 0,
        gradient: bool = False,
        seed: int = 0,
        outer: Outer | None = None,
        robust: Robust | None = None,
        follows: bool = False,
        outer_until: float = math.inf,
        closing: str = "",
        secure: bool = False,
    ) -> None:
        """The arguments are described at `RoundTerms`. ``closing``: empty for none. ``secure``: contributions are
        masked.

        Raises:
            FarflungError: ``secure`` in a group where a sum would not hide what went into it.
        """
        made = compress.make(codec)
        self.terms = RoundTerms(
            plan=plan,
            me=plan.members.index(me),
            codec=made,
            dense_rounds=dense_rounds,
            gradient=gradient,
            seed=xxhash.xxh3_64_intdigest(f"{seed}/{section.layout.section}".encode()) >> 1,
            outer=outer or Outer(),
            robust=robust or Robust(),
            follows=follows,
            explicit=not gradient and spec_feedback(made.spec),
            outer_until=outer_until,
            closing=compress.make(closing) if closing else None,
            dense=compress.make("none"),
        )
        self.section = section
        self.share = plan.weights[self.terms.me] / math.fsum(plan.weights)
        """This node's weight; the weights of all members add up to 1."""
        self.encoder = Encoder(self.terms, section)
        self.aggregator = Aggregator(self.encoder)
        self.applier = Applier(self.terms, section, self.aggregator.center)
        self._summed = Summed(self.encoder, self.aggregator, self.applier)
        self.phased: Way | None = None
        """The way of rounds in phases, if the codec has phases."""
        if phases_of(codec):
            self.phased = (Masked if secure else Phased)(self.encoder, self.aggregator)
        self._way: Way = self._summed
        """The way of the open round."""
        self.carries = False
        """Gradient mode: whether this round uses error feedback; then the gradient must stay until the commit."""
        self.elsewhere: Elsewhere | None = None
        """The process that keeps the section's vectors; None: this one does."""
        self._settled: set[int] = set()
        """Gradient mode with error feedback: the parts whose new error lies in the gradient's place."""

    @property
    def plan(self) -> RoundPlan:
        """The view's plan of the section's rounds."""
        return self.terms.plan

    @property
    def me(self) -> int:
        """This member's index in the plan."""
        return self.terms.me

    @property
    def own_norm(self) -> float:
        """As `Encoder.own_norm`."""
        return self.encoder.own_norm

    @property
    def errors(self) -> dict[int, Tensor]:
        """Server errors of the parts that this node publishes."""
        return self.aggregator.errors

    def place_in(self, place: Place) -> None:
        """Write encodings into ``place`` as they are made."""
        self.encoder.place = place

    def way_of(self, round: int) -> Way:
        """How a round's encodings add up; dense rounds and those that close a run are always decoded and summed."""
        phased = self.terms.lossy(round) and (self.terms.closing is None or round <= self.terms.outer_until)
        return self.phased if self.phased is not None and phased else self._summed

    # ---- offering --------------------------------------------------------------------------

    def open(self, round: int) -> None:
        """A round begins, with nothing offered yet."""
        self._way = self.way_of(round)
        self.aggregator.forget_published()
        self.applier.begin()
        self.encoder.own = {}
        self.carries = self.terms.gradient and self.terms.keeps_errors(round)
        self._settled = set()

    def offer(self, round: int, part: Part) -> Contribution:
        """This node's contribution to a part (of phase 0) of the open round. Changes no weights. In gradient mode it
        has no bytes if a value is not finite, which makes the part's sum void, so that the step is dropped.

        Raises:
            compress.CodecError: in delta mode, if ``x - g`` is not finite; it must not be sent.
        """
        if self.elsewhere is not None:
            made, norm = self.elsewhere.offer(round, part)
            if made.sizes:
                self.encoder.own_norms[part.index] = norm
        elif self.terms.gradient and not all_finite(lambda: map(self.encoder.offered, segments(part))):
            made = Contribution((), (), 0)
        else:
            made = self._way.offer(round, part)
        self.encoder.own[part.index] = made
        self._leave()
        return made

    def contributions(self, round: int) -> dict[int, Contribution]:
        """Opens a round; this node's contribution to every part, as `offer`."""
        self.open(round)
        parts = [part for part in self.plan.parts_in(round) if part.phase == 0]
        return {part.index: self.offer(round, part) for part in parts}

    def advance(self, result: Result) -> Contribution:
        """Rounds in phases: this node's contribution to the phase after the one that ``result`` answers."""
        return self._way.advance(result)

    def x_moves(self) -> None:
        """Call it before the local weights change while a round may be in flight."""
        if self.elsewhere is None:
            self.applier.x_moves(self.encoder.own)
        elif self.terms.explicit and not self.applier.counts:
            self.elsewhere.x_moves(self.encoder.own)

    # ---- deciding --------------------------------------------------------------------------

    def decide(self, round: int, decide: Decide) -> tuple[Result, list[Refused]]:
        """Sum the contributions to a part. Returns the result, and the refused members."""
        decided = self.way_of(round).decide(round, decide)
        self._leave()
        return decided

    # ---- applying --------------------------------------------------------------------------

    def check(self, round: int, found: Mapping[int, Result], contributions: Sent) -> None:
        """Check that the round may be applied. ``found``: the result of every part.

        Raises:
            Refused: the results are wrong; it names the member that sent the wrong one.
        """
        self._way = self.way_of(round)
        self._way.check(round, found, contributions)

    def updates(self, round: int, found: Mapping[int, Result], contributions: Sent) -> Iterator[tuple[slice, Update]]:
        """The update D of a checked round in pieces: (slice of the section, its values), each valid until the next
        is asked for."""
        return self.way_of(round).updates(round, found, contributions)

    def place(self, round: int, result: Result, contributions: Sent) -> None:
        """Gradient mode, in a round without error feedback: the sum of one part takes the gradient's place there. Then
        this node's own contribution to it is not needed any more.

        Raises:
            Refused: as `check`.
        """
        self.check(round, {result.part: result}, contributions)
        self.put(round, {result.part: result}, contributions)
        self.encoder.own[result.part] = replace(self.encoder.own[result.part], payload=())

    def put(self, round: int, found: Mapping[int, Result], contributions: Sent) -> None:
        """Gradient mode: these sums, which were checked, take the gradient's place."""
        if self.elsewhere is not None:
            self.elsewhere.place(round, found, contributions)
            return
        for here, update in self.updates(round, found, contributions):
            update.write_to(self.section.grad[here])
        self._leave()

    def square(self, round: int, found: Mapping[int, Result], contributions: Sent) -> float:
        """The squared norm of a checked round's sums."""
        if self.elsewhere is not None and self.way_of(round) is self.phased:
            return self.elsewhere.square(round, found, contributions)
        return math.fsum(squared_norm(update.values()) for _, update in self.updates(round, found, contributions))

    @property
    def settles(self) -> bool:
        """Whether `settle` may be called in the open round: not in all-to-all, where contributions are the sum, nor if
        encodings are added without decoding them, or another process keeps the section's vectors."""
        return self.carries and self.plan.pattern != "all_to_all" and self._way is self._summed and not self.elsewhere

    def settle(self, part: Part) -> None:
        """Gradient mode with error feedback: what this node's encoding of a part lost, its new error, takes the
        gradient's place there, and the bytes of its contribution are free. The feedback itself changes only when the
        step is committed."""
        own = self.encoder.own[part.index]
        if own.sizes:  # else a value was not finite, and no step is committed
            self.applier.settle(part, self._way.own_pieces(part))
        self.encoder.own[part.index] = replace(own, payload=())
        self._settled.add(part.index)

    def apply_delta(self, updates: Iterable[tuple[slice, Update]], results: Sequence[Result]) -> None:
        """Move g and x by the outer step of the update, and subtract from x what was counted of this node's own."""
        self.aggregator.keep_errors(results)
        counted = {
            here.start: (take_off, part.index)
            for part, was_counted in self._way.outcomes(results)
            if was_counted
            for here, take_off in self._way.own_pieces(part)
        }
        self.applier.apply_delta(updates, counted)
        self._applied()

    def resume(self, round: int, own: dict[int, Contribution]) -> None:
        """For a process that only computes: the round is that one, and this node has offered ``own``."""
        self._way, self.encoder.own = self.way_of(round), own
        self.carries = self.terms.gradient and self.terms.keeps_errors(round)

    def applied_elsewhere(self, results: Sequence[Result]) -> None:
        """As after `apply_delta` or `commit_gradient`: another process has applied the update."""
        if self.terms.gradient:
            self.aggregator.keep_all_errors()
        else:
            self.aggregator.keep_errors(results)
        self.aggregator.forget_published()
        self.applier.applied()

    def commit_gradient(self, updates: Iterable[tuple[slice, Update]] = ()) -> None:
        """The step was committed: the error feedback becomes what this node's encodings lost, and the gradient becomes
        the ``updates``."""
        self.aggregator.keep_all_errors()
        parts = [self.plan.parts[index] for index in self.encoder.own]
        own = (piece for part in parts if part.index not in self._settled for piece in self._way.own_pieces(part))
        settled = [slice(part.start, part.stop) for part in parts if part.index in self._settled]
        self.applier.commit_gradient(updates, own, self.carries, settled)
        self._applied()

    def follow(self, updates: Iterable[tuple[slice, Update]]) -> None:
        """Apply an update to which this node contributed nothing."""
        self.applier.follow(updates)
        self._applied()

    def apply_alone(self, round: int) -> None:
        """A round of a section without a second member: its D is this node's own x - g."""
        self.applier.apply_alone(self.plan.parts_in(round))

    def _applied(self) -> None:
        self.aggregator.forget_published()
        self.applier.applied()
        self._way.applied()
        self._leave()

    def _leave(self) -> None:
        """If another process keeps the section, and this one had to compute with it, its pages need not stay."""
        self.section.leave()
        if self.aggregator.center is not None:
            leave(self.aggregator.center)

    # ---- the view's end ----------------------------------------------------------------------

    @property
    def unsent_kinds(self) -> tuple[str, ...]:
        """The kinds of this node's own terms of the sum S (docs/rounds.md) that are not zero: ``rest.`` is x - g,
        ``feedback.`` the error feedback; the last one includes the server errors in delta mode, the only one in
        gradient mode."""
        fed = self.section.feedback is not None or (self.terms.gradient and bool(self.errors))
        return ("feedback.",) * fed + ("rest.",) * (not self.terms.gradient)

    def unsent_at(self, kind: str, here: slice) -> Tensor:
        """One of `unsent_kinds` in a slice of the section, as if the view ended now: a new tensor, fp32, on the CPU."""
        section = self.section
        if kind == "rest.":
            values = (section.x[here] - section.g[here]).to("cpu")
        elif section.feedback is not None:
            values = section.feedback[here].to("cpu", torch.float32, copy=True)
        else:
            values = torch.zeros(here.stop - here.start)
        if self.errors and kind == self.unsent_kinds[-1]:
            self.aggregator.add_errors_to(values, here.start)
        return values

    def unsent(self, zeros: Callable[[int], Tensor] = torch.zeros) -> dict[str, Tensor]:
        """All of `unsent_kinds`: copies, fp32 [numel] on the CPU each, in vectors that ``zeros`` makes."""
        layout, found = self.section.layout, dict[str, Tensor]()
        for kind in self.unsent_kinds:
            found[kind] = zeros(layout.numel)
            for start, stop in layout.blocks(SEGMENT):
                found[kind][start:stop] = self.unsent_at(kind, slice(start, stop))
        self.section.leave()
        return found

    def fold_errors(self) -> None:
        """A view ends: add this node's server errors to its own x (in gradient mode to its error feedback), so that the
        sum S stays."""
        self.aggregator.forget_published()
        section, gradient = self.section, self.terms.gradient
        for here in section.pieces() if self.errors else ():
            with section.feeding(here) if gradient else nullcontext(section.x[here]) as into:
                self.aggregator.add_errors_to(into, here.start)
        if self.errors:
            leave(section.x if section.feedback is None or not gradient else section.feedback)
        self.aggregator.errors = {}


def error_digest(error: Tensor | None) -> int:
    """The digest that a result carries of its publisher's server error [n], as it is kept; 0: no error."""
    return 0 if error is None else xxhash.xxh3_64_intdigest(tensor_bytes(error.detach()))
