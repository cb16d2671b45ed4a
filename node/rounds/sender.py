"""Turns effects of the protocol into messages to one other member of the section."""

from __future__ import annotations

from ...proto import data_pb2
from .checking.audit import Auditor
from .checking.disputes import Disputes
from .protocol.headers import contribution_header, result_header
from .protocol.machine import Rounds
from .protocol.messages import AskContribution, AskResult, SendContribution, SendHeld, SendResult
from .protocol.open_round import OpenRound
from .protocol.outlet import Outlet


class RoundSender:
    """Makes a message from each such effect and gives it to the outlet. Tells auditor and disputes of staged
    results."""

    def __init__(self, rounds: Rounds, outlet: Outlet, auditor: Auditor, disputes: Disputes) -> None:
        self.rounds, self.outlet, self.auditor, self.disputes = rounds, outlet, auditor, disputes

    def send_contribution(self, effect: SendContribution) -> None:
        plan, sent = self.rounds.plan, effect.contribution
        of = None if effect.of == self.rounds.me else plan.members.index(effect.of)
        header = contribution_header(plan.section, effect.round, effect.part, effect.chain, sent, of=of)
        self.outlet.send(effect.to, header, sent.payload)

    def send_result(self, effect: SendResult) -> None:
        header = result_header(self.rounds.plan.section, effect.round, effect.chain, effect.result)
        self.outlet.send(effect.to, header, effect.result.payload)

    def send_held(self, effect: SendHeld) -> None:
        current = self._open_round()
        result = current.results[effect.part]
        self.auditor.staged(current.number, result)
        self.disputes.staged(current.number, result)
        held = data_pb2.Held(
            section=self.rounds.plan.section,
            round=current.number,
            part=effect.part,
            show=self.auditor.wants(current.number, effect.part),
        )
        self.outlet.send(effect.to, data_pb2.Header(kind=data_pb2.RESULT_HELD, held=held), ())
        self.disputes.tell_next(effect.part)

    def ask_result(self, effect: AskResult) -> None:
        number = self._open_round().number
        wanted = data_pb2.ResultWanted(section=self.rounds.plan.section, round=number, part=effect.part)
        self.outlet.send(effect.to, data_pb2.Header(kind=data_pb2.RESULT_REQUEST, result_wanted=wanted), ())

    def ask_contribution(self, effect: AskContribution) -> None:
        current = self._open_round()
        wanted = data_pb2.ContributionWanted(
            section=self.rounds.plan.section,
            round=current.number,
            part=effect.part,
            of=effect.of,
            certificate=(effect.part, effect.of) in current.unknown,
        )
        header = data_pb2.Header(kind=data_pb2.CONTRIBUTION_REQUEST, contribution_wanted=wanted)
        self.outlet.send(effect.to, header, ())

    def _open_round(self) -> OpenRound:
        if self.rounds.open is None:
            raise RuntimeError("no round is open")
        return self.rounds.open
