"""Equivocation: members that sign two different contributions or results, and members whose chain differs.

A member that finds two signatures of one signer for the same part with different content reports the signer, and shows
both signatures to the other members, who check them too (signed.py, receipts.py). Without signers nothing can be
proven.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ....proto import data_pb2
from ..protocol.machine import Rounds
from ..protocol.messages import Contribution, Equivocated, Result, SendContribution, TwoResults
from ..protocol.outlet import Outlet
from .audit import PROVEN
from .receipts import PATIENCE_S, Receipt, Receipts, read
from .signed import Signer


class Disputes:
    """The disputes that one member takes part in, in one view of a section."""

    def __init__(self, rounds: Rounds, signer: Signer | None, outlet: Outlet, clock: Callable[[], float]) -> None:
        plan = rounds.plan
        self._rounds, self._outlet, self._clock = rounds, outlet, clock
        self.signer = signer if plan.pattern == "all_to_all" and len(plan.members) > 2 else None
        """Signs this node's contributions, in patterns in which a member could send different ones to different
        members."""
        if self.signer is not None:
            rounds.vouch = self._vouches
        self.receipts: Receipts | None = None
        """The receipts of publishers' results, if there are more than two members."""
        if signer is not None and len(plan.members) > 2:
            self.receipts = Receipts(signer, plan, rounds.me)
            rounds.attest = self.receipts.attests
        self._first_signed = 0
        """The round in which this node first contributed in this view; 0: not yet."""
        self._apart: dict[str, tuple[str, float]] = {}
        """Member whose chain differs -> (sentence for the coordinator, time at which to send it)."""
        self._told: set[str] = set()
        """Members whose chain differs and was reported to the coordinator."""
        self._shown_to: set[str] = set()
        """Members that have this node's receipts."""
        self._equivocators: set[str] = set()

    def tick(self, now: float) -> None:
        """Report differing chains that no proof has explained to the coordinator."""
        for name in [name for name, (_, at) in self._apart.items() if now >= at]:
            self._told.add(name)
            self._outlet.diverged(name, self._apart.pop(name)[0])

    def handle(self, sender: str, shown: data_pb2.Equivocation | data_pb2.Receipts, data: bytes) -> None:
        """Another member shows signatures of members or publishers. ValueError: the message is not valid."""
        if isinstance(shown, data_pb2.Receipts):
            self._compare(sender, data, self._signed_receipts())
        elif shown.sizes:
            self._take_proof(sender, shown, data)
        else:
            self._take_results(sender, shown, data, self._signed_receipts())

    def _signed_receipts(self) -> Receipts:
        if self.receipts is None:
            raise ValueError("nobody signs results here")
        return self.receipts

    def signed(self, own: dict[int, Contribution], number: int) -> dict[int, Contribution]:
        """This node's contributions to a round, signed where members sign them."""
        if self.signer is None:
            return own
        section, me, signer = self._rounds.plan.section, self._rounds.me, self.signer
        own = {part: signer.signed(me, section, number, part, sent) for part, sent in own.items()}
        self._first_signed = self._first_signed or (number if own else 0)
        if number == self._first_signed:
            return own
        return {part: replace(sent, certificate=b"") for part, sent in own.items()}  # the others have it, or ask for it

    def learn(self, of: str, sent: Contribution) -> None:
        """A contribution of ``of`` has come, perhaps with its certificate."""
        if self.signer is not None and of and sent.certificate:
            self.signer.learn(of, sent.certificate)

    def with_certificate(self, answer: SendContribution) -> SendContribution:
        """The answer to a request for a contribution, with its member's certificate, which the asker may lack."""
        if self.signer is None:
            return answer
        own = answer.of == self._rounds.me
        certificate = self.signer.certificate if own else self.signer.known_certificate(answer.of)
        return replace(answer, contribution=replace(answer.contribution, certificate=certificate))

    def published(self, round: int, result: Result) -> Result:
        """This node's own result of a part, signed where publishers sign."""
        mine = self._rounds.plan.parts[result.part].publisher == self._rounds.me
        return self.receipts.signed(round, result) if self.receipts is not None and mine else result

    def staged(self, round: int, result: Result) -> None:
        """A result is staged here."""
        if self.receipts is not None:
            self.receipts.staged(round, result)

    def applied(self, round: int) -> None:
        """A round is applied here."""
        if self.receipts is not None:
            self.receipts.applied(round)

    def two_results(self, found: TwoResults) -> None:
        """A publisher has sent two results of a part."""
        if self.receipts is not None:
            number = self._rounds.applied + 1
            self._show_results(Receipt.of(number, found.one), Receipt.of(number, found.other), self.receipts)

    def _show(self, liar: str, shown: data_pb2.Equivocation, payload: Sequence[bytes]) -> None:
        """Send the two things that ``liar`` signed to all others."""
        header = data_pb2.Header(kind=data_pb2.EQUIVOCATION, equivocation=shown)
        for name in self._rounds.plan.members:
            if name not in (self._rounds.me, liar):
                self._outlet.send(name, header, payload)

    # ---- contributions: their members sign them -----------------------------------------------

    def _vouches(self, index: int, round: int, part: int, sent: Contribution) -> bool | None:
        assert self.signer is not None
        plan = self._rounds.plan
        return self.signer.vouches(plan.members[index], plan.section, round, part, sent)

    def show_proof(self, found: Equivocated) -> None:
        """A member has signed two contributions to one part: report it, and show the signatures to the others."""
        liar, round = self._rounds.plan.members[found.of], self._rounds.applied + 1
        if not self._name_equivocator(liar, round, found.part, "contributions to"):
            return
        both = (found.one, found.other)
        assert self.signer is not None, "both signatures were looked at"
        shown = data_pb2.Equivocation(
            section=self._rounds.plan.section,
            round=round,
            part=found.part,
            of=found.of,
            digests=[sent.digest for sent in both],
            sizes=[len(sent.signature) for sent in both],
            certificate=self.signer.known_certificate(liar),
        )
        self._show(liar, shown, tuple(sent.signature for sent in both))

    def _take_proof(self, sender: str, shown: data_pb2.Equivocation, both: bytes) -> None:
        """Another member shows that a member signed two contributions to one part; ``both``: the two signatures."""
        if self.signer is None:
            raise ValueError("nobody signs contributions here")
        liar, ends = self._accused(shown), list(shown.sizes)
        ok = sender in self._rounds.plan.members and liar and len(ends) == 2 and sum(ends) == len(both) < 1024
        if ok and len(shown.digests) == 2 and shown.digests[0] != shown.digests[1]:
            signatures = (both[: ends[0]], both[ends[0] :])
            contributions = [
                Contribution(b"", (), digest, signature, shown.certificate)
                for digest, signature in zip(shown.digests, signatures, strict=True)
            ]
            if all(self._vouches(shown.of, shown.round, shown.part, one) for one in contributions):
                self._name_equivocator(liar, shown.round, shown.part, "contributions to")
                return
        why = f"it accuses {liar or 'nobody'} of two contributions to round {shown.round}, and shows no two signatures"
        self._outlet.refuse(sender, why, PROVEN)

    def _accused(self, shown: data_pb2.Equivocation) -> str:
        """The name of the accused member; empty if the message names none."""
        members = self._rounds.plan.members
        return members[shown.of] if shown.HasField("of") and shown.of < len(members) else ""

    # ---- results: what their publishers signed is compared where histories differ -----------

    def differs(self, name: str, why: str) -> None:
        """A member's chain differs. Send it this node's receipts; if no proof results, `tick` tells the coordinator."""
        if self.receipts is None or name in self._told:
            self._outlet.diverged(name, why)
        elif name not in self._apart:
            self._apart[name] = why, self._clock() + PATIENCE_S
            if name not in self._shown_to:
                self._show_receipts(name, self.receipts)

    def tell_next(self, part: int) -> None:
        """If one member publishes all parts of a round, the others exchange no messages; so each sends its chain to one
        other member."""
        rounds = self._rounds
        publisher = rounds.plan.parts[part].publisher
        alone = all(one.publisher == publisher for one in rounds.parts)
        if self.receipts is None or not alone or part != rounds.parts[0].index:
            return
        others = [name for name in rounds.plan.members if name != publisher]
        if rounds.me in others:
            held = data_pb2.Held(section=rounds.plan.section, round=rounds.applied + 1, part=part, chain=rounds.chain)
            header = data_pb2.Header(kind=data_pb2.RESULT_HELD, held=held)
            self._outlet.send(others[(others.index(rounds.me) + 1) % len(others)], header, ())

    def _show_receipts(self, to: str, receipts: Receipts) -> None:
        self._shown_to.add(to)
        body = data_pb2.Receipts(section=self._rounds.plan.section, round=self._rounds.applied + 1)
        self._outlet.send(to, data_pb2.Header(kind=data_pb2.RECEIPTS, receipts=body), (receipts.written(),))

    def _compare(self, sender: str, data: bytes, receipts: Receipts) -> None:
        """Another member, whose chain differs, shows its receipts of publishers' results: compare them with ours."""
        if sender not in self._rounds.plan.members:
            raise ValueError(f"{sender} is not a member of {self._rounds.plan.section}")
        if sender not in self._shown_to:
            self._show_receipts(sender, receipts)
        lies = list(receipts.lies(read(data)))
        for one, other in lies:
            self._show_results(one, other, receipts)
        if sender in self._apart and not lies:
            self._apart[sender] = self._apart[sender][0], self._clock()
            self.tick(self._clock())

    def _show_results(self, one: Receipt, other: Receipt, receipts: Receipts) -> None:
        """A publisher has signed two results of one part: report it, and show both receipts to the others."""
        plan = self._rounds.plan
        liar = plan.parts[one.part].publisher
        if not self._name_equivocator(liar, one.round, one.part, "results of"):
            return
        shown = data_pb2.Equivocation(
            section=plan.section,
            round=one.round,
            part=one.part,
            of=plan.members.index(liar),
            certificate=receipts.certificate_of(liar),
        )
        self._show(liar, shown, (one.written(), other.written()))

    def _take_results(self, sender: str, shown: data_pb2.Equivocation, data: bytes, receipts: Receipts) -> None:
        """Another member shows that a publisher has signed two results of one part."""
        liar = self._accused(shown)
        proven = receipts.proven(liar, data, shown.certificate) if sender in self._rounds.plan.members else None
        if proven is not None:
            self._name_equivocator(liar, proven.round, proven.part, "results of")
            return
        why = f"it accuses {liar or 'nobody'} of two results, and shows no two signatures"
        self._outlet.refuse(sender, why, PROVEN)

    def _name_equivocator(self, liar: str, round: int, part: int, what: str) -> bool:
        """Report a member once per view. Returns whether this was the first time."""
        if liar in self._equivocators or liar == self._rounds.me:
            return False
        self._equivocators.add(liar)
        why = f"it signed two different {what} part {part} of round {round}: members were sent different ones"
        self._outlet.refuse(liar, why, PROVEN)
        return True
