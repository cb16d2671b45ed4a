"""The arithmetic of rounds of the sections that one rank of an island keeps, for the rank that keeps them.

The first process has the machine of each section's rounds and an exchange of its own, with all that outlives a round
(server errors, what was offered). What goes over whole vectors is done by the rank that keeps them, with an exchange
that has the same terms: it encodes, decodes, and changes the vectors. Beside these it remembers only what an open round
needs of it: programs of phases, and x - g where steps overtake the round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from .... import compress
from ....job.schema import Job
from ....scheduler import Plan
from ...rounds.arithmetic.exchange import Exchange
from ...rounds.exchanges import exchange_of
from ...rounds.protocol.messages import Contribution, Decide, Part, Result
from ...rounds.protocol.payloads import Refused
from ...rounds.protocol.window import has_room, is_windowed, order, publishers_of
from .box import Boxes
from .rank_sections import RankSections

Words = dict[str, Any]


class RankRounds:
    """``words``: the view's plan and job, this node's name, for each section whether spares follow it, and the last
    round with an outer step."""

    def __init__(self, kept: RankSections, boxes: Boxes, words: Words) -> None:
        job, plan = Job.model_validate_json(words["job"]), Plan.from_json(words["plan"])
        self._sent, self._told = boxes
        self._exchanges: dict[str, Exchange] = {}
        self._opened: dict[str, int] = {}
        """The round of each section that was opened last."""
        for section in kept.own:
            name = section.layout.section
            if name in words["followed"]:
                followed, until = words["followed"][name], words["until"]
                self._exchanges[name] = exchange_of(job, plan, section, words["me"], followed=followed, until=until)
                self._exchanges[name].place_in(self._sent.place)

    @torch.no_grad()
    def encode(self, words: Words) -> Words:
        """This node's contributions to rounds, by section: for each part (index, norm, sizes, digest, place in the
        box). Of one part; or a round begins, of all parts that may be offered before anything has been summed."""
        if words["clear"]:
            self._sent.clear()
        found: dict[str, list[list[Any]]] = {}
        for name, (number, last) in words["rounds"].items():
            exchange = self._exchanges[name]
            exchange.encoder.last = compress.make(last) if last else None
            part = words["part"]
            if part is None or self._opened.get(name) != number:
                exchange.open(number)
                self._opened[name] = number
            parts = self._first(exchange, number) if part is None else [exchange.plan.parts[part]]
            found[name] = [self._offered(exchange, number, one) for one in parts]
        return {"encoded": found}

    def _first(self, exchange: Exchange, number: int) -> Iterator[Part]:
        parts = [part for part in exchange.plan.parts_in(number) if part.phase == 0]
        if not (exchange.terms.gradient and is_windowed(exchange.plan)):
            yield from parts
            return
        publishers, own = publishers_of(exchange.plan), exchange.encoder.own
        for part in order(parts):
            if not has_room([sum(one.sizes) for one in own.values()], publishers):
                return
            yield part

    def _offered(self, exchange: Exchange, number: int, part: Part) -> list[Any]:
        made = exchange.offer(number, part)
        norm = exchange.encoder.own_norms.get(part.index, 0.0)
        return [part.index, norm, *self._said(made)]

    def _said(self, made: Contribution | Result) -> list[Any]:
        """(sizes, digest, place in the box)."""
        inside = isinstance(made.payload, memoryview)
        return [made.sizes, made.digest, (self._sent.where if inside else self._sent.put)(made.payload)]

    def moves(self, name: str, offered: Sequence[int]) -> None:
        """As `Applier.x_moves`."""
        self._exchanges[name].applier.x_moves(offered)

    # ---- rounds in phases --------------------------------------------------------------------

    @torch.no_grad()
    def advance(self, words: Words) -> Words:
        """As `Way.advance`: what is sent."""
        exchange = self._cleared(words)
        return {"sent": self._said(exchange.advance(self._result(words["result"], copied=True)))}

    @torch.no_grad()
    def decide(self, words: Words) -> Words:
        """As `Way.decide`."""
        exchange = self._cleared(words)
        sent = tuple((index, self._contribution(one)) for index, *one in words["contributions"])
        result, refused = exchange.decide(words["number"], Decide(words["part"], sent))
        told = [result.contributors, result.digests, *self._said(result)]
        return {"result": told, "refused": [[one.member, one.why] for one in refused]}

    @torch.no_grad()
    def check(self, words: Words) -> Words:
        """As `Way.check`: the refusal, if there is one."""
        results = {one[0]: self._result(one, copied=True) for one in words["results"]}
        try:
            self._exchanges[words["name"]].check(words["number"], results, {})
        except Refused as problem:
            return {"refused": [[problem.member, problem.why]]}
        return {"refused": []}

    @torch.no_grad()
    def square(self, words: Words) -> Words:
        """As `Exchange.square`, of the round that was checked last."""
        return {"square": self._exchanges[words["name"]].square(words["number"], {}, {})}

    def applied(self, name: str) -> None:
        """As `Way.applied`."""
        exchange = self._exchanges[name]
        if exchange.phased is not None:
            exchange.phased.applied()

    def _cleared(self, words: Words) -> Exchange:
        if words["clear"]:
            self._sent.clear()
        return self._exchanges[words["name"]]

    # ---- applying ----------------------------------------------------------------------------

    @torch.no_grad()
    def put(self, words: Words) -> None:
        """Gradient mode: put sums into the gradient, as the first process tells them, which has checked them."""
        found = {one[0]: self._result(one) for one in words["results"]}
        self._exchanges[words["name"]].put(words["number"], found, self._contributions(words))

    @torch.no_grad()
    def apply(self, words: Words) -> None:
        """Apply a round, as the first process tells it."""
        exchange, number = self._exchanges[words["name"]], words["number"]
        results = {one[0]: self._result(one) for one in words["results"]}
        sent = self._contributions(words)
        exchange.resume(number, {part: self._contribution(one) for part, *one in words["own"]})
        exchange.section.round = number - 1
        updates = exchange.updates(number, results, sent)
        if exchange.terms.gradient:
            exchange.commit_gradient(updates)
        else:
            exchange.apply_delta(updates, tuple(results.values()))

    @torch.no_grad()
    def apply_alone(self, numbers: Mapping[str, int]) -> None:
        """Delta mode: rounds of sections that have no other member."""
        for name, number in numbers.items():
            self._exchanges[name].section.round = number - 1
            self._exchanges[name].apply_alone(number)

    def contents(self, rounds: Mapping[str, int], block: int) -> Words:
        """By section: what goes into the chain of the round with that number."""
        found = {name: self._exchanges[name].section.content_of(number, block) for name, number in rounds.items()}
        return {"contents": found}

    def _contributions(self, words: Words) -> dict[tuple[int, int], Contribution]:
        return {(part, index): self._contribution(one) for part, index, *one in words["contributions"]}

    def _contribution(self, words: list[Any]) -> Contribution:
        sizes, digest, where = words
        return Contribution(self._told.get(where), tuple(sizes), digest)

    def _result(self, words: list[Any], *, copied: bool = False) -> Result:
        """``copied``: it outlives the order."""
        part, who, digests, sizes, digest, error, factors, where = words
        payload = self._told.get(where) if sizes else b""
        payload = memoryview(bytes(payload)) if copied else payload
        return Result(part, tuple(who), tuple(digests), payload, tuple(sizes), digest, error, tuple(factors))
