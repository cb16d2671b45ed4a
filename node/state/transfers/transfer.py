"""State on its way between two nodes: who asks for parameters of the reference, and who serves them, piece by piece."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor

from ....proto import data_pb2
from ....proto.process.progress import Meter, Tell, silent
from ...context import BULK
from ..stage_state import REFERENCE, StageState
from .transfer_plan import DIGESTS, Fetching, piece_at, pieces_of

Send = Callable[[str, data_pb2.Header, Any, int], None]
Vectors = Mapping[str, Tensor]
"""prefix -> one parameter's values in a vector of its section, always in the same order."""
TELL_WAITING_SECONDS = 1.0
MOST_WAITING = 1 << 12
"""Requests of a view that is being prepared: more than its joiners may have under way."""
LIAR = 10
"""Points of a holder that serves other bytes than the others hold."""


@dataclass
class Snapshot:
    """What a node held at a view's start, for the spares that have yet to get all of it."""

    held: Mapping[str, Vectors]
    wanted_by: set[str]


class StateServer:
    """Answers peers that ask for pieces of the reference: of a view's snapshot, or, while a view is prepared, of what
    the node holds; such requests wait until ``open`` says what that is.
    """

    def __init__(self, send: Send, snapshots: dict[int, Snapshot] | None = None) -> None:
        """``snapshots``: by view. One that nobody wants any more is taken out."""
        self.send = send
        self._snapshots = {} if snapshots is None else snapshots
        self._waiting: deque[tuple[str, data_pb2.StateRequest, bytes]] = deque()
        self._held: Mapping[str, Vectors] | None = None
        self._loading: set[str] = set()
        self._told = 0.0

    def load(self, held: Mapping[str, Vectors], names: Iterable[str]) -> None:
        """The node is about to hold this; ``ready`` says of each of these parameters when it does."""
        self._open(held, set(names))

    def ready(self, name: str) -> None:
        """A parameter is loaded, and whoever waits for it gets it."""
        self._loading.discard(name)
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            self.request(*one)

    def tick(self, now: float) -> None:
        """Tell those who wait, once a second, that what they ask for is being loaded."""
        if not self._waiting or now - self._told < TELL_WAITING_SECONDS:
            return
        self._told = now
        for sender, request in {(sender, wanted.request) for sender, wanted, _ in self._waiting}:
            coming = data_pb2.StateComing(request=request)
            self.send(sender, data_pb2.Header(kind=data_pb2.STATE_COMING, state_coming=coming), b"", BULK)

    def _must_wait(self, wanted: data_pb2.StateRequest, payload: bytes) -> bool:
        names = [wanted.name] if wanted.name else payload.decode().split("\n")
        return not wanted.snapshot and not self._loading.isdisjoint(names)

    def open(self, held: Mapping[str, Vectors]) -> None:
        """This is what the node holds, by parameter, at the round that the view begins with."""
        self._open(held, set())

    def _open(self, held: Mapping[str, Vectors], loading: set[str]) -> None:
        self._held, self._loading = held, loading
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            self.request(*one)

    def request(self, sender: str, wanted: data_pb2.StateRequest, payload: bytes) -> None:
        """``sender`` wants a piece of a parameter: its reference, and the optimiser's moments if it says so; or,
        without a name, the digests of all pieces of the parameters that the payload lists; or, without a list, nothing
        any more.

        Raises:
            ValueError: the request makes no sense.
        """
        snapshot = self._snapshots.get(wanted.snapshot)
        if wanted.snapshot and not wanted.name and not payload:
            if snapshot is not None:
                snapshot.wanted_by.discard(sender)
                if not snapshot.wanted_by:
                    del self._snapshots[wanted.snapshot]
            return
        held = self._held
        if wanted.snapshot:
            held = snapshot.held if snapshot is not None else {}
        if held is None or self._must_wait(wanted, payload):
            if len(self._waiting) == MOST_WAITING:
                raise ValueError(f"{MOST_WAITING} requests wait already")
            self._waiting.append((sender, wanted, payload))
            return
        answer = data_pb2.State(name=wanted.name, offset=wanted.offset, request=wanted.request)
        if wanted.name:
            vectors = _wanted(held, wanted.name, wanted.moments)
            piece = b"".join(_read(vectors, wanted.offset, wanted.length))
            if piece:
                answer.digest = xxhash.xxh3_64_intdigest(piece)
            self.send(sender, data_pb2.Header(kind=data_pb2.STATE, state=answer), piece, BULK)
            return
        found: list[int] = []
        for name in payload.decode().split("\n"):
            vectors = _wanted(held, name, wanted.moments)
            for one in pieces_of(name, _size(vectors)):
                digest = xxhash.xxh3_64()
                for part in _read(vectors, one.offset, one.length):
                    digest.update(part)
                found.append(digest.intdigest())
        header = data_pb2.Header(kind=data_pb2.STATE, state=answer)
        self.send(sender, header, np.array(found, "<u8").tobytes(), BULK)


def _wanted(held: Mapping[str, Vectors], name: str, moments: bool) -> list[Tensor]:
    return [values for prefix, values in held.get(name, {}).items() if moments or prefix in REFERENCE]


