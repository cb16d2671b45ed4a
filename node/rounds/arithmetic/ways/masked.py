"""Rounds whose publishers see only sums: every contribution is masked (``updates.secure``).

These are rounds in phases, of a codec whose reductions are all sums (IntSGD). A contribution is a vector of integers
plus one mask for each pair of this member and another (``compress.summable.secure.Pairwise``). The masks cancel only in
the sum over all members; so a round needs every member, and a view change, which ends a round that lacks a member,
brings new keys. After Bonawitz et al. (CCS 2017), without the secret shares for members that drop out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..... import compress
from .....compress.exchange.requests import Reduce
from .....compress.summable.secure import Pairwise
from .....compress.summable.summed import Summed
from .....job.schema import SECURE_MEMBERS
from .....proto.errors import FarflungError
from ...protocol.messages import Contribution, Decide, Part, Result
from ...protocol.payloads import Refused, contribution_of, pieces_of
from ..aggregator import Aggregator
from ..encoder import Encoder
from .phased import Phased
from .programs import Running, from_bytes, to_bytes

FIXED = 2.0**32
"""Real numbers (norms) are sent in fixed point, as integer multiples of 1 / FIXED modulo 2^64."""
LARGEST = 2.0**20
"""The largest real number that can be sent; a larger norm is sent as this, and its codec levels saturate."""


class Masked(Phased):
    """The way of masked rounds. Raises FarflungError in a group where a sum would not hide what went into it."""

    def __init__(self, encoder: Encoder, aggregator: Aggregator) -> None:
        super().__init__(encoder, aggregator)
        members = self._plan.members
        if len(members) < SECURE_MEMBERS:
            raise FarflungError(
                f"{self._plan.section} has {len(members)} member(s): with updates.secure it takes {SECURE_MEMBERS}, "
                "or the others could tell a member's update from the sum",
                "the coordinator should wait for more nodes",
            )
        assert isinstance(self.terms.codec, Summed)
        self.masks = Pairwise(self.terms.name, members)
        agreed = [(part.publisher, part.start, part.stop, part.phase) for part in self._plan.parts]
        self._view = json.dumps([self._plan.section, members, self._plan.weights, agreed]).encode()
        self._contexts: dict[int, bytes] = {}
        """The bytes from which the next contribution's masks are derived, by the index of a part's first phase."""
        self._offered_in: dict[int, int] = {}
        """The last round in which a part was offered."""

    # ---- offering --------------------------------------------------------------------------

    def offer(self, round: int, part: Part) -> Contribution:
        if round <= self._offered_in.get(part.index, -1):
            raise RuntimeError(f"round {round} of {self._plan.section}: its masks have been used")
        self._offered_in[part.index] = round
        # It contains all that members must agree on: with different plans, chains or answers the masks do not cancel,
        # so a publisher learns nothing by telling members different things.
        about = f"{round}/{part.index}/{self._section.chain}/".encode()
        self._contexts[part.index] = hashlib.sha256(about + self._view).digest()
        return super().offer(round, part)

    def advance(self, result: Result) -> Contribution:
        """This node's masked contribution to the next phase; its masks depend on the answer of this phase."""
        if result.sizes:
            first = result.part - self._plan.parts[result.part].phase
            told = hashlib.sha256(self._contexts[first])
            for piece in pieces_of(result.payload, result.sizes):
                told.update(piece)
            self._contexts[first] = told.digest()
        return super().advance(result)

    def requests(self, first: int) -> Contribution:
        asked = [run.request for run in self._programs[first]]
        words = [_words(request) for request in asked if request is not None]
        masked = iter(self.masks.masked(words, self._contexts[first]))
        blobs = [b"" if request is None else _to_bytes(next(masked), request) for request in asked]
        return contribution_of(blobs)

    # ---- deciding --------------------------------------------------------------------------

    def decide(self, round: int, decide: Decide) -> tuple[Result, list[Refused]]:
        """Sum the contributions of all members to one phase, which removes the masks. If one is missing, the part is
        void."""
        part = self._plan.parts[decide.part]
        asked = [run.request for run in self._programs.get(part.index - part.phase, [])]
        refused: list[Refused] = []
        sums: list[np.ndarray | None] = [None] * len(asked)
        counted = 0
        for index, sent in decide.contributions:
            if not sent.sizes or not asked:
                continue
            try:
                words = _read_words(sent, asked, self._plan.members[index])
            except Refused as problem:
                refused.append(problem)
                continue
            counted += 1
            sums = [
                word if total is None or word is None else total + word for total, word in zip(sums, words, strict=True)
            ]
        who = tuple(index for index, _ in decide.contributions)
        digests = tuple(sent.digest for _, sent in decide.contributions)
        if counted < len(self._plan.members):
            return Result(part.index, who, digests), refused
        blobs = [
            b"" if total is None or request is None else to_bytes(_unmasked(total, request))
            for total, request in zip(sums, asked, strict=True)
        ]
        made = contribution_of(blobs)
        return Result(part.index, who, digests, made.payload, made.sizes, made.digest), refused

    def read(
        self, payload: Sequence[bytes] | memoryview, sizes: Sequence[int], runs: Sequence[Running], member: str
    ) -> list[Tensor | None]:
        """Read a published sum. Refused if masks are still in it."""
        values, count = super().read(payload, sizes, runs, member), len(self._plan.members)
        assert isinstance(self.terms.codec, Summed)
        for value in values:
            if value is None or not value.numel():
                continue
            most = count * (LARGEST if value.is_floating_point() else self.terms.codec.top)
            if float(value.min()) < 0 or float(value.max()) > most:
                raise Refused(member, "a sum that is none: somebody's masks are still in it")
        return values

    def take(self, runs: Sequence[Running], result: Result) -> None:
        if len(result.contributors) < len(self._plan.members):
            raise Refused(self._plan.parts[result.part].publisher, "a sum without all members, which can't be unmasked")
        super().take(runs, result)


