"""The messages of audits (audit.py): a publisher shows the terms of a sum; a wrong sum is reported and passed on."""

from __future__ import annotations

from ....proto import data_pb2
from ..protocol.messages import RoundPlan
from ..protocol.outlet import ENOUGH, Outlet
from .audit import PROVEN, Auditor, NotShown


class ShownSums:
    """Audits of one member of a section in one view, on the wire."""

    def __init__(self, auditor: Auditor, plan: RoundPlan, me: str, outlet: Outlet) -> None:
        self._auditor, self._plan, self._me, self._outlet = auditor, plan, me, outlet

    def show(self, to: str, round: int, part: int) -> None:
        """Send ``to`` the terms of this node's sum."""
        pieces = self._auditor.shown(round, part)
        if pieces and to in self._plan.members:
            sizes = [len(piece) for piece in pieces]
            body = data_pb2.Audit(section=self._plan.section, round=round, part=part, sizes=sizes)
            self._outlet.send(to, data_pb2.Header(kind=data_pb2.AUDIT, audit=body), pieces)

    def judge(self, sender: str, shown: data_pb2.Audit, payload: memoryview) -> None:
        """Check the terms of a sum, sent by its publisher, or by another member as evidence that the publisher lied."""
        plan, refuse, (round, part) = self._plan, self._outlet.refuse, (shown.round, shown.part)
        if sender not in plan.members or part >= len(plan.parts):
            refuse(sender, f"it shows a part {part} of {plan.section} that it has nothing to do with")
            return
        publisher, auditor = plan.parts[part].publisher, self._auditor
        answer = sender == publisher
        if not (auditor.answered(sender, round, part) if answer else auditor.first_time(sender, round, part)):
            return  # not asked for in this view, or evidence about a result that this node has dropped
        try:
            lie, why = auditor.check(round, part, payload, shown.sizes), "what it shows holds"
        except NotShown as problem:
            lie, why = "", str(problem)
            if answer:
                refuse(sender, f"shows of part {part} of round {round} {why}", PROVEN)
                return
        if lie and publisher != self._me:
            others = [name for name in plan.members if name not in (self._me, publisher)]
            refuse(publisher, f"part {part} of round {round}: {lie}", PROVEN if others else ENOUGH)
            if answer:
                self._hand_on(others, shown, payload)
        elif not answer:
            refuse(sender, f"it accuses {publisher} of a lie in part {part} of round {round}: {why}", PROVEN)

    def _hand_on(self, others: list[str], shown: data_pb2.Audit, payload: memoryview) -> None:
        header = data_pb2.Header(kind=data_pb2.AUDIT, audit=shown)
        for name in others:
            self._outlet.send(name, header, payload)
