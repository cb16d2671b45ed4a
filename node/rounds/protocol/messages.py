"""The data types of rounds: a view's plan of them, the messages of members, and the effects of the protocol."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Part:
    """A contiguous range of the section's flat vector and the member that publishes its result."""

    index: int
    publisher: str
    start: int
    stop: int
    fragment: int = 0
    """The fragment that it belongs to: it travels in that fragment's rounds."""
    phase: int = 0
    """Rounds in phases: the phase of this part; the part with the preceding index is the same range in the phase
    before."""
    takers: tuple[str, ...] = ()
    """Two levels: for each member (by index), the name of its taker: a member of its region, or the publisher. Empty:
    the publisher for all."""

    def taker(self, member: int) -> str:
        """The name of the node that adds up the contribution of a member (by index) to this part."""
        return self.takers[member] if self.takers else self.publisher

    @property
    def regional(self) -> tuple[str, ...]:
        """The members that send the publisher the sum of their region."""
        return tuple(name for name in dict.fromkeys(self.takers) if name != self.publisher)


@dataclass(frozen=True)
class RoundPlan:
    """A view's plan of a section's rounds."""

    section: str
    members: tuple[str, ...]
    weights: tuple[float, ...]
    parts: tuple[Part, ...]
    pattern: str
    patient: bool = False
    """True in gradient mode: the round waits for every member and only a view change ends the wait."""
    fragments: int = 1
    """Number of fragments: round n carries fragment (n - 1) mod this number, so each element travels once in so many
    rounds."""
    phases: int = 1
    dense_rounds: int = 0
    """The number of first rounds that go uncompressed, and so in one phase."""
    whole: bool = False
    """Whether only the sum over all members has a meaning (masked contributions): rounds then have no deadline."""
    followed: bool = False
    """Whether spares follow: members then keep recent rounds, up to a quarter of the section's bytes."""

    closes_after: float = math.inf
    """The last round with an outer step. Later rounds, at the run's end, only send what is left, in one phase with any
    codec."""

    def name_of(self, index: int) -> str:
        """A member's name; empty for an index that no member has."""
        return self.members[index] if index < len(self.members) else ""

    def parts_in(self, round: int) -> tuple[Part, ...]:
        """The parts that travel in a round; none where the section is too short for its fragment."""
        if self.fragments == self.phases == 1:
            return self.parts
        phases = self.phases if self.dense_rounds < round <= self.closes_after else 1
        fragment = (round - 1) % self.fragments
        return tuple(part for part in self.parts if part.fragment == fragment and part.phase < phases)


@dataclass(frozen=True)
class Contribution:
    """A member's contribution to a part: the bytes, the sizes of their blobs, and their digest."""

    payload: Any
    sizes: tuple[int, ...]
    digest: int
    signature: bytes = b""
    """All-to-all: its sender's signature of this contribution (node/rounds/checking/signed.py)."""
    certificate: bytes = b""
    """Its sender's certificate, DER; empty if the receiver should know it."""


Sent = Mapping[tuple[int, int], Contribution]
"""(part, member's index) -> that member's contribution."""


@dataclass(frozen=True)
class Result:
    """A publisher's decision about a part: which members are counted (indices), and, with publishers, the sum.

    In two levels also the sum over a region, which the region's taker sends the publisher.
    """

    part: int
    contributors: tuple[int, ...]
    digests: tuple[int, ...]
    payload: Any = b""
    sizes: tuple[int, ...] = ()
    digest: int = 0
    error: int = 0
    """Digest of the publisher's server error after this result; 0: it has none."""
    factors: tuple[float, ...] = ()
    """With publishers and a robust average: the factor of each contributor (node/rounds/arithmetic/robust.py)."""
    signature: bytes = b""
    """Its publisher's signature of this result (node/rounds/checking/receipts.py)."""
    certificate: bytes = b""
    """Its publisher's certificate, DER, in the first round of a view in which it publishes."""


def is_whole(sent: Contribution | Result) -> bool:
    """Whether the bytes are still here; else only what they were is known."""
    return not sent.sizes or len(sent.payload) > 0


def what_counts(result: Result) -> tuple[int, ...]:
    """All content of a result as integers, which enter the chain."""
    factors = [int(factor * 2**32) for factor in result.factors]
    return (*result.contributors, *result.digests, result.digest, result.error, *factors)


@dataclass(frozen=True)
class SendContribution:
    to: str
    round: int
    chain: int
    """The chain h after the round before."""
    part: int
    contribution: Contribution
    of: str
    """The member whose contribution it is: in all-to-all a member may pass on another's."""


@dataclass(frozen=True)
class SendResult:
    to: str
    round: int
    chain: int
    result: Result


@dataclass(frozen=True)
class SendHeld:
    to: str
    part: int


@dataclass(frozen=True)
class AskResult:
    to: str
    part: int


@dataclass(frozen=True)
class AskContribution:
    to: str
    part: int
    of: int


@dataclass(frozen=True)
class Decide:
    """This node is to sum a part: sum these contributions, then call ``decided``."""

    part: int
    contributions: tuple[tuple[int, Contribution], ...]
    sums: tuple[tuple[int, Result], ...] = ()
    """Two levels, at the publisher: the sums of the other regions, each with its taker's index."""


@dataclass(frozen=True)
class Advance:
    """The result of a phase is here and this node was counted: offer the next phase, then call ``advance``."""

    result: Result


@dataclass(frozen=True)
class Complete:
    """All results are here, and none can be lost any more: the round may be applied."""

    round: int


@dataclass(frozen=True)
class Refuse:
    """Refuse a message. ``why``: what is wrong with it."""

    sender: str
    why: str
    diverged: bool = False
    """Whether the sender's chain of this section differs: then one of the two nodes is wrong."""
    blocks: bool = False
    """Whether the round cannot go on because of it."""


@dataclass(frozen=True)
class Equivocated:
    """A member has signed two different contributions to one part: show both to the other members, as proof."""

    part: int
    of: int
    one: Contribution
    other: Contribution


@dataclass(frozen=True)
class TwoResults:
    """Two different results of one part, both signed by its publisher, where one was expected."""

    one: Result
    other: Result


Effect = (
    SendContribution
    | SendResult
    | SendHeld
    | AskResult
    | AskContribution
    | Decide
    | Advance
    | Complete
    | Refuse
    | Equivocated
    | TwoResults
)


def digests_of(results: Sequence[Result]) -> list[int]:
    """The integers of a round's results, in part order, that enter the chain."""
    return [word for result in results for word in what_counts(result)]
