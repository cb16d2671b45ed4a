"""The arithmetic of a view's rounds, divided over the ranks of an island: the first process's side (rank_rounds.py).

What a rank encodes is copied from a box into the wire's memory, and what it needs to apply a round or to place a sum
into another: so no vector of a section that another rank keeps is touched here. Rounds in phases, robust averages, and,
with an explicit error feedback, rounds that steps have overtaken keep more from one call to the next than an order
tells; they are computed in the first process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ...rounds.arithmetic.exchange import Exchange
from ...rounds.protocol.messages import Contribution, Part, Result
from ...rounds.protocol.open_round import OpenRound
from ...rounds.protocol.payloads import pieces_of

if TYPE_CHECKING:
    from ..island import Island

Words = dict[str, Any]
Sent = Mapping[tuple[int, int], Contribution]


class IslandRounds:
    """``exchanges``: the first process's, of all sections of the node. ``words``: what `RankRounds` is told."""

    def __init__(self, island: Island, exchanges: Mapping[str, Exchange], words: Words) -> None:
        self._island, self._exchanges = island, exchanges
        self._coming: dict[int, Callable[[Words], None]] = {}
        """What to do with the answer that a rank is still to give."""
        self._made: dict[str, dict[int, list[Any]]] = {name: {} for name in exchanges}
        """By section and part: what a rank has encoded, in its box, and was not offered yet."""
        island.tell("rounds", **words)
        for name, exchange in exchanges.items():
            if rank := self._rank(name):
                exchange.elsewhere = Kept(self, name, rank)

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

    # ---- one order at a time for each rank ---------------------------------------------------

    def _ask(self, rank: int, do: str, then: Callable[[Words], None], **words: Any) -> None:
        self._island.ask(rank, do, **words)
        self._coming[rank] = then

    def _collect(self, rank: int) -> None:
        """Wait for the rank's answer, if one is to come."""
        then = self._coming.pop(rank, None)
        if then is not None:
            then(self._island.answer_of(rank))

    def _collect_all(self) -> None:
        """Wait for all ranks' answers. Raises what went wrong on any of them."""
        waiting, self._coming = self._coming, {}
        answers = self._island.answers_of(waiting)
        for rank, then in waiting.items():
            then(answers[rank])

    # ---- encoding ----------------------------------------------------------------------------

    def begin(self, numbers: Mapping[str, int]) -> None:
        """The rounds with these numbers, by section, begin at once: let the ranks encode what this node contributes
        first, at the same time. `Kept.offer` waits for them."""
        self._collect_all()
        for made in self._made.values():
            made.clear()
        for rank, names in self._by_rank(list(numbers)).items():
            self._encode(rank, {name: numbers[name] for name in names}, clear=True)

    def _encode(self, rank: int, numbers: Mapping[str, int], part: int | None = None, *, clear: bool) -> None:
        last = {name: self._exchanges[name].encoder.last for name in numbers}
        words = {name: [numbers[name], "" if codec is None else str(codec.spec)] for name, codec in last.items()}
        self._ask(rank, "encode", self._encoded, rounds=words, part=part, clear=clear)

    def _encoded(self, words: Words) -> None:
        for name, parts in words["encoded"].items():
            self._made[name].update({part: one for part, *one in parts})

    def offer(self, rank: int, name: str, number: int, part: int) -> tuple[Contribution, float]:
        """What the rank that keeps a section contributes to a part, in the wire's memory, and its norm."""
        self._collect(rank)
        if part not in self._made[name]:
            left = any(self._made[other] for other in self._by_rank(list(self._made))[rank])
            self._encode(rank, {name: number}, part, clear=not left)
            self._collect(rank)
        sizes, digest, norm, where = self._made[name].pop(part)
        place, box = self._exchanges[name].encoder.place, self._island.boxes[rank].sent
        blobs = ((piece,) for piece in pieces_of(box.get(where), sizes))
        return Contribution(place(blobs, len(sizes)) if sizes else (), tuple(sizes), digest), norm

    # ---- applying ----------------------------------------------------------------------------

    def place(self, rank: int, name: str, number: int, result: Result, contributions: Sent) -> None:
        """Gradient mode: let the rank that keeps a section put the sum of a part into its gradient."""
        self._collect(rank)  # then it has read the sum before
        self._island.boxes[rank].told.clear()
        words = self._said(rank, name, number, {result.part: result}, contributions)
        self._ask(rank, "put", _nothing, **words)

    def apply(self, rounds: Mapping[str, OpenRound], here: Callable[[str], None]) -> set[str]:
        """Apply complete rounds, by section, each on the rank that keeps it: in delta mode move g and x, in gradient
        mode set the error feedback and the gradient. ``here(name)`` applies one in this process, meanwhile. Returns
        the names of those that were applied."""
        away = self._by_rank([name for name in rounds if not self._exchanges[name].applier.holds_progress])
        own = [name for name in rounds if not any(name in names for names in away.values())]
        for turn in zip_longest(*away.values(), own):  # of each rank one section's messages are in its box
            for rank, name in zip(away, turn[:-1], strict=True):
                if name is not None:
                    self._apply_there(rank, name, rounds[name])
            if turn[-1] is not None:
                here(turn[-1])
        self._collect_all()
        return set(rounds)

    def _apply_there(self, rank: int, name: str, current: OpenRound) -> None:
        self._collect(rank)
        self._island.boxes[rank].told.clear()
        exchange = self._exchanges[name]
        words = self._said(rank, name, current.number, current.results, current.contributions)
        box = self._island.boxes[rank].told
        words["own"] = [[part, *_sent(one, box.put(one.payload))] for part, one in exchange.encoder.own.items()]
        results = tuple(current.results.values())
        self._ask(rank, "apply", lambda _: exchange.applied_elsewhere(results), **words)

    def apply_alone(self, numbers: Mapping[str, int]) -> None:
        """Delta mode: rounds with these numbers of sections that have no other member; each rank applies its own."""
        for rank, names in self._by_rank(list(numbers)).items():
            self._collect(rank)
            self._ask(rank, "alone", _nothing, numbers={name: numbers[name] for name in names})
        for name, number in numbers.items():
            if not self._rank(name):
                self._exchanges[name].apply_alone(number)
        self._collect_all()

    def contents(self, names: Iterable[str], block: int) -> dict[str, int]:
        """What goes into the chain of the round that each of these sections has applied, but for those that this
        process keeps: as `Section.content_of`."""
        found: dict[str, int] = {}
        numbers = {name: self._exchanges[name].section.round + 1 for name in names}
        for rank, names in self._by_rank(list(numbers)).items():
            self._collect(rank)
            rounds = {name: numbers[name] for name in names}
            self._ask(rank, "contents", lambda words: found.update(words["contents"]), rounds=rounds, block=block)
        self._collect_all()
        return found

    def _said(self, rank: int, name: str, number: int, results: Mapping[int, Result], sent: Sent) -> Words:
        box, plan = self._island.boxes[rank].told, self._exchanges[name].plan
        together = plan.pattern == "all_to_all"

        def result(one: Result) -> list[Any]:
            words = [one.part, one.contributors, one.digests, one.sizes, one.digest, one.error, one.factors]
            return [*words, box.put(one.payload)]

        counted = [(part, index) for part, one in results.items() for index in one.contributors if together]
        return {
            "name": name,
            "number": number,
            "results": [result(results[part.index]) for part in plan.parts if part.index in results],
            "contributions": [[*key, *_sent(sent[key], box.put(sent[key].payload))] for key in counted],
        }


class Kept:
    """A section that another rank keeps: what its exchange asks of that rank (`Elsewhere`)."""

    def __init__(self, rounds: IslandRounds, name: str, rank: int) -> None:
        self._place = partial(rounds.place, rank, name)
        self._offer = partial(rounds.offer, rank, name)

    def offer(self, round: int, part: Part) -> tuple[Contribution, float]:
        return self._offer(round, part.index)

    def place(self, round: int, result: Result, contributions: Sent) -> None:
        self._place(round, result, contributions)


def _sent(one: Contribution, where: list[int]) -> list[Any]:
    return [one.sizes, one.digest, where]


def _nothing(words: Words) -> None:
    """Nothing is to be done with the answer."""
