"""The arithmetic of a view's rounds, divided over the ranks of an island: the first process's side (rank_rounds.py).

What a rank encodes is copied from a box into the wire's memory, and what it needs to apply a round into another: so no
vector of a section that another rank keeps is touched here. Rounds in phases, robust averages, and, with an explicit
error feedback, rounds that steps have overtaken keep more from one call to the next than an order tells; they are
computed in the first process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ...rounds.arithmetic.exchange import Exchange
from ...rounds.protocol.messages import Contribution, Result
from ...rounds.protocol.open_round import OpenRound
from ...rounds.protocol.payloads import pieces_of

if TYPE_CHECKING:
    from ..island import Island

Words = dict[str, Any]
Offered = tuple[dict[int, Contribution], dict[int, float]]
"""A round's contributions, and their norms, by part."""


class IslandRounds:
    """``exchanges``: the first process's, of all sections of the node. ``words``: what `RankRounds` is told."""

    def __init__(self, island: Island, exchanges: Mapping[str, Exchange], words: Words) -> None:
        self._island, self._exchanges = island, exchanges
        self._encoded: dict[int, Words] = {}
        """What each rank has encoded for the open rounds."""
        island.tell("rounds", **words)

    def _rank(self, name: str) -> int:
        """The rank that computes a section's rounds; 0: the first process."""
        exchange = self._exchanges[name]
        alone = exchange.phased is not None or exchange.terms.robust
        return 0 if alone else self._island.kept.rank_of[name]

    def _by_rank(self, names: Sequence[str]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for name in names:
            if rank := self._rank(name):
                found.setdefault(rank, []).append(name)
        return found

    # ---- encoding ----------------------------------------------------------------------------

    def encode(self, numbers: Mapping[str, int]) -> None:
        """The rounds with these numbers, by section, begin at once: let the ranks encode what this node contributes.
        `Exchange.contributions` waits for them."""
        self._encoded = {}
        names = [name for name in numbers if self._exchanges[name].encoder.last is None]
        for rank, some in self._by_rank(names).items():
            self._island.ask(rank, "encode", numbers={name: numbers[name] for name in some})
            for name in some:
                self._exchanges[name].ahead = (numbers[name], partial(self._offered, rank, name))

    def _offered(self, rank: int, name: str) -> Offered:
        if rank not in self._encoded:
            self._encoded[rank] = self._island.answer_of(rank)["encoded"]
        place, box = self._exchanges[name].encoder.place, self._island.boxes[rank].sent
        made: dict[int, Contribution] = {}
        norms: dict[int, float] = {}
        for part, sizes, digest, norm, where in self._encoded[rank][name]:
            blobs = ((piece,) for piece in pieces_of(box.get(where), sizes))
            made[part] = Contribution(place(blobs, len(sizes)) if sizes else (), tuple(sizes), digest)
            if sizes:
                norms[part] = norm
        return made, norms

    # ---- applying ----------------------------------------------------------------------------

    def apply(self, rounds: Mapping[str, OpenRound], here: Callable[[str], None]) -> set[str]:
        """Delta mode: apply complete rounds, by section, each on the rank that keeps it; ``here(name)`` applies one in
        this process, meanwhile. Returns the names of those that were applied."""
        told = self._by_rank([name for name in rounds if not self._exchanges[name].applier.holds_progress])
        for rank, names in told.items():
            self._island.boxes[rank].told.clear()
            self._island.ask(rank, "apply", rounds=[self._said(rank, name, rounds[name]) for name in names])
        away = {name for names in told.values() for name in names}
        try:
            for name in rounds:
                if name not in away:
                    here(name)
        finally:
            for rank in told:
                self._island.answer_of(rank)
        for name in away:
            self._exchanges[name].applied_elsewhere(tuple(rounds[name].results.values()))
        return set(rounds)

    def apply_alone(self, numbers: Mapping[str, int]) -> None:
        """Delta mode: rounds with these numbers of sections that have no other member; each rank applies its own."""
        told = self._by_rank(list(numbers))
        for rank, names in told.items():
            self._island.ask(rank, "alone", numbers={name: numbers[name] for name in names})
        for name, number in numbers.items():
            if not self._rank(name):
                self._exchanges[name].apply_alone(number)
        for rank in told:
            self._island.answer_of(rank)

    def _said(self, rank: int, name: str, current: OpenRound) -> Words:
        box, exchange = self._island.boxes[rank].told, self._exchanges[name]
        together = exchange.plan.pattern == "all_to_all"

        def sent(one: Contribution) -> list[Any]:
            return [one.sizes, one.digest, box.put(one.payload)]

        def result(one: Result) -> list[Any]:
            words = [one.part, one.contributors, one.digests, one.sizes, one.digest, one.error, one.factors]
            return [*words, box.put(one.payload)]

        counted = [(part, index) for part, one in current.results.items() for index in one.contributors if together]
        parts = [part.index for part in exchange.plan.parts if part.index in current.results]
        return {
            "name": name,
            "number": current.number,
            "results": [result(current.results[part]) for part in parts],
            "contributions": [[*key, *sent(current.contributions[key])] for key in counted],
            "own": [[part, *sent(one)] for part, one in exchange.encoder.own.items()],
        }
