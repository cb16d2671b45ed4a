"""Serves the reference to peers, piece by piece: from a snapshot, or from the state that the node holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from torch import Tensor

from ....proto import data_pb2
from ...context import BULK
from ..loss_scale import LossScale
from ..stage_state import REFERENCE
from .parameter_bytes import Vectors, byte_size, bytes_of, copied
from .transfer_plan import pieces_of

Send = Callable[[str, data_pb2.Header, Any, int], None]
TELL_WAITING_SECONDS = 1.0
MOST_WAITING = 1 << 12
"""The most waiting requests while a view is prepared: more than its joiners can have under way."""


@dataclass
class Snapshot:
    """A node's state at a view's start, for the spares that have not fetched all of it yet."""

    held: Mapping[str, Vectors]
    wanted_by: set[str]
    scale: LossScale | None = None
    """fp16: the loss scale at that time."""


class StateServer:
    """Answers peers that ask for pieces of the reference: of a view's snapshot, or, while a view is prepared, of the
    state that the node holds; requests for the latter wait until ``open`` sets it.
    """

    def __init__(self, send: Send, snapshots: dict[int, Snapshot] | None = None) -> None:
        """``snapshots``: by view. A snapshot that no spare needs any more is removed."""
        self.send = send
        self._snapshots = {} if snapshots is None else snapshots
        self._waiting: deque[tuple[str, data_pb2.StateRequest, bytes]] = deque()
        self._held: Mapping[str, Vectors] | None = None
        self._scale: LossScale | None = None
        self._loading: set[str] = set()
        self._told = 0.0

    def load(self, held: Mapping[str, Vectors], names: Iterable[str]) -> None:
        """Serve ``held``, of which the parameters ``names`` are still being loaded; call ``ready`` for each of
        these."""
        self._open(held, set(names))

    def ready(self, name: str) -> None:
        """A parameter is loaded: answer the requests that wait for it."""
        self._loading.discard(name)
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            self.request(*one)

    def tick(self, now: float) -> None:
        """Tell the peers whose requests wait, once a second, that the parameters are being loaded."""
        if not self._waiting or now - self._told < TELL_WAITING_SECONDS:
            return
        self._told = now
        for sender, request in {(sender, wanted.request) for sender, wanted, _ in self._waiting}:
            coming = data_pb2.StateComing(request=request)
            self.send(sender, data_pb2.Header(kind=data_pb2.STATE_COMING, state_coming=coming), b"", BULK)

    def _must_wait(self, wanted: data_pb2.StateRequest, payload: bytes) -> bool:
        names = [wanted.name] if wanted.name else payload.decode().split("\n")
        return not wanted.snapshot and not self._loading.isdisjoint(names)

    def open(self, held: Mapping[str, Vectors], scale: LossScale | None = None) -> None:
        """Serve ``held``, the node's vectors by parameter at the round that the view begins with. ``scale``: its loss
        scale in fp16."""
        self._scale = scale
        self._open(held, set())

    def _open(self, held: Mapping[str, Vectors], loading: set[str]) -> None:
        self._held, self._loading = held, loading
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            self.request(*one)

    def request(self, sender: str, wanted: data_pb2.StateRequest, payload: bytes) -> None:
        """Answer a request of ``sender``. With a name, it asks for a piece of that parameter's reference (and moments,
        if it says so); without a name, for the digests of all pieces of the parameters that the payload lists; without
        both, it says that the sender needs no more of the snapshot.

        Raises:
            ValueError: the request is not valid.
        """
        snapshot = self._snapshots.get(wanted.snapshot)
        if wanted.snapshot and not wanted.name and not payload:
            if snapshot is not None:
                snapshot.wanted_by.discard(sender)
                if not snapshot.wanted_by:
                    del self._snapshots[wanted.snapshot]
            return
        held, scale = self._held, self._scale
        if wanted.snapshot:
            held, scale = (snapshot.held, snapshot.scale) if snapshot is not None else ({}, None)
        if held is None or self._must_wait(wanted, payload):
            if len(self._waiting) == MOST_WAITING:
                raise ValueError(f"{MOST_WAITING} requests wait already")
            self._waiting.append((sender, wanted, payload))
            return
        answer = data_pb2.State(name=wanted.name, offset=wanted.offset, request=wanted.request)
        if scale is not None:
            answer.loss_scale, answer.good_steps, answer.dropped_steps = scale.scale, scale.good, scale.dropped
        if wanted.name:
            vectors = _wanted(held, wanted.name, wanted.moments)
            piece = copied(vectors, wanted.offset, wanted.length)
            if piece:
                answer.digest = xxhash.xxh3_64_intdigest(piece)
            self.send(sender, data_pb2.Header(kind=data_pb2.STATE, state=answer), piece, BULK)
            return
        found: list[int] = []
        for name in payload.decode().split("\n"):
            vectors = _wanted(held, name, wanted.moments)
            for one in pieces_of(name, byte_size(vectors)):
                digest = xxhash.xxh3_64()
                for part in bytes_of(vectors, one.offset, one.length):
                    digest.update(part)
                found.append(digest.intdigest())
        header = data_pb2.Header(kind=data_pb2.STATE, state=answer)
        self.send(sender, header, np.array(found, "<u8").tobytes(), BULK)


def _wanted(held: Mapping[str, Vectors], name: str, moments: bool) -> list[Tensor]:
    return [values for prefix, values in held.get(name, {}).items() if moments or prefix in REFERENCE]
