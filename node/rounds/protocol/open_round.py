"""The rounds of a section that a member keeps: the open one, early messages of later ones, and the last applied
ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from .messages import Contribution, Effect, Result

KEPT_ROUNDS = 3
"""A node keeps the results of so many applied rounds, for members that have not applied them yet. A publisher waits for
a member that has missed one round fewer than this: if it were further behind, no node could help it."""
EARLY = 4 * KEPT_ROUNDS
"""The most waiting messages, per member and part, of rounds that have not begun."""
LEAST_LOG = 4 << 20
"""The least number of bytes that a followed section may use to keep rounds."""


@dataclass
class Applied:
    """An applied round, kept so that a member that is behind can be helped."""

    round: int
    chain: int
    """The chain h after the round before it."""
    results: dict[int, Result]
    contributions: dict[tuple[int, int], Contribution]

    @property
    def size(self) -> int:
        """Bytes."""
        results = sum(sum(result.sizes) for result in self.results.values())
        return results + sum(sum(sent.sizes) for sent in self.contributions.values())


@dataclass
class OpenRound:
    """The round that this node has begun, and not applied yet."""

    number: int
    begun: float
    contributions: dict[tuple[int, int], Contribution] = field(default_factory=dict)
    results: dict[int, Result] = field(default_factory=dict)
    sums: dict[tuple[int, int], Result] = field(default_factory=dict)
    """Two levels: (part, taker) -> the sum of the taker's region, at the publisher."""
    unmatched: dict[int, Result] = field(default_factory=dict)
    """All-to-all results that list a contribution which has not arrived."""
    disputed: dict[tuple[int, int], Contribution] = field(default_factory=dict)
    """All-to-all: contributions that differ from the ones listed in a result."""
    disbelieved: dict[int, Result] = field(default_factory=dict)
    """All-to-all: results of publishers that list other contributions than came here, without a proof."""
    unknown: set[tuple[int, int]] = field(default_factory=set)
    """All-to-all: contributions that came without a certificate, of members whose certificate is unknown here. They
    were asked for; the answer must have the certificate."""
    deciding: set[int] = field(default_factory=set)
    handed: dict[int, Result] = field(default_factory=dict)
    """Two levels: the sum of this node's region for each part that it takes and another publishes."""
    held: dict[int, set[str]] = field(default_factory=dict)
    placed: set[int] = field(default_factory=set)
    """Parts whose sum has taken the gradient's place here, so that this node does not need their bytes."""
    settled: set[int] = field(default_factory=set)
    """Parts in which this node's own contribution is not needed any more, although the sum is."""
    ask_at: float = 0.0
    asked: int = 0
    complete: bool = False

    def drop_contributions(self, part: int) -> None:
        """Forget the bytes that were summed to a part."""
        for key, sent in self.contributions.items():
            if key[0] == part:
                self.contributions[key] = replace(sent, payload=())
        for key, regional in self.sums.items():
            if key[0] == part:
                self.sums[key] = replace(regional, payload=())


@dataclass(frozen=True)
class Early:
    """A message of a round that this node has not begun."""

    sender: str
    number: int
    part: int
    said: tuple[object, ...]
    """Identifies the message when it arrives again."""
    take: Callable[[float], list[Effect]]


class EarlyMessages:
    """Messages that wait until this node begins their rounds. The number is limited for each member separately, so that
    none takes another's room."""

    def __init__(self, section: str) -> None:
        self._section = section
        self._waiting: list[Early] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, message: Early, applied: int) -> str:
        """Store a message, once. Returns why it is refused; empty: it is stored. ``applied``: the last round applied
        here."""
        if message.number > applied + 1 + KEPT_ROUNDS:
            of = f"round {message.number} of {self._section}"
            return f"a message of {of} came while round {applied} is the last"
        before = [one for one in self._waiting if one.sender == message.sender and one.part == message.part]
        if any(one.number == message.number and one.said == message.said for one in before):
            return ""
        if len(before) >= EARLY:
            return f"too many messages for part {message.part} of rounds of {self._section} that have not begun"
        self._waiting.append(message)
        return ""

    def due(self, number: int) -> list[Early]:
        """Take out the messages of a round that begins; those of earlier ones are dropped."""
        due = [message for message in self._waiting if message.number == number]
        self._waiting = [message for message in self._waiting if message.number > number]
        return due


def newest(log: Sequence[Applied], room: int) -> list[Applied]:
    """The applied rounds to keep: the last KEPT_ROUNDS for members that are behind, and for spares as many as fit into
    ``room`` bytes."""
    kept = 0
    for one in reversed(log):
        room -= one.size
        if kept >= KEPT_ROUNDS and room < 0:
            break
        kept += 1
    return list(log[len(log) - kept :])


def deadline_of(durations: Sequence[float]) -> float:
    """Seconds after which a round goes on without members that have sent nothing, from the durations of recent
    rounds."""
    usual = median(durations)
    spread = median(abs(value - usual) for value in durations)
    return max(1.5 * usual, usual + 6 * spread) + 0.25
