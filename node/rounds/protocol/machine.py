"""The protocol of a round as a pure state machine: messages and times in, effects out.

There is one object for each section (the parameters that one group shares) and view. It decides which members are
counted, which results are staged, what is asked for again, and when the round may be applied. It never uses a tensor or
a socket; payloads pass through it unread. ``docs/rounds.md`` explains the protocol.

There are four patterns. ``publishers``: every part of the vector has a publisher; members send it their contributions,
and it publishes the encoded sum. ``all_to_all``: each member sends its contributions to all others, and the publisher
publishes only which members are counted, with the digests of their contributions. ``phases``: like ``publishers``,
several times in one round; each phase is a separate part, and the members counted in the first phase must be in all.
``two_level``: like ``publishers``, but distant members send to one member of their region (the part's *taker* there),
which sends the publisher the region's sum, and hands the result on to its region.
"""

from dataclasses import replace
from functools import partial

from . import asking, contributions, results
from .asking import ASK_AGAIN_SECONDS
from .messages import Contribution, Effect, Part, Refuse, Result, SendContribution, SendResult, is_whole, what_counts
from .open_round import KEPT_ROUNDS, LEAST_LOG, Applied, Early, EarlyMessages, OpenRound, newest
from .standing import Standing


class Rounds(Standing):
    """A section's rounds in one view, seen by one member: each event returns effects."""

    def begin(self, own: dict[int, Contribution], now: float) -> list[Effect]:
        """Open the next round with this node's contributions, by part; to other parts it contributes later."""
        if self.open is not None:
            raise RuntimeError(f"round {self.open.number} of {self.plan.section} is still open")
        self.open = OpenRound(self.applied + 1, now, ask_at=now + ASK_AGAIN_SECONDS)
        effects = [effect for part in self.parts if part.index in own for effect in self._offer(part, own[part.index])]
        for message in self.early.due(self.open.number):
            effects += message.take(now)
        return effects + self.progress(now)

    def offer(self, part: int, own: Contribution, now: float) -> list[Effect]:
        """Take this node's contribution to another part of the open round."""
        self.current().ask_at = now + ASK_AGAIN_SECONDS
        return self._offer(self.plan.parts[part], own) + self.progress(now)

    @property
    def unoffered(self) -> list[Part]:
        """The parts of the open round, or of the next, to which this node has not contributed yet."""
        return [part for part in self.parts if part.phase == 0 and (self.open is None or not self.has_offered(part))]

    def place(self, part: int) -> None:
        """The sum of a part has taken the gradient's place on this node."""
        self.current().placed.add(part)
        self.release(part)

    def settle(self, part: int) -> None:
        """Nobody needs this node's contribution to a part any more: the part's sum is here and cannot be lost."""
        current, mine = self.current(), (part, self.index[self.me])
        current.settled.add(part)
        current.contributions[mine] = replace(current.contributions[mine], payload=())

    def release(self, part: int) -> None:
        """Drop the bytes of a part that are needed neither here nor by a member that could ask this node for them: in
        gradient mode the publisher answers until every member holds the result, and no step is committed before."""
        current = self.current()
        others = self.index.keys() - {self.me} if self.plan.parts[part].publisher == self.me else frozenset()
        if part in current.placed and not self.plan.followed and others <= current.held.get(part, set()):
            current.drop_contributions(part)
            for results in (current.results, current.handed):
                if part in results:
                    results[part] = replace(results[part], payload=())

    def decided(self, part: int, result: Result, now: float) -> list[Effect]:
        """Take the sum that ``Decide`` asked for. From now on the result is published and cannot change."""
        if self.open is None:
            raise RuntimeError("no open round")
        if self.plan.pattern != "all_to_all" and self.plan.phases == 1:  # what was summed is not needed again
            self.open.drop_contributions(part)
        publisher = self.plan.parts[part].publisher
        if publisher != self.me:
            self.open.handed[part] = result
            return [SendResult(publisher, self.open.number, self.chain, result)]
        self.open.results[part] = result
        return self.hand_on(result) + self.next_phase(result) + self.progress(now)

    def advance(self, result: Result, own: Contribution, now: float) -> list[Effect]:
        """Take the contribution that ``Advance`` asked for."""
        return self._offer(self.plan.parts[result.part + 1], own) + self.progress(now)

    def finish(self, chain: int) -> None:
        """The node has applied the open round; ``chain`` is h after it."""
        if self.open is None or not self.open.complete:
            raise RuntimeError(f"the open round of {self.plan.section} is not complete")
        taken = [self.open.results[part.index] for part in self.parts if self.takes(part) and part.phase == 0]
        if taken:
            counted = {index for result in taken for index in result.contributors}
            for name, index in self.index.items():
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

    def drop(self) -> None:
        """A later view has started: drop the open round and all kept messages."""
        self.open, self.log = None, []
        self.early = EarlyMessages(self.plan.section)

    def contribution(
        self, sender: str, of: str, number: int, part: int, chain: int, sent: Contribution, *, now: float
    ) -> list[Effect]:
        """A contribution of member ``of`` has arrived from ``sender`` (another member only as an answer to a
        request)."""
        if sender not in self.index or of not in self.index:
            return [Refuse(sender, f"{of} is not a member of {self.plan.section}")]
        if not self.travels(part, number):
            return [Refuse(sender, f"round {number} of {self.plan.section} has no part {part}")]
        if self.plan.pattern != "all_to_all" and self.plan.parts[part].taker(self.index[of]) != self.me:
            return [Refuse(sender, f"part {part} of {self.plan.section} is not published here")]
        if number <= self.applied:
            return []  # late: its sender was not counted and sends its update again
        if self.open is None or number != self.open.number:
            take = partial(contributions.take, self, sender, of, part, chain, sent)
            early = Early(sender, number, part, (of, chain, sent.digest), lambda then: take(now=then))
            return self._keep_early(early)
        return contributions.take(self, sender, of, part, chain, sent, now=now) + self.progress(now)

    def result(self, sender: str, number: int, chain: int, result: Result, now: float) -> list[Effect]:
        """A result has arrived, from its publisher, this region's taker or a member that was asked; or a region's
        sum."""
        if sender not in self.index:
            return [Refuse(sender, f"{sender} is not a member of {self.plan.section}")]
        if not self.travels(result.part, number):
            return [Refuse(sender, f"round {number} of {self.plan.section} has no part {result.part}")]
        if wrong := results.malformed(self.plan, result):
            part = self.plan.parts[result.part]  # without its publisher's word, or a region's, the round stands
            return [Refuse(sender, wrong, blocks=sender in (part.publisher, *part.regional))]
        if number <= self.applied:
            return []
        if self.open is None or number != self.open.number:
            take = partial(results.take, self, sender, chain, result)
            said = (chain, what_counts(result))
            return self._keep_early(Early(sender, number, result.part, said, take))
        return results.take(self, sender, chain, result, now) + self.progress(now)

    def held(self, sender: str, number: int, part: int, now: float) -> list[Effect]:
        """``sender`` has staged the result of a part that this node publishes."""
        if self.open is None or number != self.open.number or sender not in self.index:
            return []
        if not self.travels(part, number):
            return [Refuse(sender, f"round {number} of {self.plan.section} has no part {part}")]
        self.open.held.setdefault(part, set()).add(sender)
        self.release(part)
        return self.progress(now)

    def result_wanted(self, sender: str, number: int, part: int) -> list[Effect]:
        """A member asks for a result, and gets it if this node holds it."""
        if sender not in self.index:
            return [Refuse(sender, f"{sender} is not a member of {self.plan.section}")]
        if self.open is not None and number == self.open.number:
            # The part's publisher asks for the sum of this node's region.
            publishes = part < len(self.plan.parts) and self.plan.parts[part].publisher == sender
            source = self.open.handed if publishes else self.open.results
            if part in source and is_whole(source[part]):
                return [SendResult(sender, number, self.chain, source[part])]
        for applied in self.log:
            if applied.round == number and part in applied.results:
                return [SendResult(sender, number, applied.chain, applied.results[part])]
        return []

    def contribution_wanted(self, sender: str, number: int, part: int, of: int) -> list[SendContribution]:
        """A member asks for a contribution that a result lists."""
        sources = [(applied.chain, applied.contributions) for applied in self.log if applied.round == number]
        if self.open is not None and self.open.number == number:
            sources.append((self.chain, self.open.contributions))
        for before, source in sources:
            found = source.get((part, of))
            if found is not None and is_whole(found) and self.vouched(of, number, part, found):
                return [SendContribution(sender, number, before, part, found, self.plan.members[of])]
        return []

    def tick(self, now: float, sending: bool = False) -> list[Effect]:
        """Time has passed: apply deadlines, and ask again for what is missing. ``sending``: as in ``ask``."""
        if self.open is None:
            return []
        effects = self.progress(now)
        if now < self.open.ask_at or self.open.complete:
            return effects
        return effects + asking.ask(self, now, sending)

    def is_applied_elsewhere(self) -> list[Effect]:
        """Another member has applied the open round: its results can no longer be lost."""
        if self.open is None:
            return []
        for part in self.parts:
            if part.publisher == self.me:
                self.open.held.setdefault(part.index, set()).add("a member that has applied it")
        return self.progress(self.open.begun)

    def _may_be_lacked(self, done: OpenRound, part: int) -> bool:
        """Whether a member may still ask for a result of a round: not all have told its publisher that they hold it."""
        return bool(self.index.keys() - {self.me, self.plan.parts[part].publisher, *done.held.get(part, ())})

    def _keep_early(self, message: Early) -> list[Effect]:
        """Keep a message of a round that this node has not begun.

        Its sender is ahead: it has applied the round that is still open here, or rounds that went on without this node.
        """
        why = self.early.keep(message, self.applied)
        return [Refuse(message.sender, why)] if why else self.is_applied_elsewhere()

    def _offer(self, part: Part, own: Contribution) -> list[Effect]:
        """Store this node's contribution to a part, and send it to the members that need it."""
        current = self.current()
        current.contributions[part.index, self.index[self.me]] = own
        receivers = self.plan.members if self.plan.pattern == "all_to_all" else (part.taker(self.index[self.me]),)
        return [
            SendContribution(to, current.number, self.chain, part.index, own, self.me)
            for to in receivers
            if to != self.me
        ]

    def ask(self, now: float, sending: bool = False) -> list[Effect]:
        """As ``asking.ask``."""
        return asking.ask(self, now, sending)
