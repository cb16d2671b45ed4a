"""Fetches parameters of the reference from the peers that hold them, piece by piece, and checks the pieces."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ....proto import data_pb2
from ....proto.process.progress import Meter, Tell, silent
from ....proto.words.loss_scale import is_scale
from ...context import BULK
from ..loss_scale import LossScale
from .parameter_bytes import Vectors, byte_size, bytes_of, write_bytes
from .transfer_plan import DIGESTS, Fetching, piece_at, pieces_of

Send = Callable[[str, data_pb2.Header, Any, int], None]
LIAR = 10
"""Points for a holder that serves other bytes than the other holders have."""


class StateFetch:
    """One node's fetch of parameters from peers: asks for pieces, checks them, and copies them into place.

    ``wanted``: parameter -> the vectors to fill; ``holders``: parameter -> the peers that hold it. Call ``work`` until
    ``done``.
    """

    def __init__(
        self,
        send: Send,
        refuse: Callable[[str, str, int], None],
        tell: Callable[[str], None],
        me: str,
        wanted: Mapping[str, Vectors],
        holders: Mapping[str, Sequence[str]],
        *,
        moments: bool,
        snapshot: int = 0,
        progress: Tell = silent,
        clock: Callable[[], float] = time.monotonic,
        request: int = 0,
        kept: bool = False,
    ) -> None:
        """``snapshot``: fetch the snapshot of the view with this number; 0: the holders' state while a view is
        prepared.
        ``request``: the number that the requests and their answers carry. ``kept``: ``wanted`` has earlier values;
        pieces that are equal at a holder are not fetched."""
        self.request = request
        self._scales: dict[str, LossScale] = {}
        """fp16: holder -> the loss scale that it says."""
        self._send, self._refuse, self._tell = send, refuse, tell
        self._clock, self._moments, self._snapshot = clock, moments, snapshot
        self._wanted = {name: list(vectors.values()) for name, vectors in wanted.items()}
        self._holders = holders
        sizes = {name: byte_size(vectors) for name, vectors in self._wanted.items()}
        self._machine, self._kept = Fetching(sizes, holders, me, compares=kept), kept
        self._meter = Meter("fetching the state", "bytes", progress, clock, of=sum(sizes.values()))

    @property
    def done(self) -> bool:
        return self._machine.done

    @property
    def loss_scale(self) -> LossScale | None:
        """fp16: the loss scale that most of the holders say that were asked; None: none said one."""
        return max(self._scales.values(), key=Counter(self._scales.values()).__getitem__, default=None)

    @property
    def size(self) -> int:
        """Bytes of all that is wanted."""
        return self._meter.of

    @property
    def fetched(self) -> int:
        """Bytes that have come."""
        return self._meter.done

    @property
    def missing(self) -> set[str]:
        """The parameters that are not complete yet."""
        return {piece.name for piece in self._machine.missing}

    @property
    def failure(self) -> str:
        """Why the fetch cannot go on; empty while it can."""
        return self._machine.failure

    def work(self, lost: set[str]) -> None:
        """Send the requests that are due now. ``lost``: holders whose connection broke since the last call."""
        now = self._clock()
        for name in lost:
            self._machine.lost(name, "broke its connection", now)
        for source, piece in self._machine.ask(now):
            wanted = data_pb2.StateRequest(
                name=piece.name,
                offset=piece.offset,
                length=piece.length,
                moments=self._moments,
                snapshot=self._snapshot,
                request=self.request,
            )
            header = data_pb2.Header(kind=data_pb2.STATE_REQUEST, state_request=wanted)
            self._send(source, header, b"" if piece.name else "\n".join(self._listed(source)).encode(), BULK)
        for name, why in self._machine.troubles:
            here, of = self._machine.reached
            self._tell(f"{name} {why}: the state comes from others, {here / 1e6:.3g} of {of / 1e6:.3g} MB are here")
        self._machine.troubles.clear()
        for source, piece in self._machine.liars:
            why = f"other values of {piece.name} than the other holders have: the state comes from somebody else"
            self._refuse(source, why, LIAR)
        self._machine.liars.clear()

    def moved(self, present: Collection[str]) -> None:
        """A new view with the members ``present``: pieces that were under way are asked for again."""
        self._machine.moved(present)

    def finish(self) -> None:
        """Tell the holders of a snapshot that it is here."""
        for name in self._machine.sources:
            done = data_pb2.StateRequest(snapshot=self._snapshot)
            self._send(name, data_pb2.Header(kind=data_pb2.STATE_REQUEST, state_request=done), b"", BULK)

    def answer(self, sender: str, sent: data_pb2.State, payload: npt.NDArray[np.uint8]) -> None:
        """Take a holder's answer. ValueError: nothing, or something else, was asked of it."""
        now, name = self._clock(), sent.name
        if sender not in self._machine.sources or (name and name not in self._wanted):
            raise ValueError("state that it was not asked for")
        if is_scale(sent.loss_scale):
            self._scales[sender] = LossScale(sent.loss_scale, sent.good_steps, sent.dropped_steps)
        if not name:
            self._take_digests(sender, payload, now)
            return
        size = byte_size(self._wanted[name])
        piece = piece_at(name, size, sent.offset)
        if piece is None:
            raise ValueError(f"a piece of {name} at {sent.offset}, where none begins")
        if not payload.nbytes:
            self._machine.lacks(sender, piece, now)
            return
        digest = xxhash.xxh3_64_intdigest(payload.data)
        if payload.nbytes != piece.length or not sent.HasField("digest") or sent.digest != digest:
            self._machine.spoiled(sender, piece, now)
        elif self._machine.came(sender, piece, digest, now):
            write_bytes(self._wanted[name], piece.offset, payload)
            self._meter.add(piece.length)

    def coming(self, sender: str) -> None:
        """A holder says that it is still loading the requested parameter."""
        self._machine.coming(sender, self._clock())

    def _listed(self, source: str) -> list[str]:
        return [name for name in self._wanted if source in self._holders[name]]

    def _take_digests(self, sender: str, payload: npt.NDArray[np.uint8], now: float) -> None:
        cut = [piece for name in self._listed(sender) for piece in pieces_of(name, byte_size(self._wanted[name]))]
        if payload.nbytes != 8 * len(cut):
            self._machine.lacks(sender, DIGESTS, now)
            return
        said = dict(zip(cut, map(int, payload.view("<u8")), strict=True))
        self._machine.digests(sender, said, now)
        for piece in self._machine.missing.intersection(said) if self._kept else ():
            own = xxhash.xxh3_64()
            for part in bytes_of(self._wanted[piece.name], piece.offset, piece.length):
                own.update(part)
            if own.intdigest() == said[piece]:
                self._machine.here(sender, piece, said[piece])
        self._kept = False  # pieces asked for from now on are fetched
