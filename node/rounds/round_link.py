"""A section's rounds on the wire: effects of the protocol become messages, messages become events of the protocol."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...compress import CodecError
from ...compress.summable.secure import Pairwise
from ...proto import data_pb2
from .audit import PROVEN, Auditor, NotShown
from .exchange import Exchange
from .headers import contribution_header, received_contribution, received_result, result_header
from .judge import Judge
from .machine import KEPT_ROUNDS, OpenRound, Rounds
from .masked import Masked
from .messages import (
    Advance,
    AskContribution,
    AskResult,
    Complete,
    Contribution,
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
from .payloads import Refused
from .receipts import PATIENCE_S, Receipt, Receipts, read
from .signed import Signer
from .update import Update

Send = Callable[[str, data_pb2.Header, Sequence[bytes] | memoryview], None]
Warn = Callable[[str, str], None]
"""``diverged(node, message)``: its history is another one."""


class Refuses(Protocol):
    """``refuse(node, message, points)``: something of ``node`` was refused; see coordinator/membership/refusals.py."""

    def __call__(self, node: str, why: str, points: int = 1, /) -> None: ...


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
        plan = rounds.plan
        self.signer = signer if plan.pattern == "all_to_all" and len(plan.members) > 2 else None
        if self.signer is not None:
            rounds.vouch = self._vouches
        self._first_signed = 0
        """The round in which this node first contributed in this view; 0: in none yet."""
        self.receipts: Receipts | None = None
        if signer is not None and len(plan.members) > 2:
            self.receipts = Receipts(signer, plan, rounds.me)
            rounds.attest = self.receipts.attests
        self._apart: dict[str, tuple[str, float]] = {}
        """Members with another history: the words for it, and when the coordinator is to hear them."""
        self._chains: dict[int, int] = {}
        """h before each of the last rounds."""
        self._told: set[str] = set()
        """Members of whose other history the coordinator has heard."""
        self._shown_to: set[str] = set()
        """Members that have this node's receipts."""
        self._equivocators: set[str] = set()
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
            own = self.exchange.contributions(number)
            if self.signer is not None:
                section, me = self.rounds.plan.section, self.rounds.me
                own = {part: self.signer.signed(me, section, number, part, sent) for part, sent in own.items()}
                self._first_signed = self._first_signed or (number if own else 0)
                if number != self._first_signed:  # everybody has it, or asks
                    own = {part: replace(sent, certificate=b"") for part, sent in own.items()}
        self._chains = {n: chain for n, chain in self._chains.items() if n > number - KEPT_ROUNDS}
        self._chains[number] = self.rounds.chain
        self._carry(self.rounds.begin(own, self.clock()))

    def tick(self) -> None:
        now = self.clock()
        self._carry(self.rounds.tick(now, self.sending()))
        for name in [name for name, (_, at) in self._apart.items() if now >= at]:
            self._told.add(name)
            self.diverged(name, self._apart.pop(name)[0])

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
        if self.receipts is not None:
            self.receipts.applied(self.rounds.applied)
        section.round = self.rounds.applied

    def handle(self, sender: str, header: data_pb2.Header, payload: npt.NDArray[np.uint8]) -> None:
        """A message of this section from another member."""
        rounds, now = self.rounds, self.clock()
        if header.kind == data_pb2.CONTRIBUTION:
            of = sender if not header.contributors else self._member(header.contributors[0])
            sent = received_contribution(header, payload.data)
            if self.signer is not None and of and sent.certificate:
                self.signer.learn(of, sent.certificate)
            effects = rounds.contribution(sender, of, header.round, header.part, header.chain, sent, now)
        elif header.kind == data_pb2.RESULT:
            effects = rounds.result(sender, header.round, header.chain, received_result(header, payload.data), now)
        elif header.kind == data_pb2.RESULT_HELD:
            effects = rounds.held(sender, header.round, header.part, now)
            before = self._chains.get(header.round, header.chain)
            if header.chain and before != header.chain and sender in rounds.plan.members:
                self._differs(sender, rounds.differ(sender, header.round - 1, header.chain, before))
            if header.value:
                self._show(sender, header.round, header.part)
            self.auditor.held(sender, header.round, header.part)
        elif header.kind == data_pb2.AUDIT:
            with self.coding("audit"):
                self._judge(sender, header, payload.data)
            effects = []
        elif header.kind == data_pb2.EQUIVOCATION and not header.sizes and self.receipts is not None:
            self._take_results(sender, header, payload.tobytes(), self.receipts)
            effects = []
        elif header.kind == data_pb2.EQUIVOCATION and self.signer is not None:
            self._take_proof(sender, header, payload)
            effects = []
        elif header.kind == data_pb2.RECEIPTS and self.receipts is not None:
            self._compare(sender, payload.tobytes(), self.receipts)
            effects = []
        elif header.kind == data_pb2.RESULT_REQUEST:
            effects = rounds.result_wanted(sender, header.round, header.part)
        elif header.kind == data_pb2.CONTRIBUTION_REQUEST:
            of_index = header.contributors[0] if header.contributors else -1
            on_its_way = self._member(of_index) == rounds.me and self.sending() and not header.value
            found = [] if on_its_way else rounds.contribution_wanted(sender, header.round, header.part, of_index)
            effects = [replace(one, contribution=self._with_certificate(one)) for one in found]
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

    def _vouches(self, index: int, round: int, part: int, sent: Contribution) -> bool | None:
        assert self.signer is not None
        plan = self.rounds.plan
        return self.signer.vouches(plan.members[index], plan.section, round, part, sent)

    def _with_certificate(self, answer: SendContribution) -> Contribution:
        """A contribution that was asked for, perhaps by who does not know its member's certificate."""
        if self.signer is None:
            return answer.contribution
        own = answer.of == self.rounds.me
        certificate = self.signer.certificate if own else self.signer.known_certificate(answer.of)
        return replace(answer.contribution, certificate=certificate)

    def _show_proof(self, found: Equivocated) -> None:
        """A member has sent different members different contributions: it is named, and the others are shown."""
        liar, round = self.rounds.plan.members[found.of], self.rounds.applied + 1
        if not self._name_equivocator(liar, round, found.part, "contributions to"):
            return
        both = (found.one, found.other)
        header = self._header(data_pb2.EQUIVOCATION, found.part, round)
        header.contributors.append(found.of)
        header.digests.extend(sent.digest for sent in both)
        header.sizes.extend(len(sent.signature) for sent in both)
        assert self.signer is not None, "both signatures were looked at"
        header.certificate = self.signer.known_certificate(liar)
        for name in self.rounds.plan.members:
            if name not in (self.rounds.me, liar):
                self.send(name, header, tuple(sent.signature for sent in both))

    def _take_proof(self, sender: str, header: data_pb2.Header, payload: npt.NDArray[np.uint8]) -> None:
        """Another member shows that one has signed two contributions to one part."""
        liar = self._member(header.contributors[0]) if len(header.contributors) == 1 else ""
        ends, both = list(header.sizes), payload.tobytes()
        ok = sender in self.rounds.plan.members and liar and len(ends) == 2 and sum(ends) == len(both) < 1024
        if ok and len(header.digests) == 2 and header.digests[0] != header.digests[1]:
            signatures = (both[: ends[0]], both[ends[0] :])
            shown = [
                Contribution(b"", (), digest, signature, header.certificate)
                for digest, signature in zip(header.digests, signatures, strict=True)
            ]
            if all(self._vouches(header.contributors[0], header.round, header.part, one) for one in shown):
                self._name_equivocator(liar, header.round, header.part, "contributions to")
                return
        why = f"it accuses {liar or 'nobody'} of two contributions to round {header.round}, and shows no two signatures"
        self.refuse(sender, why, PROVEN)

    # Results: their publishers sign them, and what was signed is compared where histories differ.

    def _differs(self, name: str, why: str) -> None:
        """A member has another history. What publishers told it goes first; then the coordinator hears of it."""
        if self.receipts is None or name in self._told:
            self.diverged(name, why)
        elif name not in self._apart:
            self._apart[name] = why, self.clock() + PATIENCE_S
            if name not in self._shown_to:
                self._show_receipts(name, self.receipts)

    def _tell_next(self, part: int) -> None:
        """Where one member publishes all of a round, the others hear nothing of each other: each says its h to one."""
        rounds = self.rounds
        publisher = rounds.plan.parts[part].publisher
        alone = all(one.publisher == publisher for one in rounds.parts)
        if self.receipts is None or not alone or part != rounds.parts[0].index:
            return
        others = [name for name in rounds.plan.members if name != publisher]
        if rounds.me in others:
            header = self._header(data_pb2.RESULT_HELD, part)
            header.chain = rounds.chain
            self.send(others[(others.index(rounds.me) + 1) % len(others)], header, ())

    def _show_receipts(self, to: str, receipts: Receipts) -> None:
        self._shown_to.add(to)
        self.send(to, self._header(data_pb2.RECEIPTS, 0), (receipts.written(),))

    def _compare(self, sender: str, data: bytes, receipts: Receipts) -> None:
        """Another member, whose history is another one, shows what publishers told it."""
        if sender not in self.rounds.plan.members:
            raise ValueError(f"{sender} is not a member of {self.rounds.plan.section}")
        if sender not in self._shown_to:
            self._show_receipts(sender, receipts)
        lies = list(receipts.lies(read(data)))
        for one, other in lies:
            self._show_results(one, other, receipts)
        if sender in self._apart and not lies:
            self._apart[sender] = self._apart[sender][0], self.clock()
            self.tick()

    def _show_results(self, one: Receipt, other: Receipt, receipts: Receipts) -> None:
        """A publisher has signed two results: it is named, and the others are shown."""
        plan = self.rounds.plan
        liar = plan.parts[one.part].publisher
        if not self._name_equivocator(liar, one.round, one.part, "results of"):
            return
        header = self._header(data_pb2.EQUIVOCATION, one.part, one.round)
        header.contributors.append(plan.members.index(liar))
        header.certificate = receipts.certificate_of(liar)
        for name in plan.members:
            if name not in (self.rounds.me, liar):
                self.send(name, header, (one.written(), other.written()))

    def _take_results(self, sender: str, header: data_pb2.Header, data: bytes, receipts: Receipts) -> None:
        """Another member shows that a publisher has signed two results of one part."""
        liar = self._member(header.contributors[0]) if len(header.contributors) == 1 else ""
        proven = receipts.proven(liar, data, header.certificate) if sender in self.rounds.plan.members else None
        if proven is not None:
            self._name_equivocator(liar, proven.round, proven.part, "results of")
            return
        self.refuse(sender, f"it accuses {liar or 'nobody'} of two results, and shows no two signatures", PROVEN)

    def _name_equivocator(self, liar: str, round: int, part: int, what: str) -> bool:
        """Once in a view; whether it was the first time."""
        if liar in self._equivocators or liar == self.rounds.me:
            return False
        self._equivocators.add(liar)
        why = f"it signed two different {what} part {part} of round {round}: members were sent different ones"
        self.refuse(liar, why, PROVEN)
        return True

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
                if self.receipts is not None:
                    self.receipts.staged(header.round, self.rounds.open.results[effect.part])
                header.value = float(self.auditor.wants(header.round, effect.part))
                self.send(effect.to, header, ())
                self._tell_next(effect.part)
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
                if self.receipts is not None and self.rounds.plan.parts[effect.part].publisher == self.rounds.me:
                    result = self.receipts.signed(self.rounds.applied + 1, result)
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
                self._show_proof(effect)
            elif isinstance(effect, TwoResults):
                if self.receipts is not None:
                    number = self.rounds.applied + 1
                    self._show_results(Receipt.of(number, effect.one), Receipt.of(number, effect.other), self.receipts)
            elif isinstance(effect, Refuse):
                if effect.diverged:
                    self._differs(effect.sender, effect.why)
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
