"""Transfers of state between this node and its peers: its fetches, its server, and peers that were lost meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from ....proto import data_pb2
from ....proto.errors import Parted
from ...context import NodeContext
from .fetching import StateFetch
from .parameter_bytes import Vectors
from .serving import Snapshot, StateServer

STATE_KINDS = {data_pb2.STATE_REQUEST, data_pb2.STATE_COMING, data_pb2.STATE}


class StateTraffic:
    """One node's transfers. An answer belongs to the fetch whose number it carries."""

    def __init__(self, context: NodeContext) -> None:
        """``context``: of any view; only fields that are the same in all views are used."""
        self._context = context
        self.snapshots: dict[int, Snapshot] = {}
        """View -> this node's state at its start, for spares that have not fetched all of it yet."""
        self.server = StateServer(context.send, self.snapshots)
        self._lost: set[str] = set()
        self.fetches: WeakValueDictionary[int, StateFetch] = WeakValueDictionary()
        """The fetches under way by number; weak references, so that a fetch ends with the code that waits for it."""
        self._numbers = count(1)

    def serve_anew(self) -> None:
        """Stop serving the present state; requests wait until the state that the node holds next is set."""
        self.server = StateServer(self._context.send, self.snapshots)

    def next_number(self) -> int:
        """A number for a request to a peer."""
        return next(self._numbers)

    def lose(self, peer: str) -> None:
        """The connection to a member of the view has broken."""
        self._lost.add(peer)

    def take_lost(self) -> set[str]:
        """Members whose connection has broken since the last call."""
        lost, self._lost = self._lost, set()
        return lost

    def fetch(
        self,
        wanted: Mapping[str, Vectors],
        holders: Mapping[str, Sequence[str]],
        moments: bool = False,
        snapshot: int = 0,
        kept: bool = False,
    ) -> StateFetch:
        """Begin a fetch, as `StateFetch` says."""
        context, number = self._context, self.next_number()
        found = StateFetch(
            context.send,
            context.refuse,
            context.tell,
            context.name,
            wanted,
            holders,
            moments=moments,
            snapshot=snapshot,
            progress=context.emit,
            request=number,
            kept=kept,
        )
        self.fetches[number] = found
        return found

    def finish(self, fetch: StateFetch) -> None:
        """Work until the fetch is complete. Parted: no holder answers."""
        while not fetch.done:
            fetch.work(self.take_lost())
            if fetch.failure:
                raise Parted(f"no holder of the stage's state answered: {fetch.failure}", "start the node again")
            self._context.pump(0.05)

    def handle(self, sender: str, header: data_pb2.Header, payload: npt.NDArray[np.uint8]) -> None:
        """Handle a message of one of ``STATE_KINDS``. ValueError: it is not valid."""
        if header.kind == data_pb2.STATE_REQUEST:
            self.server.request(sender, header.state_request, payload.tobytes())
            return
        coming = header.kind == data_pb2.STATE_COMING
        fetch = self.fetches.get(header.state_coming.request if coming else header.state.request)
        if fetch is None:
            return  # a slow holder's answer, after another one has served the piece
        if coming:
            fetch.coming(sender)
        else:
            fetch.answer(sender, header.state, payload)
