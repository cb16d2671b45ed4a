"""Connects a section's rounds to the wire: effects of the protocol become messages, messages become its events."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt

from ...proto import data_pb2
from ...proto.messages.bodies import RoundBody
from .arithmetic.exchange import Exchange
from .arithmetic.update import Update
from .arithmetic.ways.masked import Masked
from .checking.audit import PROVEN, Auditor
from .checking.disputes import Disputes
from .checking.judge import Judge
from .checking.shown_sums import ShownSums
from .checking.signed import Signer
from .checking.spoilers import Spoilers
from .mask_keys import MaskKeys
from .offering import Offering
from .protocol.headers import received_contribution, received_result
from .protocol.machine import Rounds
from .protocol.messages import (
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
    SendContribution,
    SendHeld,
    SendResult,
    TwoResults,
    digests_of,
)
from .protocol.open_round import KEPT_ROUNDS, OpenRound
from .protocol.outlet import Outlet, blocking
from .protocol.payloads import Refused
from .sender import RoundSender

Payload = npt.NDArray[np.uint8]


class RoundLink:
    """Runs the rounds of one section: call ``begin``, then ``handle`` for each message and ``tick``, until
    ``complete``."""

    def __init__(
        self,
        exchange: Exchange,
        rounds: Rounds,
        outlet: Outlet,
        *,
        clock: Callable[[], float] = time.monotonic,
        coding: Callable[[str], AbstractContextManager[object]] = nullcontext,
        audit: float = 0.0,
        sending: Callable[[], bool] = lambda: False,
        signer: Signer | None = None,
        spoilers: Spoilers | None = None,
    ) -> None:
        """``coding(what)``: a context manager whose time counts as the codec's. ``audit``: the fraction of a
        publisher's traffic that audits may add. ``sending``: whether this node is still sending messages, which may
        contain what is asked for, so that bulk does not travel twice over a slow link. ``signer``: signs contributions
        and results where a member could send different ones to different members; None (no TLS): nothing is signed.
        ``spoilers``: names members whose gradients are not finite; None: nobody is named for that."""
        self.exchange, self.rounds, self.outlet = exchange, rounds, outlet
        self.clock, self.coding, self.sending = clock, coding, sending
        self._chains: dict[int, int] = {}
        """The chain before each of the last rounds."""
        self._checked = self._spoiled = 0
        self.auditor = Auditor(exchange, audit)
        self._sums = ShownSums(self.auditor, rounds.plan, rounds.me, outlet)
        self.disputes = Disputes(rounds, signer, outlet, clock)
        self.offering = Offering(exchange, rounds, self.disputes, coding)
        self._sender = RoundSender(rounds, outlet, self.auditor, self.disputes)
        self._spoilers = spoilers
        self._keys: MaskKeys | None = None
        if isinstance(exchange.phased, Masked):
            self._keys = MaskKeys(exchange.phased.masks, rounds, outlet)

    # ---- a round, from its beginning to its end --------------------------------------------

    @property
    def complete(self) -> bool:
        """Whether the open round may be applied. A round with results that are not valid is never complete; only a view
        change ends it."""
        current = self.rounds.open
        if current is None or not current.complete or self._spoiled == current.number:
            return False
        if not self.offering.is_done(current):
            return False
        if self._checked != current.number and not current.placed:  # else each was checked when it was placed
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
        self.outlet.refuse(problem.member, f"round {number} cannot be applied: {problem.why}", self._blocking)

    @property
    def _blocking(self) -> int:
        return blocking(len(self.rounds.plan.members))

    def introduce(self, again: bool = False) -> None:
        """If contributions are masked, send this node's mask key to the other members. ``again``: only to those whose
        keys have not arrived; they answer with theirs."""
        if self._keys is not None:
            self._keys.introduce(again)

    @property
    def unknown(self) -> Collection[str]:
        """Members whose mask keys are needed and have not arrived."""
        return self._keys.missing if self._keys is not None else ()

    def begin(self) -> None:
        """Encode this node's contributions, but those that were offered before, and send them."""
        if self.rounds.open is not None:
            self.offer(self.rounds.unoffered)
            return
        if self.offering.is_windowed:
            self._offer(self.rounds.parts)
            return
        number = self.rounds.applied + 1
        with self.coding("encode"):
            own = self.disputes.signed(self.exchange.contributions(number), number)
        self._begin(own)

    def offer(self, parts: Sequence[Part]) -> None:
        """Encode this node's contributions to some parts and send them, now or when there is room. Opens the round if
        it is not open."""
        self._offer(parts)

    def _offer(self, parts: Sequence[Part]) -> None:
        if self.rounds.open is None:
            self.offering.open(self.rounds.applied + 1)
            self._begin({})
        self.offering.ready(parts)
        self._go_on()

    def _begin(self, own: dict[int, Contribution]) -> None:
        number = self.rounds.applied + 1
        self._checked = self._spoiled = 0
        self._chains = {n: chain for n, chain in self._chains.items() if n > number - KEPT_ROUNDS}
        self._chains[number] = self.rounds.chain
        self._carry(self.rounds.begin(own, self.clock()))

    def _go_on(self) -> None:
        """Place the sums that are here, and offer the parts for which there is room."""
        current = self.rounds.open
        while current is not None and self._spoiled != current.number:
            try:
                self.offering.place_sums(current)
            except Refused as problem:
                self._spoil(current.number, problem)
                return
            found = self.offering.next(current)
            if found is None:
                return
            self._carry(self.rounds.offer(*found, self.clock()))

    def place_all(self) -> None:
        """Gradient mode, without error feedback: the complete round's sums take the gradient's place, so far as they
        are not there yet."""
        if not self.offering.is_windowed:
            current = self.complete_round
            self.exchange.put(current.number, current.results, current.contributions)

    def square(self) -> float:
        """The squared norm of the complete round's sums."""
        current = self.complete_round
        return self.exchange.square(current.number, current.results, current.contributions)

    def tick(self) -> None:
        now = self.clock()
        self._carry(self.rounds.tick(now, self.sending()))
        self._go_on()
        self.disputes.tick(now)

    def ask(self) -> None:
        """Ask for what is missing now."""
        self._carry(self.rounds.ask(self.clock()))

    def is_applied_elsewhere(self) -> None:
        """Some member has applied the open round."""
        self._carry(self.rounds.is_applied_elsewhere())

    def updates(self) -> Iterator[tuple[slice, Update]]:
        """The complete round's update D in pieces: (slice of the section, its values), each valid until the next is
        asked for."""
        current = self.complete_round
        return self.exchange.updates(current.number, current.results, current.contributions)

    @property
    def results(self) -> tuple[Result, ...]:
        """The complete round's results in part order."""
        current = self.complete_round
        return tuple(current.results[part.index] for part in self.rounds.parts)

    @property
    def is_first(self) -> bool:
        """Whether this node is the first member, which counts the section in the global norm."""
        return self.exchange.me == 0

    @property
    def absent(self) -> list[str]:
        """Members that were not counted in every part of the complete round."""
        counted = [set(result.contributors) for result in self.results]
        members = self.rounds.plan.members
        return [name for index, name in enumerate(members) if not all(index in who for who in counted)]

    @property
    def complete_round(self) -> OpenRound:
        """The open round, which is complete."""
        current = self.rounds.open
        if current is None or not self.complete:
            raise RuntimeError("the round is not complete")
        return current

    def judge(self, judge: Judge) -> None:
        """Let ``judge`` judge the complete round, if it wants to. Raises ViewEnds."""
        current = self.complete_round
        judge.round(self.exchange, current.number, self.results, current.contributions)

    def finish(self, results: Sequence[Result], block: int, content: int | None = None) -> None:
        """The update has been applied to ``g``: close the round and move the chain on. ``content``: as in
        `Section.next_chain`."""
        self.auditor.finished(self.rounds.applied + 1, results)
        for publisher, why in self.auditor.overdue(self.rounds.applied + 1):
            self.outlet.refuse(publisher, why, PROVEN)
        section = self.exchange.section
        section.chain = section.next_chain(digests_of(results), block, content)
        self.rounds.finish(section.chain)
        self.disputes.applied(self.rounds.applied)
        section.round = self.rounds.applied

    def drop(self) -> None:
        """A later view has started, so nobody asks for a message of this one: their memory is free at once, although
        this object lives until Python's collector finds it."""
        self.rounds.drop()
        self.auditor.drop()
        self.exchange.encoder.own = {}

    # ---- messages become events of the protocol --------------------------------------------

    def handle(self, sender: str, body: RoundBody, payload: Payload) -> None:
        """Handle a message of this section from another member."""
        self._carry(self._take(sender, body, payload))
        self._go_on()

    def _take(self, sender: str, body: RoundBody, payload: Payload) -> Iterable[Effect]:
        match body:
            case data_pb2.Contribution():
                return self._contribution(sender, body, payload)
            case data_pb2.Result():
                return self._result(sender, body, payload)
            case data_pb2.Held():
                return self._held(sender, body)
            case data_pb2.ResultWanted():
                return self.rounds.result_wanted(sender, body.round, body.part)
            case data_pb2.ContributionWanted():
                return self._contribution_wanted(sender, body)
            case data_pb2.Audit():
                with self.coding("audit"):
                    self._sums.judge(sender, body, payload.data)
            case data_pb2.MaskKey():
                self._key(sender, body, payload)
            case _:
                self.disputes.handle(sender, body, payload.tobytes())
        return ()

    def _contribution(self, sender: str, sent: data_pb2.Contribution, payload: Payload) -> Iterable[Effect]:
        of = self.rounds.plan.name_of(sent.of) if sent.HasField("of") else sender
        contribution = received_contribution(sent, payload.data)
        self.disputes.learn(of, contribution)
        now = self.clock()
        return self.rounds.contribution(sender, of, sent.round, sent.part, sent.chain, contribution, now=now)

    def _result(self, sender: str, sent: data_pb2.Result, payload: Payload) -> Iterable[Effect]:
        result = received_result(sent, payload.data)
        return self.rounds.result(sender, sent.round, sent.chain, result, self.clock())

    def _held(self, sender: str, held: data_pb2.Held) -> Iterable[Effect]:
        rounds = self.rounds
        effects = rounds.held(sender, held.round, held.part, self.clock())
        before = self._chains.get(held.round, held.chain)
        if held.chain and before != held.chain and sender in rounds.plan.members:
            self.disputes.differs(sender, rounds.differ(sender, held.round - 1, held.chain, before))
        if held.show:
            self._sums.show(sender, held.round, held.part)
        self.auditor.held(sender, held.round, held.part)
        return effects

    def _contribution_wanted(self, sender: str, wanted: data_pb2.ContributionWanted) -> Iterable[Effect]:
        if self.rounds.plan.name_of(wanted.of) == self.rounds.me and self.sending() and not wanted.certificate:
            return ()  # the contribution is being sent
        found = self.rounds.contribution_wanted(sender, wanted.round, wanted.part, wanted.of)
        return [self.disputes.with_certificate(one) for one in found]

    def _key(self, sender: str, said: data_pb2.MaskKey, payload: Payload) -> None:
        if self._keys is None:
            raise ValueError("contributions are not masked here")
        self._keys.take(sender, said, payload.tobytes())

    # ---- effects of the protocol become messages -------------------------------------------

    def _carry(self, effects: Iterable[Effect]) -> None:
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            waiting += self._perform(effect)

    def _perform(self, effect: Effect) -> Iterable[Effect]:
        """Performs an effect; returns the effects that follow at once."""
        match effect:
            case Decide():
                return self._decide(effect)
            case Advance():
                return self._advance(effect)
            case SendContribution():
                self._sender.send_contribution(effect)
            case SendResult():
                self._sender.send_result(effect)
            case SendHeld():
                self._sender.send_held(effect)
            case AskResult():
                self._sender.ask_result(effect)
            case AskContribution():
                self._sender.ask_contribution(effect)
            case Equivocated():
                self.disputes.show_proof(effect)
            case TwoResults():
                self.disputes.two_results(effect)
            case Refuse():
                self._refuse(effect)
            case Complete():
                pass  # ``complete`` says so
        return ()

    def _decide(self, effect: Decide) -> Iterable[Effect]:
        rounds = self.rounds
        number = rounds.applied + 1
        with self.coding("add up and encode"):
            result, refused = self.exchange.decide(number, effect)
        for problem in refused:
            points = self._blocking if rounds.plan.patient or rounds.plan.whole else 1
            self.outlet.refuse(problem.member, f"update refused: {problem.why}", points)
        spoilers = self._spoilers
        if spoilers is not None and self.exchange.terms.gradient and not rounds.plan.parts[effect.part].phase:
            for one in spoilers.found(number, effect.contributions):
                if one.among:
                    self.outlet.refuse(one.among[0], one.why, 0)
                else:
                    self.outlet.refuse(rounds.plan.members[one.member], f"update refused: {one.why}", self._blocking)
        result = self.disputes.published(number, result)
        effects = rounds.decided(effect.part, result, self.clock())
        self.auditor.staged(number, result)
        self.auditor.keep(number, result, dict(effect.contributions))
        return effects

    def _advance(self, effect: Advance) -> Iterable[Effect]:
        try:
            own = self.exchange.advance(effect.result)
        except Refused as problem:
            self._spoil(self.rounds.applied + 1, problem)
            return ()
        return self.rounds.advance(effect.result, own, self.clock())

    def _refuse(self, effect: Refuse) -> None:
        if effect.diverged:
            self.disputes.differs(effect.sender, effect.why)
        else:
            self.outlet.refuse(effect.sender, effect.why, self._blocking if effect.blocks else 1)
