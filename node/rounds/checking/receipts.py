"""Who published what: publishers sign their results, and members whose histories differ show each other the signatures.

A publisher that sends one result to some members and another to the rest parts their histories, which shows in the next
message that carries h. Then the two members exchange their *receipts*: what publishers have signed of each result of
late. Two receipts of one publisher for one part of one round that differ prove that it said two things; they are shown
to all. A signature is looked at when a result comes, so that each member holds one that proves what it was told, also
where another member has handed the result on: who hands on what the publisher has not signed is refused.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from ..protocol.messages import Result, RoundPlan, what_counts
from .signed import Signer

REMEMBERED = 64
"""Rounds whose receipts are kept: the content of each block goes into h as often."""
PATIENCE_S = 5.0
"""Seconds for the other member's receipts, and after a proof for the coordinator to act on it, before it hears that
histories differ: the view that it begins then ends what could still be shown."""
_RECORD = struct.Struct("<QI32s64s")
PROOF_BYTES = 2 * _RECORD.size
"""Bytes of two receipts."""


class Receipt(NamedTuple):
    """A publisher's signature of one result."""

    round: int
    part: int
    said: bytes
    """Digest of all that the result says, 32 bytes."""
    signature: bytes

    @classmethod
    def of(cls, round: int, result: Result) -> Receipt:
        return cls(round, result.part, said_in(result), result.signature)

    def written(self) -> bytes:
        return _RECORD.pack(*self)


def said_in(result: Result) -> bytes:
    """A digest of everything that a result says; its payload is in there by its own digest."""
    words = (what_counts(result), len(result.contributors), len(result.factors), result.sizes)
    return hashlib.sha256(repr(words).encode()).digest()


def read(data: bytes) -> Iterator[Receipt]:
    """Receipts as they came. Raises ValueError for bytes that are none."""
    if len(data) % _RECORD.size:
        raise ValueError(f"{len(data)} bytes are no receipts")
    for fields in _RECORD.iter_unpack(data):
        yield Receipt(*fields)


class Receipts:
    """One member's receipts of a section in a view."""

    def __init__(self, signer: Signer, plan: RoundPlan, me: str) -> None:
        self._signer, self._plan, self._me = signer, plan, me
        self._held: dict[tuple[int, int], Receipt] = {}
        self._first: int | None = None
        """The round in which this node first published in this view."""

    # ---- what is published and what comes --------------------------------------------------

    def signed(self, round: int, result: Result) -> Result:
        """This node's result with its signature; with its certificate, until everybody has applied a round with it."""
        if self._first is None:
            self._first = round
        signature = self._signer.attestation(self._me, self._plan.section, round, result.part, said_in(result))
        certificate = self._signer.certificate if round == self._first else b""
        signed = replace(result, signature=signature, certificate=certificate)
        self.staged(round, signed)
        return signed

    def attests(self, round: int, result: Result) -> bool:
        """Whether the part's publisher has signed this result."""
        return self._is_signed(Receipt.of(round, result), result.certificate)

    def staged(self, round: int, result: Result) -> None:
        """This node holds a result whose signature it has looked at."""
        if result.signature:
            self._held.setdefault((round, result.part), Receipt.of(round, result))

    def applied(self, round: int) -> None:
        """A round was applied: old receipts are dropped."""
        self._held = {key: one for key, one in self._held.items() if key[0] > round - REMEMBERED}

    # ---- where histories differ ------------------------------------------------------------

    def written(self) -> bytes:
        """All receipts of this node, as bytes."""
        return b"".join(self._held[key].written() for key in sorted(self._held))

    def lies(self, theirs: Iterable[Receipt]) -> Iterator[tuple[Receipt, Receipt]]:
        """Where another member was told something else than this node: both receipts, the first one of each publisher.

        Raises:
            ValueError: it shows what its publisher has not signed.
        """
        found = {self._me}  # what others say of it, its own key would have signed
        for other in theirs:
            own = self._held.get((other.round, other.part))
            if own is None or own.said == other.said or self._plan.parts[other.part].publisher in found:
                continue
            if not self._is_signed(other):
                raise ValueError(f"a receipt that {self._plan.parts[other.part].publisher} has not signed")
            found.add(self._plan.parts[other.part].publisher)
            yield own, other

    def proven(self, liar: str, data: bytes, certificate: bytes) -> Receipt | None:
        """One of two receipts that prove that ``liar`` published two results; None: they prove nothing."""
        if len(data) != PROOF_BYTES:
            return None
        one, other = read(data)
        if (one.round, one.part) != (other.round, other.part) or one.said == other.said:
            return None
        if one.part >= len(self._plan.parts) or self._plan.parts[one.part].publisher != liar:
            return None
        return one if all(self._is_signed(receipt, certificate) for receipt in (one, other)) else None

    def certificate_of(self, member: str) -> bytes:
        return self._signer.known_certificate(member)

    def _is_signed(self, receipt: Receipt, certificate: bytes = b"") -> bool:
        if receipt.part >= len(self._plan.parts):
            return False
        publisher, (round, part, said, signature) = self._plan.parts[receipt.part].publisher, receipt
        return self._signer.attests(
            publisher, self._plan.section, round, part, said, signature=signature, certificate=certificate
        )
