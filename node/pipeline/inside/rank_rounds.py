"""The arithmetic of rounds of the sections that one rank of an island keeps, for the rank that keeps them.

The first process has the machine of each section's rounds and an exchange of its own, with all that outlives a round
(server errors, what was offered). What goes over whole vectors is done by the rank that keeps them, with an exchange
that has the same terms and no memory: it encodes, decodes and applies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ....job.schema import Job
from ....scheduler import Plan
from ...rounds.arithmetic.exchange import Exchange
from ...rounds.exchanges import exchange_of
from ...rounds.protocol.messages import Contribution, Result
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
        for section in kept.own:
            name = section.layout.section
            if name in words["followed"]:
                followed, until = words["followed"][name], words["until"]
                self._exchanges[name] = exchange_of(job, plan, section, words["me"], followed=followed, until=until)
                self._exchanges[name].place_in(self._sent.place)

    @torch.no_grad()
    def encode(self, numbers: Mapping[str, int]) -> Words:
        """This node's contributions to the rounds with these numbers, by section: for each part (index, sizes, digest,
        norm, place in the box)."""
        self._sent.clear()
        found: dict[str, list[list[Any]]] = {}
        for name, number in numbers.items():
            exchange = self._exchanges.get(name)
            if exchange is not None:
                made = exchange.contributions(number)
                norms = exchange.encoder.own_norms
                found[name] = [
                    [part, one.sizes, one.digest, norms.get(part, 0.0), self._sent.where(one.payload)]
                    for part, one in made.items()
                ]
        return {"encoded": found}

    @torch.no_grad()
    def apply(self, rounds: Sequence[Words]) -> None:
        """Apply rounds in delta mode, as the first process tells them."""
        for words in rounds:
            self._apply(self._exchanges[words["name"]], words["number"], words)

    def _apply(self, exchange: Exchange, number: int, words: Words) -> None:
        results = {one[0]: self._result(one) for one in words["results"]}
        sent = {(part, index): self._contribution(one) for part, index, *one in words["contributions"]}
        exchange.resume(number, {part: self._contribution(one) for part, *one in words["own"]})
        exchange.section.round = number - 1
        exchange.apply_delta(exchange.updates(number, results, sent), tuple(results.values()))

    @torch.no_grad()
    def apply_alone(self, numbers: Mapping[str, int]) -> None:
        """Delta mode: rounds of sections that have no other member."""
        for name, number in numbers.items():
            self._exchanges[name].section.round = number - 1
            self._exchanges[name].apply_alone(number)

    def _contribution(self, words: list[Any]) -> Contribution:
        sizes, digest, where = words
        return Contribution(self._told.get(where), tuple(sizes), digest)

    def _result(self, words: list[Any]) -> Result:
        part, who, digests, sizes, digest, error, factors, where = words
        payload = self._told.get(where) if sizes else b""
        return Result(part, tuple(who), tuple(digests), payload, tuple(sizes), digest, error, tuple(factors))