def _words(request: Reduce) -> np.ndarray:
    """The values to be summed as unsigned words in which the sum over all members fits: 64 bits for real numbers, 16
    for integers."""
    if request.op != "sum":
        raise compress.CodecError(f"masks come off in sums alone, and this codec asks for a {request.op}")
    values = request.tensor.detach().cpu().reshape(-1)
    if values.is_floating_point():
        return (values.double().clamp(0, LARGEST) * FIXED).ceil().to(torch.int64).numpy().astype("<u8")
    return values.numpy().astype("<u2")


def _to_bytes(words: np.ndarray, request: Reduce) -> bytes:
    if request.bits is None:
        return words.tobytes()
    levels = words & np.uint16((1 << request.bits) - 1)
    return to_bytes(torch.from_numpy(levels.astype(np.int32)), request.bits)


def _read_words(sent: Contribution, asked: Sequence[Reduce | None], member: str) -> list[np.ndarray | None]:
    """The words that a member sent for each program. Refused: bytes of another number or length."""
    if len(sent.sizes) != len(asked):
        raise Refused(member, f"{len(sent.sizes)} pieces where {len(asked)} parameters are exchanged")
    words: list[np.ndarray | None] = []
    try:
        for blob, request in zip(pieces_of(sent.payload, sent.sizes), asked, strict=True):
            if request is not None and request.bits is None:
                if len(blob) != 8 * request.tensor.numel():
                    raise compress.CodecError(f"{len(blob)} bytes for {request.tensor.numel()} masked numbers")
                words.append(np.frombuffer(blob, "<u8"))
                continue
            levels = from_bytes(blob, request)
            words.append(None if levels is None else levels.cpu().reshape(-1).numpy().astype("<u2"))
    except compress.CodecError as problem:
        raise Refused(member, f"bytes that are no answer to what was asked: {problem}") from None
    return words


def _unmasked(total: np.ndarray, request: Reduce) -> Tensor:
    """The sum as a tensor for the codec's program."""
    if request.bits is None:
        return torch.from_numpy(total.astype(np.int64)).double().div(FIXED).float()
    return torch.from_numpy((total & np.uint16((1 << request.bits) - 1)).astype(np.int32))
