"""Receipts: publishers sign their results, and members whose chains differ show each other the signatures.

If a publisher sends one result to some members and another one to the rest, their chains differ, which shows in the
next message that carries the chain h. The two members then exchange their *receipts*: the publishers' signatures of
recent results. Two different receipts of one publisher for one part of one round prove its lie; they are shown to all
members. A signature is checked when a result arrives, also from another member that hands the result on: a result
without a valid signature is refused, so each member holds proof of what it was sent.
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
"""Receipts are kept for so many rounds, within which the content of each block enters h once."""
PATIENCE_S = 5.0
"""Seconds before the coordinator is told that chains differ: time for the other member's receipts, or after a proof for
the coordinator to act on that. The coordinator then begins a new view, in which nothing of this one can be proven."""
_RECORD = struct.Struct("<QI32s64s")
PROOF_BYTES = 2 * _RECORD.size
"""Bytes of two receipts."""


class Receipt(NamedTuple):
    """A publisher's signature of one result."""

    round: int
    part: int
    said: bytes
    """Digest of the result's whole content, 32 bytes."""
    signature: bytes

    @classmethod
    def of(cls, round: int, result: Result) -> Receipt:
        return cls(round, result.part, said_in(result), result.signature)

    def written(self) -> bytes:
        return _RECORD.pack(*self)


def said_in(result: Result) -> bytes:
    """A digest of a result's whole content (of its payload, by the payload's digest)."""
    words = (what_counts(result), len(result.contributors), len(result.factors), result.sizes)
    return hashlib.sha256(repr(words).encode()).digest()


def read(data: bytes) -> Iterator[Receipt]:
    """Decode receipts. Raises ValueError for bytes of another length."""
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
        """This node's result with its signature, and in its first round of the view also with its certificate."""
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
        """Keep the receipt of a staged result, whose signature has been checked."""
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
        """(own receipt, other member's receipt) where they differ, at most one pair for each publisher.

        Raises:
            ValueError: a shown receipt has no valid signature of its publisher.
        """
        found = {self._me}  # not this node's own results
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
