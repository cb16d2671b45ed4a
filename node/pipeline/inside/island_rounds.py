"""The arithmetic of a view's rounds, divided over the ranks of an island: the first process's side (rank_rounds.py).

What a rank encodes is copied from a box into the wire's memory, and what it needs to apply a round or to place a sum
into another: so no vector of a section that another rank keeps is touched here. Masked contributions, whose keys are
here, and robust averages are computed in the first process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ...rounds.arithmetic.exchange import Exchange
from ...rounds.arithmetic.ways.masked import Masked
from ...rounds.protocol.messages import Contribution, Decide, Part, Result, Sent
from ...rounds.protocol.open_round import OpenRound
from ...rounds.protocol.payloads import Refused, pieces_of
from .box import Box
from .kept import Kept, KeptPhases

if TYPE_CHECKING:
    from ..island import Island

Words = dict[str, Any]


class IslandRounds:
    """``exchanges``: the first process's, of all sections of the node. ``words``: what `RankRounds` is told."""

    def __init__(self, island: Island, exchanges: Mapping[str, Exchange], words: Words) -> None:
        self._island, self._exchanges = island, exchanges
        self._coming: dict[int, Callable[[Words], None]] = {}
        """What to do with the answer that a rank is still to give."""
        self._made: dict[str, dict[int, list[Any]]] = {name: {} for name in exchanges}
        """By section and part: what a rank has encoded, in its box, and was not offered yet."""
        self._moved: set[str] = set()
        """The sections that have been told in this round that x moves."""
        self._ranks: dict[str, int] = {}
        """The rank that computes a section's rounds, if it is another than the first process."""
        island.tell("rounds", **words)
        for name, exchange in exchanges.items():
            rank = island.kept.rank_of[name]
            if not rank or exchange.terms.robust or isinstance(exchange.phased, Masked):
                continue
            self._ranks[name], exchange.elsewhere = rank, Kept(self, name, rank)
            if exchange.phased is not None:
                exchange.phased = KeptPhases(self, name, rank)

    def _by_rank(self, names: Iterable[str]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for name in names:
            if name in self._ranks:
                found.setdefault(self._ranks[name], []).append(name)
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
        self._moved.clear()
        for rank, names in self._by_rank(numbers).items():
            self._encode(rank, {name: numbers[name] for name in names}, clear=True)

    def _encode(self, rank: int, numbers: Mapping[str, int], part: int | None = None, *, clear: bool) -> None:
        last = {name: self._exchanges[name].encoder.last for name in numbers}
        words = {name: [numbers[name], "" if codec is None else str(codec.spec)] for name, codec in last.items()}
        self._ask(rank, "encode", self._encoded, rounds=words, part=part, clear=clear)

    def _encoded(self, words: Words) -> None:
        for name, parts in words["encoded"].items():
            self._made[name].update({part: one for part, *one in parts})

    def offer(self, rank: int, name: str, number: int, part: Part) -> tuple[Contribution, float]:
        """What the rank that keeps a section contributes to a part, in the wire's memory, and its norm."""
        self._collect(rank)
        if part.index not in self._made[name]:
            self._encode(rank, {name: number}, part.index, clear=self._may_clear(rank))
            self._collect(rank)
        norm, *sent = self._made[name].pop(part.index)
        return self._taken(rank, name, sent), norm

    def x_moves(self, rank: int, name: str, offered: Iterable[int]) -> None:
        """The weights of a section change while a round is in flight: the rank keeps what it must."""
        if name not in self._moved:
            self._moved.add(name)
            self._collect(rank)
            self._ask(rank, "moves", _nothing, name=name, offered=list(offered))

    def _may_clear(self, rank: int) -> bool:
        """Whether all that the rank has put into its box has been taken."""
        return not any(self._made[name] for name, one in self._ranks.items() if one == rank)

    def _taken(self, rank: int, name: str, sent: Sequence[Any]) -> Contribution:
        sizes, digest, where = sent
        place, box = self._exchanges[name].encoder.place, self._island.boxes[rank].sent
        blobs = ((piece,) for piece in pieces_of(box.get(where), sizes))
        return Contribution(place(blobs, len(sizes)) if sizes else (), tuple(sizes), digest)

    # ---- rounds in phases --------------------------------------------------------------------

    def advance(self, rank: int, name: str, result: Result) -> Contribution:
        """As `Way.advance`."""
        words = self._answered(rank, "advance", name, result=_result(result, self._cleared(rank)))
        return self._taken(rank, name, words["sent"])

    def decide(self, rank: int, name: str, number: int, decide: Decide) -> tuple[Result, list[Refused]]:
        """As `Way.decide`."""
        box = self._cleared(rank)
        sent = [[index, *_sent(one, box.put(one.payload))] for index, one in decide.contributions]
        words = self._answered(rank, "decide", name, number=number, part=decide.part, contributions=sent)
        who, digests, *made = words["result"]
        made = self._taken(rank, name, made)
        result = Result(decide.part, tuple(who), tuple(digests), made.payload, made.sizes, made.digest)
        return result, [Refused(*one) for one in words["refused"]]

    def check(self, rank: int, name: str, number: int, found: Mapping[int, Result]) -> None:
        """As `Way.check`."""
        box = self._cleared(rank)
        results = [_result(one, box) for one in found.values()]
        for refused in self._answered(rank, "check", name, number=number, results=results)["refused"]:
            raise Refused(*refused)

    def square(self, rank: int, name: str, number: int, found: Mapping[int, Result], contributions: Sent) -> float:
        """As `Exchange.square`, after `check`."""
        return float(self._answered(rank, "square", name, number=number)["square"])

    def applied(self, rank: int, name: str) -> None:
        """As `Way.applied`."""
        self._collect(rank)
        self._ask(rank, "applied", _nothing, name=name)

    def _answered(self, rank: int, do: str, name: str, **words: Any) -> Words:
        found: Words = {}
        self._collect(rank)
        self._ask(rank, do, found.update, name=name, clear=self._may_clear(rank), **words)
        self._collect(rank)
        return found

    def _cleared(self, rank: int) -> Box:
        """The box in which the rank is told something, all of whose content it has read."""
        self._collect(rank)
        self._island.boxes[rank].told.clear()
        return self._island.boxes[rank].told

    # ---- applying ----------------------------------------------------------------------------

    def place(self, rank: int, name: str, number: int, found: Mapping[int, Result], contributions: Sent) -> None:
        """As `Exchange.put`: the rank that keeps the section does it."""
        self._ask(rank, "put", _nothing, **self._said(self._cleared(rank), name, number, found, contributions))

    def apply(self, rounds: Mapping[str, OpenRound], here: Callable[[str], None]) -> set[str]:
        """Apply complete rounds, by section, each on the rank that keeps it: in delta mode move g and x, in gradient
        mode set the error feedback and the gradient. ``here(name)`` applies one in this process, meanwhile. Returns
        the names of those that were applied."""
        away, own = self._by_rank(rounds), [name for name in rounds if name not in self._ranks]
        for turn in zip_longest(*away.values(), own):  # of each rank one section's messages are in its box
            for rank, name in zip(away, turn[:-1], strict=True):
                if name is not None:
                    self._apply_there(rank, name, rounds[name])
            if turn[-1] is not None:
                here(turn[-1])
        self._collect_all()
        return set(rounds)

    def _apply_there(self, rank: int, name: str, current: OpenRound) -> None:
        exchange, box = self._exchanges[name], self._cleared(rank)
        words = self._said(box, name, current.number, current.results, current.contributions)
        words["own"] = [[part, *_sent(one, box.put(one.payload))] for part, one in exchange.encoder.own.items()]
        results = tuple(current.results.values())
        self._ask(rank, "apply", lambda _: exchange.applied_elsewhere(results), **words)

    def apply_alone(self, numbers: Mapping[str, int]) -> None:
        """Delta mode: rounds with these numbers of sections that have no other member; each rank applies its own."""
        for rank, names in self._by_rank(numbers).items():
            self._collect(rank)
            self._ask(rank, "alone", _nothing, numbers={name: numbers[name] for name in names})
        for name, number in numbers.items():
            if name not in self._ranks:
                self._exchanges[name].apply_alone(number)
        self._collect_all()

    def contents(self, names: Iterable[str], block: int) -> dict[str, int]:
        """What goes into the chain of the round that each of these sections has applied, but for those that this
        process keeps: as `Section.content_of`."""
        found: dict[str, int] = {}
        numbers = {name: self._exchanges[name].section.round + 1 for name in names}
        for rank, names in self._by_rank(numbers).items():
            self._collect(rank)
            rounds = {name: numbers[name] for name in names}
            self._ask(rank, "contents", lambda words: found.update(words["contents"]), rounds=rounds, block=block)
        self._collect_all()
        return found

    def _said(self, box: Box, name: str, number: int, results: Mapping[int, Result], sent: Sent) -> Words:
        plan = self._exchanges[name].plan
        together = plan.pattern == "all_to_all"
        counted = [(part, index) for part, one in results.items() for index in one.contributors if together]
        return {
            "name": name,
            "number": number,
            "results": [_result(results[part.index], box) for part in plan.parts if part.index in results],
            "contributions": [[*key, *_sent(sent[key], box.put(sent[key].payload))] for key in counted],
        }


def _sent(one: Contribution, where: list[int]) -> list[Any]:
    return [one.sizes, one.digest, where]


def _result(one: Result, box: Box) -> list[Any]:
    words = [one.part, one.contributors, one.digests, one.sizes, one.digest, one.error, one.factors]
    return [*words, box.put(one.payload)]


def _nothing(words: Words) -> None:
    """Nothing is to be done with the answer."""