class StateFetch:
    """One node's fetch of parameters from peers: asks, checks, and copies into place what comes.

    ``wanted``: the vectors to fill, by parameter; ``holders``: who can serve it. Call ``work`` until ``done``.
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
        """``snapshot``: of the view with this number; 0: what the holders hold while the view is prepared.
        ``request``: the number that its requests and their answers carry. ``kept``: ``wanted`` has values of before;
        pieces that a holder has too are not fetched."""
        self.request = request
        self._send, self._refuse, self._tell = send, refuse, tell
        self._clock, self._moments, self._snapshot = clock, moments, snapshot
        self._wanted = {name: list(vectors.values()) for name, vectors in wanted.items()}
        self._holders = holders
        sizes = {name: _size(vectors) for name, vectors in self._wanted.items()}
        self._machine, self._kept = Fetching(sizes, holders, me, compares=kept), kept
        self._meter = Meter("fetching the state", "bytes", progress, clock, of=sum(sizes.values()))

    @property
    def done(self) -> bool:
        return self._machine.done

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
        """The parameters that are not whole yet."""
        return {piece.name for piece in self._machine.missing}

    @property
    def failure(self) -> str:
        """Why it cannot go on; empty while it can."""
        return self._machine.failure

    def work(self, lost: set[str]) -> None:
        """Ask for what may be asked for now. ``lost``: holders whose connection broke since the last call."""
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
        """A new view, with these in it: what was asked for is asked again."""
        self._machine.moved(present)

    def finish(self) -> None:
        """Tell the holders of a snapshot that it is here."""
        for name in self._machine.sources:
            done = data_pb2.StateRequest(snapshot=self._snapshot)
            self._send(name, data_pb2.Header(kind=data_pb2.STATE_REQUEST, state_request=done), b"", BULK)

    def answer(self, sender: str, sent: data_pb2.State, payload: npt.NDArray[np.uint8]) -> None:
        """A holder's answer. ValueError: it was not asked, or for something else."""
        now, name = self._clock(), sent.name
        if sender not in self._machine.sources or (name and name not in self._wanted):
            raise ValueError("state that it was not asked for")
        if not name:
            self._take_digests(sender, payload, now)
            return
        size = _size(self._wanted[name])
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
            _write(self._wanted[name], piece.offset, payload)
            self._meter.add(piece.length)

    def coming(self, sender: str) -> None:
        """A holder is still loading what it was asked for."""
        self._machine.coming(sender, self._clock())

    def _listed(self, source: str) -> list[str]:
        return [name for name in self._wanted if source in self._holders[name]]

    def _take_digests(self, sender: str, payload: npt.NDArray[np.uint8], now: float) -> None:
        cut = [piece for name in self._listed(sender) for piece in pieces_of(name, _size(self._wanted[name]))]
        if payload.nbytes != 8 * len(cut):
            self._machine.lacks(sender, DIGESTS, now)
            return
        said = dict(zip(cut, map(int, payload.view("<u8")), strict=True))
        self._machine.digests(sender, said, now)
        for piece in self._machine.missing.intersection(said) if self._kept else ():
            own = xxhash.xxh3_64()
            for part in _read(self._wanted[piece.name], piece.offset, piece.length):
                own.update(part)
            if own.intdigest() == said[piece]:
                self._machine.here(sender, piece, said[piece])
        self._kept = False  # what has been asked for since is on its way


def named(states: Sequence[StageState]) -> dict[str, dict[str, Tensor]]:
    """parameter -> prefix -> view, of all of these."""
    return {name: vectors for state in reversed(states) for name, vectors in state.named().items()}


def frozen(state: StageState) -> dict[str, dict[str, Tensor]]:
    """A copy in main memory of what peers may ask for: in delta mode moments are nobody's but the node's own."""
    return {
        name: {
            prefix: values.detach().to("cpu", copy=True)
            for prefix, values in vectors.items()
            if state.gradient or prefix in REFERENCE
        }
        for name, vectors in state.named().items()
    }


def _size(vectors: Sequence[Tensor]) -> int:
    return sum(values.nbytes for values in vectors)


def _ranges(vectors: Sequence[Tensor], offset: int, length: int) -> Iterator[Tensor]:
    """The parts of vectors that some bytes of them, one after the other, are; each uint8 [bytes], a view."""
    start, stop = offset, offset + length
    for values in vectors:
        size = values.nbytes
        if start < size and stop > 0:
            yield values.detach().view(-1).view(torch.uint8)[max(0, start) : min(stop, size)]
        start, stop = start - size, stop - size


def _read(vectors: Sequence[Tensor], offset: int, length: int) -> Iterator[memoryview]:
    for part in _ranges(vectors, offset, length):
        yield part.cpu().contiguous().numpy().data


def _write(vectors: Sequence[Tensor], offset: int, payload: npt.NDArray[np.uint8]) -> None:
    came, start = torch.from_numpy(payload), 0
    for part in _ranges(vectors, offset, payload.nbytes):
        part.copy_(came[start : start + part.numel()])
        start += part.numel()
