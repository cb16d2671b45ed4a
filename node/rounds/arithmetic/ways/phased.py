"""Rounds of codecs whose encodings are summed (PowerSGD, Global-QSGD, THC, IntSGD, random-k): several sums, one after
the other, each at the part's publisher.

Every member runs the codec's own program (``compress.exchange.phases``) on every parameter of a part. Each reduction
that the programs ask for is a *phase*: members send their values, the publisher reduces them in member order and
publishes the answer. The first phase fixes which members are counted. From the answers alone every member, counted or
not, computes the same sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from ..... import compress
from .....compress.exchange.requests import Context, Reduce
from ...protocol.messages import Contribution, Decide, Part, Result
from ...protocol.payloads import Refused, absurd_norm, contribution_of, pieces_of
from ..aggregator import Aggregator
from ..applier import TakeOff
from ..encoder import Encoder
from ..update import Update
from .programs import Running, check_levels, from_bytes, reduced, to_bytes


class Phased:
    """The way of rounds in phases."""

    def __init__(self, encoder: Encoder, aggregator: Aggregator) -> None:
        self.terms, self._encoder, self._aggregator = encoder.terms, encoder, aggregator
        self._section, self._plan = encoder.section, encoder.terms.plan
        self._totals: list[tuple[slice, Update]] = []
        """The update of the round that was checked, parameter by parameter."""
        self._programs: dict[int, list[Running]] = {}
        """Running programs by the index of a part's first phase."""
        self._warm: dict[int, dict[str, Tensor]] = {}
        """Warm-start tensors of the pending round."""
        self._memory: dict[int, dict[str, Tensor]] = {}
        """Tensors that programs keep from the last applied round (a warm start), by first element: the same on every
        member."""

    # ---- offering --------------------------------------------------------------------------

    def offer(self, round: int, part: Part) -> Contribution:
        """This node's contribution to a part's first phase."""
        whole = slice(part.start, part.stop)
        device = compress.home(self._section.g.device)
        vector = self._encoder.offered(whole).to(device, copy=True)  # a copy: programs use it in all phases
        self._encoder.own_norms[part.index] = float(torch.linalg.vector_norm(vector))
        self._programs[part.index] = list(self._start(vector, round, part))
        return self.requests(part.index)

    def _start(self, vector: Tensor, round: int, part: Part) -> Iterator[Running]:
        """Start the program of each parameter of a part, on the part's values [elements]."""
        layout, terms = self._section.layout, self.terms
        for start, stop, shape in zip(layout.offsets, layout.offsets[1:], layout.shapes, strict=False):
            if part.start <= start < part.stop:
                memory = {name: kept.to(vector.device) for name, kept in self._memory.get(start, {}).items()}
                seed = (terms.seed + 0x9E3779B9 * start) & (2**63 - 1)
                weight = terms.weights[terms.me]
                context = Context(seed, start, round, terms.me, len(self._plan.members), weight, memory)
                values = vector[start - part.start : stop - part.start]
                yield Running(start, stop, terms.codec.rounds(values.view(shape), context), context)

    def requests(self, first: int) -> Contribution:
        """The values that the programs of a part ask to be reduced now, as a contribution."""
        wanted = (run.request for run in self._programs[first])
        return contribution_of([b"" if request is None else to_bytes(request.tensor) for request in wanted])

    def advance(self, result: Result) -> Contribution:
        """This node's contribution to the phase after the one that ``result`` answers."""
        first = result.part - self._plan.parts[result.part].phase
        if not result.sizes:
            return Contribution((), (), 0)  # the part is void, and so are its later phases
        self.take(self._programs[first], result)
        return self.requests(first)

    def take(self, runs: Sequence[Running], result: Result) -> None:
        """Resume the programs with the answers of a phase, unless they are past it."""
        part = self._plan.parts[result.part]
        if any(run.phase != part.phase for run in runs):
            return
        answers = self.read(result.payload, result.sizes, runs, part.publisher)
        weights = self._plan.weights
        share = weights[self.terms.me] / math.fsum(weights[index] for index in result.contributors)
        try:
            for run, answer in zip(runs, answers, strict=True):
                run.take(answer, len(result.contributors), share)
        except (compress.CodecError, ValueError, ArithmeticError) as problem:
            raise Refused(part.publisher, f"an answer that no members' numbers have: {problem}") from None

    # ---- deciding --------------------------------------------------------------------------

    def decide(self, round: int, decide: Decide) -> tuple[Result, list[Refused]]:
        """Reduce the contributions to one phase. A result without a payload makes the part void: no member applies it.

        A part becomes void if a member's values are missing for good: its gradient is not finite, or its bytes are not
        valid in a phase after the first.
        """
        part = self._plan.parts[decide.part]
        runs = self._programs.get(part.index - part.phase, [])
        requests = [run.request for run in runs]
        counted: list[tuple[int, Contribution]] = []
        sums: list[Tensor | None] = [None] * len(requests)
        void = not runs or any(not sent.sizes for _, sent in decide.contributions)
        values, refused = ({}, []) if void else self._plausible(part, decide, runs)
        void = void or (bool(refused) and (self.terms.gradient or part.phase > 0))
        for index, sent in decide.contributions:
            if not void and index not in values:
                continue
            counted.append((index, sent))
            for place, (request, value) in enumerate(zip(requests, [] if void else values[index], strict=False)):
                if request is not None and value is not None:
                    sums[place] = reduced(request, sums[place], value)
        who = tuple(index for index, _ in counted)
        digests = tuple(sent.digest for _, sent in counted)
        if void:
            return Result(part.index, who, digests), refused
        made = contribution_of([_answer(*one) for one in zip(sums, requests, strict=True)])
        return Result(part.index, who, digests, made.payload, made.sizes, made.digest), refused

    def _plausible(
        self, part: Part, decide: Decide, runs: Sequence[Running]
    ) -> tuple[dict[int, list[Tensor | None]], list[Refused]]:
        """(values for each program of each member that may count, refusals of the others)."""
        values: dict[int, list[Tensor | None]] = {}
        refused: list[Refused] = []
        norms: dict[int, float] = {}
        for index, sent in decide.contributions:
            member = self._plan.members[index]
            try:
                read = self.read(sent.payload, sent.sizes, runs, member)
                for run, value in zip(runs, read, strict=True):
                    check_levels(run, value, member)
            except Refused as problem:
                refused.append(problem)
                continue
            values[index] = read
            pieces = [float(one.norm()) for one in read if one is not None and one.is_floating_point()]
            if pieces:
                norms[index] = math.hypot(*pieces) / self.terms.weights[index]
        for index, limit in self._aggregator.norms.absurd(part.index, norms, self.terms.me).items():
            del values[index]
            refused.append(absurd_norm(self._plan.members[index], norms[index], limit))
        return values, refused

    def read(
        self, payload: Sequence[bytes] | memoryview, sizes: Sequence[int], runs: Sequence[Running], member: str
    ) -> list[Tensor | None]:
        """The values that a member sent for each program's present request."""
        if len(sizes) != len(runs):
            raise Refused(member, f"{len(sizes)} pieces where {len(runs)} parameters are exchanged")
        try:
            blobs = list(pieces_of(payload, sizes))
            return [from_bytes(blob, run.request) for blob, run in zip(blobs, runs, strict=True)]
        except compress.CodecError as problem:
            raise Refused(member, f"bytes that are no answer to what was asked: {problem}") from None

    # ---- applying --------------------------------------------------------------------------

    def check(
        self, round: int, found: Mapping[int, Result], contributions: Mapping[tuple[int, int], Contribution]
    ) -> None:
        """As `Way.check`. Also runs the programs to their end; ``updates`` returns their sums."""
        self._totals = []
        for part in self._plan.parts_in(round):
            if part.phase:
                continue
            phases = [found[part.index + phase] for phase in range(self._plan.phases)]
            if self._void(phases):
                nothing = torch.full((part.stop - part.start,), torch.nan if self.terms.gradient else 0.0)
                self._totals.append((slice(part.start, part.stop), Update(nothing)))
                continue
            if self.terms.me in phases[0].contributors and not self.terms.follows:
                for result in phases:
                    self.take(self._programs[part.index], result)
            # The sum is computed from the answers alone, on the CPU, so that it has the same bits on all nodes.
            runs = list(self._start(torch.zeros(part.stop - part.start), round, part))
            for result in phases:
                self.take(runs, result)
            squares = 0.0
            for run in runs:
                assert run.total is not None, "every request of a program is a phase"
                total = run.total * (1.0 / self.terms.divisor)
                squares += float(torch.linalg.vector_norm(total)) ** 2
                self._totals.append((slice(run.start, run.stop), Update(total.to(self._section.g.device))))
                self._warm[run.start] = run.context.memory
            if math.isfinite(squares):
                if part.publisher != self.terms.name and not self.terms.follows:
                    self._aggregator.check_result(part, math.sqrt(squares))
            elif not self.terms.gradient:
                raise Refused(part.publisher, "answers that add up to values that are not finite")

    def updates(
        self, round: int, found: Mapping[int, Result], contributions: Mapping[tuple[int, int], Contribution]
    ) -> Iterator[tuple[slice, Update]]:
        return iter(self._totals)

    def outcomes(self, results: Sequence[Result]) -> Iterator[tuple[Part, bool]]:
        phases: dict[int, list[Result]] = {}
        for result in results:
            phases.setdefault(result.part - self._plan.parts[result.part].phase, []).append(result)
        for first, found in phases.items():
            void = first in self._programs and self._void(found)
            yield self._plan.parts[first], self.terms.me in found[0].contributors and not void

    def _void(self, phases: Sequence[Result]) -> bool:
        return any(not result.sizes for result in phases)

    def own_pieces(self, part: Part) -> Iterator[tuple[slice, TakeOff]]:
        for run in self._programs[part.index]:
            assert run.context.own is not None
            own = run.context.own.reshape(-1) * (1.0 / self.terms.weights[self.terms.me])
            yield slice(run.start, run.stop), partial(_take_off, own)

    def applied(self) -> None:
        """The round was applied: programs keep what the next one starts with."""
        self._memory.update(self._warm)
        self._programs, self._warm, self._totals = {}, {}, []


def _take_off(own: Tensor, values: Tensor) -> None:
    values.sub_(own.to(values.device))


def _answer(total: Tensor | None, request: Reduce | None) -> bytes:
    """A reduction's bytes, of the type that was asked for; empty where nothing was."""
    return b"" if total is None or request is None else to_bytes(total.to(request.tensor.dtype))


def phases_of(spec: str) -> int:
    """How many phases the rounds of a codec have; 0 for a codec whose encodings are decoded and summed."""
    return compress.make(spec).reductions
