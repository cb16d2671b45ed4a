"""The protocol of a round, as a pure state machine: messages and the clock in, what to do out.

One object for each section (the parameters that one group shares) and view. It decides who is counted, what is
staged, what is asked again and when the round may be applied; it never touches a tensor or a socket. Payloads
pass through it unread. ``docs/rounds.md`` tells the protocol as a story.

Four patterns. ``publishers``: every part of the vector has a publisher; members send it their contribution, it
publishes the encoded sum. ``all_to_all``: everybody sends everything to everybody, and the publisher publishes
only who is counted, with the digests of what they sent. ``phases``: like ``publishers``, several times in one round;
a phase is a part of its own, and those who were counted in the first have to be in all. ``two_level``: like
``publishers``, but far members send to one of their region (the part's *taker* there), which sends the publisher the
region's sum and hands the result on to them.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from .messages import (
    Advance,
    AskContribution,
    AskResult,
    Complete,
    Contribution,
    Decide,
    Effect,
    Equivocated,
    Part,
    Refuse,
    Result,
    RoundPlan,
    SendContribution,
    SendHeld,
    SendResult,
    TwoResults,
    what_counts,
)
from .open_round import KEPT_ROUNDS, LEAST_LOG, Applied, Early, EarlyMessages, OpenRound, deadline_of, newest

Vouch = Callable[[int, int, int, Contribution], bool | None]
"""``vouch(member, round, part, sent)``: the member has signed that this is its contribution. None: its certificate is
not known here."""
Attest = Callable[[int, Result], bool]
"""``attest(round, result)``: the part's publisher has signed that this is its result."""
ROUNDS_WITHOUT_DEADLINE = 5
ASK_AGAIN_SECONDS = 5.0
"""Seconds before what is missing is asked for, doubled with each time. Links are reliable: this is for what a
broken connection lost, and must not send bulk twice over a slow link."""
LONGEST_ASK_SECONDS = 60.0
"""At most: who asks every hour stands as still as who never asks."""


