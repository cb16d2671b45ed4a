"""State on its way between this node and its peers: what it fetches, what it serves, and who was lost meanwhile."""

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
    """One node's. Answers find their fetch by the number that its requests carry."""

    def __init__(self, context: NodeContext) -> None:
        """``context``: of any view; nothing that views change is used."""
        self._context = context
        self.snapshots: dict[int, Snapshot] = {}
        """What this node held when views began, for spares that have not got all of it yet."""
        self.server = StateServer(context.send, self.snapshots)
        self._lost: set[str] = set()
        self.fetches: WeakValueDictionary[int, StateFetch] = WeakValueDictionary()
        """Nobody but those who wait for them keeps them alive."""
        self._numbers = count(1)

    def serve_anew(self) -> None:
        """Let go of what was served; requests wait until it is known what this node holds now."""
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
        """Work until everything is here. Parted: none of the holders answers."""
        while not fetch.done:
            fetch.work(self.take_lost())
            if fetch.failure:
                raise Parted(f"no holder of the stage's state answered: {fetch.failure}", "start the node again")
            self._context.pump(0.05)

    def handle(self, sender: str, header: data_pb2.Header, payload: npt.NDArray[np.uint8]) -> None:
        """A message of one of ``STATE_KINDS``. ValueError: it makes no sense."""
        if header.kind == data_pb2.STATE_REQUEST:
            self.server.request(sender, header.state_request, payload.tobytes())
            return
        coming = header.kind == data_pb2.STATE_COMING
        fetch = self.fetches.get(header.state_coming.request if coming else header.state.request)
        if fetch is None:
            return  # what a slow holder sends when another has served it
        if coming:
            fetch.coming(sender)
        else:
            fetch.answer(sender, header.state, payload)
