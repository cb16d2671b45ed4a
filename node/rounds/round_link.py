"""A section's rounds on the wire: effects of the protocol become messages, messages become events of the protocol."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt

from ...compress import CodecError
from ...compress.summable.secure import Pairwise
from ...proto import data_pb2
from .arithmetic.exchange import Exchange
from .arithmetic.masked import Masked
from .arithmetic.update import Update
from .checking.audit import PROVEN, Auditor, NotShown
from .checking.disputes import DISPUTE_KINDS, Disputes, Refuses, Send, Warn
from .checking.judge import Judge
from .checking.signed import Signer
from .protocol.headers import contribution_header, received_contribution, received_result, result_header
from .protocol.machine import Rounds
from .protocol.messages import (
    Advance,
    AskContribution,
    AskResult,
    Complete,
    Decide,
    Effect,
    Equivocated,
    Refuse,
    Result,
    SendContribution,
    SendHeld,
    SendResult,
    TwoResults,
    what_counts,
)
from .protocol.open_round import KEPT_ROUNDS, OpenRound
from .protocol.payloads import Refused

ENOUGH = 30
"""Points that evict a node, given by one member alone."""


class RoundLink:
    """Runs the rounds of one section: ``begin``, then ``handle`` what arrives and ``tick``, until ``complete``."""

    def __init__(
        self,
        exchange: Exchange,
        rounds: Rounds,
        send: Send,
        refuse: Refuses,
        diverged: Warn,
        *,
        clock: Callable[[], float] = time.monotonic,
        coding: Callable[[str], AbstractContextManager[object]] = nullcontext,
        audit: float = 0.0,
        sending: Callable[[], bool] = lambda: False,
        signer: Signer | None = None,
    ) -> None:
        """``coding(what)``: a context whose time is the codec's. ``audit``: the part of a publisher's traffic that may
        go into showing how it came to its sums. ``sending``: whether something is on its way that may be what is asked
        for: bulk does not go twice over a slow link. ``signer``: signs contributions and results where a member could
        send others different ones; without it (no TLS) nobody can show who sent what."""
        self._chains: dict[int, int] = {}
        """h before each of the last rounds."""
        self.sending = sending
        self._keys: dict[str, bytes] = {}
        self.diverged = diverged
        self.exchange = exchange
        self.rounds = rounds
        self.auditor = Auditor(exchange, audit)
        self.send = send
        self.refuse = refuse
        self._checked = self._spoiled = 0
        self.clock = clock
        self.coding = coding
        self.disputes = Disputes(
            rounds,
            signer,
            lambda to, header, payload: self.send(to, header, payload),
            lambda node, why, points=1: self.refuse(node, why, points),
            lambda node, why: self.diverged(node, why),
            clock,
        )

    @property
    def complete(self) -> bool:
        """The open round may be applied. One whose results make no sense never may, and only a view change ends it."""
        current = self.rounds.open
        if current is None or not current.complete or self._spoiled == current.number:
            return False
        if self._checked != current.number:
            try:
                with self.coding("check"):
                    self.exchange.check(current.number, current.results, current.contributions)
            except Refused as problem:
                self._spoil(current.number, problem)
                return False
            self._checked = current.number
        return True

    def _spoil(self, number: int, problem: Refused) -> None:
        self._spoiled = number
        self.refuse(problem.member, f"round {number} cannot be applied: {problem.why}", self._blocking)

    @property
    def _blocking(self) -> int:
        """Points of what keeps everybody from going on: each of the others sees it, and there may be only one."""
        return ENOUGH // min(3, max(1, len(self.rounds.plan.members) - 1))

    def introduce(self, again: bool = False) -> None:
        """Tell the other members the key of this node's masks, where contributions are masked. ``again``: those whose
        keys have not come, who are to say theirs again."""
        if isinstance(self.exchange.phased, Masked):
            masks = self.exchange.phased.masks
            missing = masks.missing
            for name in self.rounds.plan.members:
                if name != self.rounds.me and (not again or name in missing):
                    self._send_key(name, masks.public, again)

    def _send_key(self, to: str, key: bytes, wants: bool) -> None:
        header = self._header(data_pb2.KEY, 0)
        header.value = float(wants)
        self.send(to, header, (key,))

    @property
    def unknown(self) -> Collection[str]:
        """Members whose keys the rounds need, and are not here."""
        return self.exchange.phased.masks.missing if isinstance(self.exchange.phased, Masked) else ()

    def begin(self) -> None:
        """Encode this node's contribution and send it on its way."""
        self._checked = self._spoiled = 0
        with self.coding("encode"):
            number = self.rounds.applied + 1
            own = self.disputes.signed(self.exchange.contributions(number), number)
        self._chains = {n: chain for n, chain in self._chains.items() if n > number - KEPT_ROUNDS}
        self._chains[number] = self.rounds.chain
        self._carry(self.rounds.begin(own, self.clock()))

    def tick(self) -> None:
        now = self.clock()
        self._carry(self.rounds.tick(now, self.sending()))
        self.disputes.tick(now)

    def ask(self) -> None:
        """Ask for what is missing now."""
        self._carry(self.rounds.ask(self.clock()))

    def is_applied_elsewhere(self) -> None:
        """Some member has applied the open round."""
        self._carry(self.rounds.is_applied_elsewhere())

    def updates(self) -> Iterator[tuple[slice, Update]]:
        """The complete round's update D in pieces: where, and what, good until the next."""
        current = self._complete_round()
        return self.exchange.updates(current.number, current.results, current.contributions)

    @property
    def results(self) -> tuple[Result, ...]:
        """The complete round's results in part order."""
        current = self._complete_round()
        return tuple(current.results[part.index] for part in self.rounds.parts)

    @property
    def absent(self) -> list[str]:
        """Members of whom the complete round lacks something."""
        counted = [set(result.contributors) for result in self.results]
        members = self.rounds.plan.members
        return [name for index, name in enumerate(members) if not all(index in who for who in counted)]

    def _complete_round(self) -> OpenRound:
        current = self.rounds.open
        if current is None or not self.complete:
            raise RuntimeError("the round is not complete")
        return current

    def judge(self, judge: Judge) -> None:
        """Let the complete round be judged, if it wants to. Raises ViewEnds."""
        current = self._complete_round()
        judge.round(self.exchange, current.number, self.results, current.contributions)

    def finish(self, results: Sequence[Result], block: int) -> None:
        """The update has been applied to ``g``: close the round and move the chain on."""
        self.auditor.finished(self.rounds.applied + 1, results)
        for publisher, why in self.auditor.overdue(self.rounds.applied + 1):
            self.refuse(publisher, why, PROVEN)
        section = self.exchange.section
        section.chain = section.next_chain(digests_of(results), block)
        self.rounds.finish(section.chain)
        self.disputes.applied(self.rounds.applied)
        section.round = self.rounds.applied

    def handle(self, sender: str, header: data_pb2.Header, payload: npt.NDArray[np.uint8]) -> None:
        """A message of this section from another member."""
        rounds, now = self.rounds, self.clock()
        if header.kind == data_pb2.CONTRIBUTION:
            of = sender if not header.contributors else self._member(header.contributors[0])
            sent = received_contribution(header, payload.data)
            self.disputes.learn(of, sent)
            effects = rounds.contribution(sender, of, header.round, header.part, header.chain, sent, now)
        elif header.kind == data_pb2.RESULT:
            effects = rounds.result(sender, header.round, header.chain, received_result(header, payload.data), now)
        elif header.kind == data_pb2.RESULT_HELD:
            effects = rounds.held(sender, header.round, header.part, now)
            before = self._chains.get(header.round, header.chain)
            if header.chain and before != header.chain and sender in rounds.plan.members:
                self.disputes.differs(sender, rounds.differ(sender, header.round - 1, header.chain, before))
            if header.value:
                self._show(sender, header.round, header.part)
            self.auditor.held(sender, header.round, header.part)
        elif header.kind == data_pb2.AUDIT:
            with self.coding("audit"):
                self._judge(sender, header, payload.data)
            effects = []
        elif header.kind in DISPUTE_KINDS:
            self.disputes.handle(sender, header, payload)
            effects = []
        elif header.kind == data_pb2.RESULT_REQUEST:
            effects = rounds.result_wanted(sender, header.round, header.part)
        elif header.kind == data_pb2.CONTRIBUTION_REQUEST:
            of_index = header.contributors[0] if header.contributors else -1
            on_its_way = self._member(of_index) == rounds.me and self.sending() and not header.value
            found = [] if on_its_way else rounds.contribution_wanted(sender, header.round, header.part, of_index)
            effects = [self.disputes.with_certificate(one) for one in found]
        elif header.kind == data_pb2.KEY and isinstance(self.exchange.phased, Masked):
            self._take_key(sender, payload.tobytes(), bool(header.value), self.exchange.phased.masks)
            effects = []
        else:
            raise ValueError(f"{data_pb2.Kind.Name(header.kind)} is no message of a round")
        self._carry(effects)

    def _take_key(self, sender: str, key: bytes, wants: bool, masks: Pairwise) -> None:
        if wants and sender in self.rounds.plan.members:
            self._send_key(sender, masks.public, False)
        if self._keys.get(sender) == key:
            return  # once more
        try:
            masks.take(sender, key)
            self._keys[sender] = key
        except CodecError as problem:
            self.refuse(sender, str(problem), self._blocking)

    def _show(self, to: str, round: int, part: int) -> None:
        """``to`` wants to make this node's sum again."""
        pieces = self.auditor.shown(round, part)
        if pieces and to in self.rounds.plan.members:
            header = self._header(data_pb2.AUDIT, part, round)
            header.sizes.extend(len(piece) for piece in pieces)
            self.send(to, header, pieces)

    def _judge(self, sender: str, header: data_pb2.Header, payload: memoryview) -> None:
        """A publisher shows how it came to a sum; or another member says that it lied, and shows the same."""
        members, (round, part) = self.rounds.plan.members, (header.round, header.part)
        if sender not in members or part >= len(self.rounds.plan.parts):
            self.refuse(sender, f"it shows a part {part} of {self.rounds.plan.section} that it has nothing to do with")
            return
        publisher, auditor = self.rounds.plan.parts[part].publisher, self.auditor
        answer = sender == publisher
        if not (auditor.answered(sender, round, part) if answer else auditor.first_time(sender, round, part)):
            return  # perhaps asked in an earlier life of the link; evidence of what is forgotten proves nothing
        try:
            lie, why = auditor.check(round, part, payload, header.sizes), "what it shows holds"
        except NotShown as problem:
            lie, why = "", str(problem)
            if answer:
                self.refuse(sender, f"shows of part {part} of round {round} {why}", PROVEN)
                return
        if lie and publisher != self.rounds.me:
            others = [name for name in members if name not in (self.rounds.me, publisher)]
            self.refuse(publisher, f"part {part} of round {round}: {lie}", PROVEN if others else ENOUGH)
            for name in others if answer else ():
                self.send(name, header, payload)
        elif not answer:
            self.refuse(sender, f"it accuses {publisher} of a lie in part {part} of round {round}: {why}", PROVEN)

    def _member(self, index: int) -> str:
        members = self.rounds.plan.members
        return members[index] if 0 <= index < len(members) else ""

    def _carry(self, effects: Iterable[Effect]) -> None:
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, SendContribution):
                self._send_contribution(effect)
            elif isinstance(effect, SendResult):
                self._send_result(effect)
            elif isinstance(effect, SendHeld):
                header = self._header(data_pb2.RESULT_HELD, effect.part)
                assert self.rounds.open is not None
                self.auditor.staged(header.round, self.rounds.open.results[effect.part])
                self.disputes.staged(header.round, self.rounds.open.results[effect.part])
                header.value = float(self.auditor.wants(header.round, effect.part))
                self.send(effect.to, header, ())
                self.disputes.tell_next(effect.part)
            elif isinstance(effect, AskResult):
                self.send(effect.to, self._header(data_pb2.RESULT_REQUEST, effect.part), ())
            elif isinstance(effect, AskContribution):
                header = self._header(data_pb2.CONTRIBUTION_REQUEST, effect.part)
                header.contributors.append(effect.of)
                assert self.rounds.open is not None
                header.value = float((effect.part, effect.of) in self.rounds.open.unknown)
                self.send(effect.to, header, ())
            elif isinstance(effect, Decide):
                with self.coding("add up and encode"):
                    result, refused = self.exchange.decide(self.rounds.applied + 1, effect)
                for problem in refused:
                    points = self._blocking if self.rounds.plan.patient or self.rounds.plan.whole else 1
                    self.refuse(problem.member, f"update refused: {problem.why}", points)
                result = self.disputes.published(self.rounds.applied + 1, result)
                waiting += self.rounds.decided(effect.part, result, self.clock())
                self.auditor.staged(self.rounds.applied + 1, result)
                self.auditor.keep(self.rounds.applied + 1, result, dict(effect.contributions))
            elif isinstance(effect, Advance):
                try:
                    own = self.exchange.advance(effect.result)
                except Refused as problem:
                    self._spoil(self.rounds.applied + 1, problem)
                    continue
                waiting += self.rounds.advance(effect.result, own, self.clock())
            elif isinstance(effect, Equivocated):
                self.disputes.show_proof(effect)
            elif isinstance(effect, TwoResults):
                self.disputes.two_results(effect)
            elif isinstance(effect, Refuse):
                if effect.diverged:
                    self.disputes.differs(effect.sender, effect.why)
                else:
                    self.refuse(effect.sender, effect.why, self._blocking if effect.blocks else 1)
            elif not isinstance(effect, Complete):
                raise TypeError(effect)

    def _header(self, kind: data_pb2.Kind, part: int, round: int | None = None) -> data_pb2.Header:
        return data_pb2.Header(
            kind=kind,
            section=self.rounds.plan.section,
            round=self.rounds.applied + 1 if round is None else round,
            part=part,
        )

    def _send_contribution(self, effect: SendContribution) -> None:
        plan, sent = self.rounds.plan, effect.contribution
        of = None if effect.of == self.rounds.me else plan.members.index(effect.of)
        header = contribution_header(plan.section, effect.round, effect.part, effect.chain, sent, of)
        self.send(effect.to, header, sent.payload)

    def _send_result(self, effect: SendResult) -> None:
        header = result_header(self.rounds.plan.section, effect.round, effect.chain, effect.result)
        self.send(effect.to, header, effect.result.payload)


def digests_of(results: Sequence[Result]) -> list[int]:
    """What the chain has of a round's results, which are in part order."""
    return [word for result in results for word in what_counts(result)]