class Rounds:
    """A section's rounds in one view, seen by one member."""

    def __init__(self, plan: RoundPlan, me: str, applied: int, chain: int, vouch: Vouch | None = None) -> None:
        """``vouch``: in all-to-all members sign what they contribute; None: nobody can show who sent what."""
        self.plan = plan
        self.vouch = vouch
        self.attest: Attest | None = None
        """None: nobody can show who published what."""
        self.me = me
        self.applied = applied
        self.chain = chain
        self.open: OpenRound | None = None
        self.log: list[Applied] = []
        self.last = False
        """The run ends with the round to begin: it waits for everyone, as stragglers get no later round."""
        self.durations: list[float] = []
        """Seconds from a round's beginning until all was here that this node publishes of it."""
        self.gathered: list[float] = []
        """Two levels: seconds to collect the contributions of this node's region."""
        self.misses = dict.fromkeys(plan.members, 0)
        self._index = {name: index for index, name in enumerate(plan.members)}
        self._early = EarlyMessages(plan.section)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the open round, or of the next."""
        return self.plan.parts_in(self.applied + 1)

    # ---- what the node does ----------------------------------------------------------------

    def begin(self, own: dict[int, Contribution], now: float) -> list[Effect]:
        """Open the next round with this node's contribution of every part."""
        if self.open is not None:
            raise RuntimeError(f"round {self.open.number} of {self.plan.section} is still open")
        self.open = OpenRound(self.applied + 1, now, ask_at=now + ASK_AGAIN_SECONDS)
        effects: list[Effect] = []
        for part in self.parts:
            if part.phase == 0:
                effects += self._offer(part, own[part.index])
        for message in self._early.due(self.open.number):
            effects += message.take(now)
        return effects + self._progress(now)

    def decided(self, part: int, result: Result, now: float) -> list[Effect]:
        """The sum that ``Decide`` asked for. From here on the result is published and cannot change."""
        if self.open is None:
            raise RuntimeError("no open round")
        if self.plan.pattern != "all_to_all" and self.plan.phases == 1:  # what was summed is not needed again
            for key, sent in self.open.contributions.items():
                if key[0] == part:
                    self.open.contributions[key] = replace(sent, payload=())
            for key, regional in self.open.sums.items():
                if key[0] == part:
                    self.open.sums[key] = replace(regional, payload=())
        publisher = self.plan.parts[part].publisher
        if publisher != self.me:
            self.open.handed[part] = result
            return [SendResult(publisher, self.open.number, self.chain, result)]
        self.open.results[part] = result
        return self._hand_on(result) + self._next_phase(result) + self._progress(now)

    def advance(self, result: Result, own: Contribution, now: float) -> list[Effect]:
        """The contribution that ``Advance`` asked for."""
        return self._offer(self.plan.parts[result.part + 1], own) + self._progress(now)

    def finish(self, chain: int) -> None:
        """The node has applied the open round, and this is h of it now."""
        if self.open is None or not self.open.complete:
            raise RuntimeError(f"the open round of {self.plan.section} is not complete")
        taken = [self.open.results[part.index] for part in self.parts if self._takes(part) and part.phase == 0]
        if taken:
            counted = {index for result in taken for index in result.contributors}
            for name, index in self._index.items():
                self.misses[name] = 0 if index in counted else self.misses[name] + 1
        done, self.open = self.open, None
        sent = done.contributions if self.plan.pattern == "all_to_all" else {}
        if self.plan.followed:
            room = max(LEAST_LOG, *(part.stop for part in self.plan.parts))  # a quarter of the section
            self.log = newest([*self.log, Applied(done.number, self.chain, done.results, sent)], room)
        elif not self.plan.patient:  # else a round is applied only when every member holds it
            results = {part: result for part, result in done.results.items() if self._may_be_lacked(done, part)}
            kept = {key: contribution for key, contribution in sent.items() if key[0] in results}
            self.log = [*self.log, Applied(done.number, self.chain, results, kept)][-KEPT_ROUNDS:]
        self.applied, self.chain = done.number, chain

    # ---- what arrives ----------------------------------------------------------------------

    def contribution(
        self, sender: str, of: str, number: int, part: int, chain: int, sent: Contribution, now: float
    ) -> list[Effect]:
        """A contribution of member ``of``, handed over by ``sender`` (the same but for answers to a request)."""
        if sender not in self._index or of not in self._index:
            return [Refuse(sender, f"{of} is not a member of {self.plan.section}")]
        if not self._travels(part, number):
            return [Refuse(sender, f"round {number} of {self.plan.section} has no part {part}")]
        if self.plan.pattern != "all_to_all" and self.plan.parts[part].taker(self._index[of]) != self.me:
            return [Refuse(sender, f"part {part} of {self.plan.section} is not published here")]
        if number <= self.applied:
            return []  # late: its sender was not counted and keeps what it sent
        if self.open is None or number != self.open.number:
            take = partial(self._contribution, sender, of, part, chain, sent)
            return self._keep_early(Early(sender, number, part, (of, chain, sent.digest), take))
        return self._contribution(sender, of, part, chain, sent, now) + self._progress(now)

    def result(self, sender: str, number: int, chain: int, result: Result, now: float) -> list[Effect]:
        """A published result, from its publisher, its taker here or a member that was asked; or a region's sum."""
        if sender not in self._index:
            return [Refuse(sender, f"{sender} is not a member of {self.plan.section}")]
        if not self._travels(result.part, number):
            return [Refuse(sender, f"round {number} of {self.plan.section} has no part {result.part}")]
        contributors = result.contributors
        if sorted(set(contributors)) != list(contributors) or any(i >= len(self.plan.members) for i in contributors):
            return [Refuse(sender, f"contributors {contributors} of {self.plan.section} are no list of members")]
        if not contributors or len(result.digests) != len(contributors):
            return [Refuse(sender, f"a result of {self.plan.section} without a digest for each contributor")]
        if len(result.factors) not in (0, len(contributors)) or not all(0 <= one <= 1 for one in result.factors):
            return [Refuse(sender, f"a result of {self.plan.section} whose factors are not from 0 to 1, one for each")]
        if number <= self.applied:
            return []
        if self.open is None or number != self.open.number:
            take = partial(self._result, sender, chain, result)
            said = (chain, what_counts(result))
            return self._keep_early(Early(sender, number, result.part, said, take))
        return self._result(sender, chain, result, now) + self._progress(now)

    def held(self, sender: str, number: int, part: int, now: float) -> list[Effect]:
        """``sender`` has staged the result of a part that this node publishes."""
        if self.open is None or number != self.open.number or sender not in self._index:
            return []
        self.open.held.setdefault(part, set()).add(sender)
        return self._progress(now)

    def result_wanted(self, sender: str, number: int, part: int) -> list[Effect]:
        """A member asks for a result; it gets it if this node holds it."""
        if sender not in self._index:
            return [Refuse(sender, f"{sender} is not a member of {self.plan.section}")]
        if self.open is not None and number == self.open.number:
            # Who publishes the result itself wants the sum of this node's region.
            publishes = part < len(self.plan.parts) and self.plan.parts[part].publisher == sender
            source = self.open.handed if publishes else self.open.results
            if part in source:
                return [SendResult(sender, number, self.chain, source[part])]
        for applied in self.log:
            if applied.round == number and part in applied.results:
                return [SendResult(sender, number, applied.chain, applied.results[part])]
        return []

    def contribution_wanted(self, sender: str, number: int, part: int, of: int) -> list[SendContribution]:
        """A member lacks a contribution that a result lists."""
        sources = [(applied.chain, applied.contributions) for applied in self.log if applied.round == number]
        if self.open is not None and self.open.number == number:
            sources.append((self.chain, self.open.contributions))
        for before, source in sources:
            if (part, of) in source and self._vouched(of, number, part, source[part, of]):
                return [SendContribution(sender, number, before, part, source[part, of], self.plan.members[of])]
        return []

    def tick(self, now: float, sending: bool = False) -> list[Effect]:
        """The clock moved: deadlines, and asking again for what is missing. ``sending``: as for ``ask``."""
        if self.open is None:
            return []
        effects = self._progress(now)
        if now < self.open.ask_at or self.open.complete:
            return effects
        return effects + self.ask(now, sending)

    def ask(self, now: float, sending: bool = False) -> list[Effect]:
        """Ask for everything that is missing. A result: one member, the part's publisher first, then others in turn.
        What this node adds up: those of whom it lacks something. A sign that a result is held: everybody, by sending it
        once more, unless something is still on its way (``sending``)."""
        if self.open is None:
            return []
        effects: list[Effect] = []
        turn = self.open.asked
        self.open.asked += 1
        self.open.ask_at = now + min(LONGEST_ASK_SECONDS, ASK_AGAIN_SECONDS * 2 ** min(turn, 8))
        for part in self.parts:
            effects += self._ask_for_terms(part, sending)
            near = part.taker(self._index[self.me])
            sources = [n for n in dict.fromkeys((near, part.publisher, *self.plan.members)) if n != self.me]
            if not sources:
                continue
            source = sources[turn % len(sources)]
            late = self.open.unmatched.get(part.index)
            if late is not None:
                disputed = any((part.index, index) in self.open.disputed for index in self._missing(late))
                if disputed and turn >= len(sources):  # a contribution may take long to come
                    effects.append(self._unshown(part))
                effects += [AskContribution(source, part.index, index) for index in self._missing(late)]
            elif part.index not in self.open.results and part.publisher != self.me:
                effects.append(AskResult(source, part.index))
        return effects

    def _ask_for_terms(self, part: Part, sending: bool) -> list[Effect]:
        """What this node lacks to add a part up, or to know that its sum cannot be lost."""
        current = self._current()
        if not self._takes(part):
            return []
        if part.index not in current.deciding:
            direct = [i for i in self._wanted(part) if (part.index, i) not in current.contributions]
            asked: list[Effect] = [AskContribution(self.plan.members[i], part.index, i) for i in direct]
            if part.publisher == self.me:
                late = [name for name in part.regional if (part.index, self._index[name]) not in current.sums]
                asked += [AskResult(name, part.index) for name in late]
            return asked
        published = part.publisher == self.me and part.index in current.results
        if published and not sending and not current.held.get(part.index):
            return self._hand_on(current.results[part.index])
        return []

    def is_applied_elsewhere(self) -> list[Effect]:
        """Some member has applied the open round: its results cannot be lost any more, whoever has said so or not."""
        if self.open is None:
            return []
        for part in self.parts:
            if part.publisher == self.me:
                self.open.held.setdefault(part.index, set()).add("a member that has applied it")
        return self._progress(self.open.begun)

    def deadline(self, regional: bool = False) -> float | None:
        """Seconds that a publisher (or a region's taker) waits after beginning; None with too little to go by."""
        durations = self.gathered if regional else self.durations
        patient = max(ROUNDS_WITHOUT_DEADLINE, self.plan.fragments)  # what the view before has left goes with these
        if self.plan.patient or self.plan.whole or self.last or len(durations) < patient:
            return None
        return deadline_of(durations)

    # ---- inside ----------------------------------------------------------------------------

    def _may_be_lacked(self, done: OpenRound, part: int) -> bool:
        """Whether a member may still ask for a result of a round: its publisher was told by those who hold it."""
        return bool(self._index.keys() - {self.me, self.plan.parts[part].publisher, *done.held.get(part, ())})

    def _keep_early(self, message: Early) -> list[Effect]:
        """A message of a round that this node has not begun.

        A member may be ahead: it has applied the round that is still open here, or some that went on without this node.
        """
        why = self._early.keep(message, self.applied)
        return [Refuse(message.sender, why)] if why else self.is_applied_elsewhere()

    def _contribution(
        self, sender: str, of: str, part: int, chain: int, sent: Contribution, now: float
    ) -> list[Effect]:
        current = self._current()
        if chain != self.chain:
            return [Refuse(sender, self._differs(of, chain), diverged=True)]
        key = (part, self._index[of])
        held = current.contributions.get(key)
        if held is not None:
            return [] if held.digest == sent.digest else self._second(sender, key, held, sent)
        wanted = current.unmatched.get(part)
        if wanted is not None and key[1] in wanted.contributors:
            if wanted.digests[wanted.contributors.index(key[1])] != sent.digest:
                return self._unlisted(sender, key, sent)
        elif sender != of:
            return [Refuse(sender, f"a contribution of {of} that nobody asked {sender} for")]
        if sender != of or self._takes(self.plan.parts[part]):
            wrong = self._looked_at(sender, key, sent)
            if wrong:
                return wrong
        current.contributions[key] = sent
        if not self.plan.followed and len({index for _, index in current.contributions}) == len(self.plan.members):
            self.log = []  # who sends something of this round has applied those before it
        self._measure(self.plan.parts[part], now)
        effects = self._second(sender, key, current.disputed.pop(key), sent) if key in current.disputed else []
        if wanted is not None and not self._missing(wanted):
            del current.unmatched[part]
            current.results[part] = wanted
            effects.append(SendHeld(self.plan.parts[part].publisher, part))
        return effects

    # All-to-all: every contribution is signed. A signature is looked at where it may matter: by the publisher, of what
    # another passes on, and where two contributions differ.

    def _vouched(self, of: int, number: int, part: int, sent: Contribution) -> bool | None:
        return self.vouch is None or of == self._index[self.me] or self.vouch(of, number, part, sent)

    def _looked_at(self, sender: str, key: tuple[int, int], sent: Contribution) -> list[Effect]:
        """Nothing, if its member has signed what came. Where that cannot be told, what came counts for nothing, and is
        asked for with the certificate; whoever passes on another's has to know it."""
        (part, index), current = key, self._current()
        of, vouched = self.plan.members[index], self._vouched(index, current.number, part, sent)
        if vouched is None and sender == of and key not in current.unknown:
            current.unknown.add(key)
            return [AskContribution(of, part, index)]
        return [] if vouched else [self._unsigned(sender, of)]

    def _unsigned(self, sender: str, of: str) -> Refuse:
        why = f"a contribution of {of} that {of} has not signed"
        return Refuse(sender, why, blocks=self.plan.patient or self.plan.whole)

    def _unshown(self, part: Part) -> Refuse:
        """The publisher has had time to show what it counted."""
        why = f"{part.publisher} counted another contribution to part {part.index} than came here, and does not show it"
        return Refuse(part.publisher, why)

    def _unlisted(self, sender: str, key: tuple[int, int], sent: Contribution) -> list[Effect]:
        """Not the contribution that the publisher counted: whose fault it is shows when that one is here."""
        of, current = self.plan.members[key[1]], self._current()
        if self.vouch is None:
            return [Refuse(sender, f"the contribution of {of} is not the one that the publisher counted")]
        wrong = self._looked_at(sender, key, sent)
        if wrong:
            return wrong
        before = current.disputed.setdefault(key, sent)
        return [] if before.digest == sent.digest else self._second(sender, key, before, sent)

    def _second(self, sender: str, key: tuple[int, int], held: Contribution, sent: Contribution) -> list[Effect]:
        """Two different contributions of one member to one part. What others pass on was looked at when it came."""
        of, number = self.plan.members[key[1]], self._current().number
        if self.vouch is None or of == self.me:
            return [Refuse(sender, f"two different contributions of {of} to round {number}")]
        wrong = self._looked_at(sender, key, sent)
        if wrong:
            return wrong
        if not self._vouched(key[1], number, key[0], held):
            return [self._unsigned(of, of)]
        return [Equivocated(key[0], key[1], held, sent)]

    def _result(self, sender: str, chain: int, result: Result, now: float) -> list[Effect]:
        current, part = self._current(), self.plan.parts[result.part]
        if chain != self.chain:
            return [Refuse(sender, self._differs(sender, chain), diverged=True)]
        publisher = part.publisher
        if publisher == self.me and sender in part.regional:
            return self._regional(sender, result, now)
        known = current.results.get(result.part, current.unmatched.get(result.part))
        if known is not None and publisher != self.me and not same_words(known, result):
            signed = self._attested(current.number, result)
            return [TwoResults(known, result) if signed else self._forged(sender, part)]
        if result.part in current.results and sender == publisher:
            return [SendHeld(publisher, result.part)]  # it would not say it again if it had heard so
        if known is not None:
            return []
        if sender not in (publisher, part.taker(self._index[self.me])) and not current.asked:
            return [
                Refuse(sender, f"a result of part {result.part} that {sender} does not publish and was not asked for")
            ]
        if publisher == self.me:
            return [Refuse(sender, f"a result of part {result.part}, which this node publishes itself")]
        if not self._attested(current.number, result):
            return [self._forged(sender, part)]
        wrong: list[Effect] = []
        for index, digest in zip(result.contributors, result.digests, strict=True):
            got = current.contributions.get((result.part, index))
            if got is not None and got.digest != digest:
                wrong.append(Refuse(sender, f"{publisher} counted another contribution of {self.plan.members[index]}"))
        if self.plan.pattern == "all_to_all":
            if wrong and (self.vouch is None or self._differs_here(result, self._index[self.me])):
                return wrong
            for index in result.contributors:
                if self._differs_here(result, index):
                    key = (result.part, index)
                    current.disputed[key] = current.contributions.pop(key)
            if self._missing(result):
                current.unmatched[result.part] = result
                return [AskContribution(publisher, result.part, index) for index in self._missing(result)]
        current.results[result.part] = result
        return [*wrong, SendHeld(publisher, result.part), *self._hand_on(result), *self._next_phase(result)]

    def _attested(self, number: int, result: Result) -> bool:
        return self.attest is None or self.attest(number, result)

    def _forged(self, sender: str, part: Part) -> Refuse:
        why = f"a result of part {part.index} that {part.publisher} has not signed"
        return Refuse(sender, why, blocks=True)

    def _differs_here(self, result: Result, index: int) -> bool:
        """Whether this node holds another contribution of a member than a result lists."""
        got = self._current().contributions.get((result.part, index))
        listed = dict(zip(result.contributors, result.digests, strict=True))
        return got is not None and listed.get(index, got.digest) != got.digest

    def _regional(self, sender: str, result: Result, now: float) -> list[Effect]:
        """The sum of another region for a part that this node publishes."""
        current, part, taker = self._current(), self.plan.parts[result.part], self._index[sender]
        if any(part.taker(index) != sender for index in result.contributors):
            return [Refuse(sender, f"a sum of part {part.index} over members of other regions than that of {sender}")]
        if (part.index, taker) in current.sums:
            if current.sums[part.index, taker].digest != result.digest:
                return [Refuse(sender, f"two different sums of the region of {sender} in round {current.number}")]
            return []
        current.sums[part.index, taker] = result
        self._measure(part, now)
        return []

    def _hand_on(self, result: Result) -> list[Effect]:
        """A published result, to those who wait for it here."""
        part = self.plan.parts[result.part]
        near = [name for name, index in self._index.items() if part.taker(index) == self.me and name != self.me]
        far = part.regional if part.publisher == self.me else ()
        return [SendResult(to, self._current().number, self.chain, result) for to in (*near, *far)]

    def _takes(self, part: Part) -> bool:
        """Whether this node adds up a part, as its publisher or for its region."""
        return part.taker(self._index[self.me]) == self.me

    def _measure(self, part: Part, now: float) -> None:
        """Something of ``part`` came: how long the round took, if it was the last that this node waits for."""
        if part.phase or not self._takes(part):
            return
        publishes = part.publisher == self.me
        alike = [p for p in self.parts if not p.phase and self._takes(p) and (p.publisher == self.me) == publishes]
        if any(self._absent(p, self._wanted(p)) for p in alike):
            return
        kept = self.durations if publishes else self.gathered
        kept.append(now - self._current().begun)
        del kept[:-20]

    def _wanted(self, part: Part) -> tuple[int, ...]:
        """Whose contributions this node adds up."""
        if part.phase:
            before = self._current().results.get(part.index - 1)
            return () if before is None else before.contributors
        return tuple(index for index in self._index.values() if part.taker(index) == self.me)

    def _absent(self, part: Part, wanted: tuple[int, ...]) -> set[str]:
        """Members of which nothing is here yet, neither by themselves nor in the sum of their region."""
        current = self._current()
        absent = {self.plan.members[i] for i in wanted if (part.index, i) not in current.contributions}
        if part.publisher == self.me:
            late = {name for name in part.regional if (part.index, self._index[name]) not in current.sums}
            absent |= {name for name, index in self._index.items() if part.taker(index) in late}
        return absent

    def lacking(self) -> frozenset[str]:
        """For whom the open round waits: of whom this node lacks a contribution. If of nobody, who publish what it
        lacks of the results; and if it has them all, the others, of whom one is to say that it holds them."""
        current = self.open
        if current is None or current.complete:
            return frozenset()
        terms: set[str] = set()
        results: set[str] = set()
        for part in self.parts:
            if self._takes(part) and part.index not in current.deciding:
                terms |= self._absent(part, self._wanted(part))
            late = current.unmatched.get(part.index)
            if late is not None:
                terms |= {self.plan.members[index] for index in self._missing(late)}
            elif part.index not in current.results:
                results |= {part.taker(self._index[self.me]), part.publisher}
        others = frozenset(self.plan.members) - {self.me}
        return (others & terms) or (others & results) or others

    def _offer(self, part: Part, own: Contribution) -> list[Effect]:
        """This node's contribution of a part, to itself and to those who need it."""
        current = self._current()
        current.contributions[part.index, self._index[self.me]] = own
        receivers = self.plan.members if self.plan.pattern == "all_to_all" else (part.taker(self._index[self.me]),)
        return [
            SendContribution(to, current.number, self.chain, part.index, own, self.me)
            for to in receivers
            if to != self.me
        ]

    def _next_phase(self, result: Result) -> list[Effect]:
        """The part after this one is its next phase, if it has one."""
        follows = any(part.index == result.part + 1 and part.phase for part in self.parts)
        return [Advance(result)] if follows and self._index[self.me] in result.contributors else []

    def _travels(self, part: int, round: int) -> bool:
        return any(one.index == part for one in self.plan.parts_in(round))

    def _missing(self, result: Result) -> list[int]:
        return [i for i in result.contributors if (result.part, i) not in self._current().contributions]

    def _progress(self, now: float) -> list[Effect]:
        """Decide what can be decided; complete what can be completed."""
        current = self._current()
        if current.complete:
            return []
        effects: list[Effect] = []
        limits = {regional: self.deadline(regional) for regional in (False, True)}
        for part in self.parts:
            if not self._takes(part) or part.index in current.deciding:
                continue
            limit = limits[part.publisher != self.me]
            overdue = limit is not None and now - current.begun > limit
            wanted = self._wanted(part)
            absent = self._absent(part, wanted)
            lost = part.phase > 0 or any(self.misses[name] >= KEPT_ROUNDS - 1 for name in absent)
            if wanted and (not absent or (overdue and not lost)):
                current.deciding.add(part.index)
                here = ((i, current.contributions.get((part.index, i))) for i in wanted)
                sums = (
                    (self._index[name], current.sums.get((part.index, self._index[name]))) for name in part.regional
                )
                effects.append(
                    Decide(
                        part.index,
                        tuple((i, sent) for i, sent in here if sent is not None),
                        tuple((i, result) for i, result in sums if result is not None),
                    )
                )
        alone = len(self.plan.members) == 1
        safe = (
            part.index in current.results and (part.publisher != self.me or alone or bool(current.held.get(part.index)))
            for part in self.parts
        )
        if all(safe):
            current.complete = True
            effects.append(Complete(current.number))
        return effects

    def _current(self) -> OpenRound:
        if self.open is None:
            raise RuntimeError(f"no open round of {self.plan.section}")
        return self.open

    def _differs(self, name: str, chain: int) -> str:
        return self.differ(name, self.applied, chain, self.chain)

    def differ(self, name: str, round: int, theirs: int, ours: int) -> str:
        """The words for another history."""
        return (
            f"{name} holds another history of {self.plan.section} than {self.me} after round {round}: "
            f"h is {theirs:016x} there and {ours:016x} here"
        )


def same_words(one: Result, other: Result) -> bool:
    """Whether two results of a part say the same."""
    return what_counts(one) == what_counts(other) and one.sizes == other.sizes
