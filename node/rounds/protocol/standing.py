"""One member's state in a section's rounds: what it has, and what it has to do next."""

from __future__ import annotations

from collections.abc import Callable

from .messages import Advance, Complete, Contribution, Decide, Effect, Part, Result, RoundPlan, SendResult
from .open_round import KEPT_ROUNDS, Applied, EarlyMessages, OpenRound, deadline_of

Vouch = Callable[[int, int, int, Contribution], bool | None]
"""``vouch(member, round, part, sent)``: whether the member has signed this contribution. None: its certificate is not
known here."""
Attest = Callable[[int, Result], bool]
"""``attest(round, result)``: whether the part's publisher has signed this result."""
ROUNDS_WITHOUT_DEADLINE = 5


class Standing:
    """One member's state in one view."""

    def __init__(self, plan: RoundPlan, me: str, applied: int, chain: int, vouch: Vouch | None = None) -> None:
        """``vouch``: checks the signatures of contributions in all-to-all; None: contributions are not signed."""
        self.plan = plan
        self.vouch = vouch
        self.attest: Attest | None = None
        """None: results are not signed."""
        self.me = me
        self.applied = applied
        self.chain = chain
        self.open: OpenRound | None = None
        self.log: list[Applied] = []
        self.last = False
        """Whether the run ends with the next round: it then waits for all members, as there is no later round."""
        self.durations: list[float] = []
        """Of recent rounds, the seconds from the beginning until all contributions to this node's parts had arrived."""
        self.gathered: list[float] = []
        """Two levels: the same for the contributions of this node's region."""
        self.misses = dict.fromkeys(plan.members, 0)
        self.index = {name: index for index, name in enumerate(plan.members)}
        self.early = EarlyMessages(plan.section)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the open round, or of the next."""
        return self.plan.parts_in(self.applied + 1)

    def current(self) -> OpenRound:
        """The open round; RuntimeError: there is none."""
        if self.open is None:
            raise RuntimeError(f"no open round of {self.plan.section}")
        return self.open

    def has_offered(self, part: Part) -> bool:
        """Whether this node has contributed to a part of the open round. A part of a later phase counts as offered: it
        follows from the phase before."""
        return part.phase > 0 or (part.index, self.index[self.me]) in self.current().contributions

    def takes(self, part: Part) -> bool:
        """Whether this node adds up a part, as its publisher or for its region."""
        return part.taker(self.index[self.me]) == self.me

    def travels(self, part: int, round: int) -> bool:
        """Whether a round carries a part of this index."""
        return any(one.index == part for one in self.plan.parts_in(round))

    def wanted(self, part: Part) -> tuple[int, ...]:
        """Members (indices) whose contributions this node adds up in a part."""
        if part.phase:
            before = self.current().results.get(part.index - 1)
            return () if before is None else before.contributors
        return tuple(index for index in self.index.values() if part.taker(index) == self.me)

    def absent(self, part: Part, wanted: tuple[int, ...]) -> set[str]:
        """Members whose contribution has not arrived, neither alone nor in the sum of their region."""
        current = self.current()
        absent = {self.plan.members[i] for i in wanted if (part.index, i) not in current.contributions}
        if part.publisher == self.me:
            late = {name for name in part.regional if (part.index, self.index[name]) not in current.sums}
            absent |= {name for name, index in self.index.items() if part.taker(index) in late}
        return absent

    def missing(self, result: Result) -> list[int]:
        """Members (indices) whose contributions a result lists and which have not arrived."""
        return [i for i in result.contributors if (result.part, i) not in self.current().contributions]

    def vouched(self, of: int, number: int, part: int, sent: Contribution) -> bool | None:
        """Whether a member has signed that this is its contribution; as `Vouch`."""
        return self.vouch is None or of == self.index[self.me] or self.vouch(of, number, part, sent)

    def attested(self, number: int, result: Result) -> bool:
        """Whether its publisher has signed a result."""
        return self.attest is None or self.attest(number, result)

    def differs(self, name: str, chain: int) -> str:
        """A sentence that says that a member's chain differs after the last round applied here."""
        return self.differ(name, self.applied, chain, self.chain)

    def differ(self, name: str, round: int, theirs: int, ours: int) -> str:
        """A sentence that says that a member's chain differs after ``round``."""
        return (
            f"{name} holds another history of {self.plan.section} than {self.me} after round {round}: "
            f"h is {theirs:016x} there and {ours:016x} here"
        )

    def deadline(self, regional: bool = False) -> float | None:
        """Seconds after the round's beginning that a publisher (or a region's taker) waits; None: without limit, or too
        few rounds have been measured."""
        durations = self.gathered if regional else self.durations
        patient = max(ROUNDS_WITHOUT_DEADLINE, self.plan.fragments)  # the first also send older rests
        if self.plan.patient or self.plan.whole or self.last or len(durations) < patient:
            return None
        return deadline_of(durations)

    def measure(self, part: Part, now: float) -> None:
        """A contribution to ``part`` came: if it was the last that this node waits for, record the round's duration."""
        if part.phase or not self.takes(part):
            return
        publishes = part.publisher == self.me
        alike = [p for p in self.parts if not p.phase and self.takes(p) and (p.publisher == self.me) == publishes]
        if any(self.absent(p, self.wanted(p)) for p in alike):
            return
        kept = self.durations if publishes else self.gathered
        kept.append(now - self.current().begun)
        del kept[:-20]

    def hand_on(self, result: Result) -> list[Effect]:
        """Pass a published result on to the members that get it from this node."""
        part = self.plan.parts[result.part]
        near = [name for name, index in self.index.items() if part.taker(index) == self.me and name != self.me]
        far = part.regional if part.publisher == self.me else ()
        return [SendResult(to, self.current().number, self.chain, result) for to in (*near, *far)]

    def next_phase(self, result: Result) -> list[Effect]:
        """Ask for this node's contribution to the next phase of a part, if there is one and this node was counted."""
        follows = any(part.index == result.part + 1 and part.phase for part in self.parts)
        return [Advance(result)] if follows and self.index[self.me] in result.contributors else []

    def progress(self, now: float) -> list[Effect]:
        """Decide the parts that can be decided, and complete the round if it is complete."""
        current = self.current()
        if current.complete:
            return []
        limits = {regional: self.deadline(regional) for regional in (False, True)}
        effects: list[Effect] = []
        for part in self.parts:
            limit = limits[part.publisher != self.me]
            if self._decidable(part, overdue=limit is not None and now - current.begun > limit):
                current.deciding.add(part.index)
                effects.append(self._decide(part))
        if all(map(self.is_safe, self.parts)):
            current.complete = True
            effects.append(Complete(current.number))
        return effects

    def _decidable(self, part: Part, overdue: bool) -> bool:
        """Whether this node can sum a part now: all contributions are here, or it may go on without the late ones."""
        if not self.takes(part) or part.index in self.current().deciding:
            return False
        wanted = self.wanted(part)
        absent = self.absent(part, wanted)
        lost = part.phase > 0 or any(self.misses[name] >= KEPT_ROUNDS - 1 for name in absent)
        return bool(wanted) and (not absent or (overdue and not lost))

    def _decide(self, part: Part) -> Decide:
        current = self.current()
        here = ((i, current.contributions.get((part.index, i))) for i in self.wanted(part))
        sums = ((self.index[name], current.sums.get((part.index, self.index[name]))) for name in part.regional)
        return Decide(
            part.index,
            tuple((i, sent) for i, sent in here if sent is not None),
            tuple((i, result) for i, result in sums if result is not None),
        )

    def is_safe(self, part: Part) -> bool:
        """Whether a part's result is here and cannot be lost: another member holds it too."""
        current, alone = self.current(), len(self.plan.members) == 1
        held = part.publisher != self.me or alone or bool(current.held.get(part.index))
        return part.index in current.results and held

    def lacking(self) -> frozenset[str]:
        """The members for which the open round waits: those whose contribution is missing here; if none is missing, the
        publishers of missing results; if none is missing either, all others, one of which must confirm that it holds
        the results."""
        current = self.open
        if current is None or current.complete:
            return frozenset()
        terms: set[str] = set()
        results: set[str] = set()
        for part in filter(self.has_offered, self.parts):  # nobody is late with a part that this node keeps back
            if self.takes(part) and part.index not in current.deciding:
                terms |= self.absent(part, self.wanted(part))
            late = current.unmatched.get(part.index)
            if late is not None:
                terms |= {self.plan.members[index] for index in self.missing(late)}
            elif part.index not in current.results:
                results |= {part.taker(self.index[self.me]), part.publisher}
        others = frozenset(self.plan.members) - {self.me}
        return (others & terms) or (others & results) or others
