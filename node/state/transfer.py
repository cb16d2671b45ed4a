"""How a node that takes up a stage gets its reference: from itself, from peers, from a checkpoint, or from the seed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor

from ...proto import control_pb2, data_pb2
from ...proto.errors import FarflungError, Parted
from ...proto.progress import Meter, Tell, silent
from ...scheduler.plans import Plan
from ..ipc.arena import release_freed_memory
from ..models.pretrained import Weights, initial_weights, weights_of
from .checkpoint import Checkpoint, load_checkpoint
from .section import Section
from .stage_state import REFERENCE, StageState, base_of, share_of
from .transfer_plan import DIGESTS, Fetching, piece_at, pieces_of

if TYPE_CHECKING:
    from ..training.trainer import Trainer

Send = Callable[[str, data_pb2.Header, Any, int], None]
Vectors = Mapping[str, Tensor]
"""prefix -> one parameter's values in a vector of its section, always in the same order."""
BULK = 2
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
        self._waiting: deque[tuple[str, data_pb2.Header, bytes]] = deque()
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
        for sender, request in {(sender, header.request) for sender, header, _ in self._waiting}:
            coming = data_pb2.Header(kind=data_pb2.STATE_COMING, request=request)
            self.send(sender, coming, b"", BULK)

    def _must_wait(self, header: data_pb2.Header, payload: bytes) -> bool:
        names = [header.text] if header.text else payload.decode().split("\n")
        return not header.step and not self._loading.isdisjoint(names)

    def open(self, held: Mapping[str, Vectors]) -> None:
        """This is what the node holds, by parameter, at the round that the view begins with."""
        self._open(held, set())

    def _open(self, held: Mapping[str, Vectors], loading: set[str]) -> None:
        self._held, self._loading = held, loading
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            self.request(*one)

    def request(self, sender: str, header: data_pb2.Header, payload: bytes) -> None:
        """``sender`` wants a piece of a parameter: its reference, and the optimiser's moments if it says so; or,
        without a name, the digests of all pieces of the parameters that the payload lists; or, without a list, nothing
        any more.

        Raises:
            ValueError: the request makes no sense.
        """
        snapshot = self._snapshots.get(header.step)
        if header.step and not header.text and not payload:
            if snapshot is not None:
                snapshot.wanted_by.discard(sender)
                if not snapshot.wanted_by:
                    del self._snapshots[header.step]
            return
        held = self._held
        if header.step:
            held = snapshot.held if snapshot is not None else {}
        if held is None or self._must_wait(header, payload):
            if len(self._waiting) == MOST_WAITING:
                raise ValueError(f"{MOST_WAITING} requests wait already")
            self._waiting.append((sender, header, payload))
            return
        answer = data_pb2.Header(kind=data_pb2.STATE, text=header.text, offset=header.offset, request=header.request)
        if header.text:
            vectors = _wanted(held, header.text, header.moments)
            piece = b"".join(_read(vectors, header.offset, header.length))
            if piece:
                answer.digests.append(xxhash.xxh3_64_intdigest(piece))
            self.send(sender, answer, piece, BULK)
            return
        found: list[int] = []
        for name in payload.decode().split("\n"):
            vectors = _wanted(held, name, header.moments)
            for one in pieces_of(name, _size(vectors)):
                digest = xxhash.xxh3_64()
                for part in _read(vectors, one.offset, one.length):
                    digest.update(part)
                found.append(digest.intdigest())
        self.send(sender, answer, np.array(found, "<u8").tobytes(), BULK)


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
            header = data_pb2.Header(kind=data_pb2.STATE_REQUEST, text=piece.name, moments=self._moments)
            header.offset, header.length, header.step = piece.offset, piece.length, self._snapshot
            header.request = self.request
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
            self._send(name, data_pb2.Header(kind=data_pb2.STATE_REQUEST, step=self._snapshot), b"", BULK)

    def answer(self, sender: str, header: data_pb2.Header, payload: npt.NDArray[np.uint8]) -> None:
        """A holder's answer. ValueError: it was not asked, or for something else."""
        now, name = self._clock(), header.text
        if sender not in self._machine.sources or (name and name not in self._wanted):
            raise ValueError("state that it was not asked for")
        if not name:
            self._take_digests(sender, payload, now)
            return
        size = _size(self._wanted[name])
        piece = piece_at(name, size, header.offset)
        if piece is None:
            raise ValueError(f"a piece of {name} at {header.offset}, where none begins")
        if not payload.nbytes:
            self._machine.lacks(sender, piece, now)
            return
        digest = xxhash.xxh3_64_intdigest(payload.data)
        if payload.nbytes != piece.length or list(header.digests) != [digest]:
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


def load_state(trainer: Trainer, new: StageState, held: Sequence[StageState], view: control_pb2.View) -> None:
    """Fill ``new`` with the reference at the view's start, and set x := g; where this node held a parameter in another
    place, x, error feedback and (in delta mode) moments stay what they were.

    Raises:
        FarflungError: a checkpoint or the initial weights cannot be read, or no holder answers.
    """
    names = [name for section in new.sections.values() for name in section.layout.names]
    with torch.no_grad():
        if view.checkpoint > 0:
            _from_checkpoint(trainer, new, view, names)
        elif view.checkpoint == 0 and trainer.own is not None and trainer.first != trainer.name:
            # Models that members bring begin with other weights in each: everybody takes those of the first.
            _fetch(trainer, new, names, lambda name: [trainer.first])
        elif view.checkpoint == 0 and trainer.job.model.pretrained is not None and not trainer.definition.frozen:
            _from_folder(trainer, new, view, names)
        elif view.checkpoint == 0:  # adapters too: no folder has any
            for name, prefix, values in new.tensors():
                if not prefix:
                    values.copy_(initial_weights(trainer.definition, [name], trainer.job.run.seed)[name])
            trainer.definition.forget()
            release_freed_memory()
        else:
            _from_holders(trainer, new, held, view)
            new.adopt()
        for section in new.sections.values():
            section.adopt()
            section.begins()
        if view.checkpoint < 0:
            _carry(trainer, new, held, view)


@dataclass
class Loading:
    """A load of a checkpoint's step (0: of the weights to begin with) that is under way, or was broken off by a view
    change: ``loaded`` parameters of ``state`` are whole."""

    checkpoint: int
    state: StageState
    loaded: set[str]


def _from_checkpoint(trainer: Trainer, new: StageState, view: control_pb2.View, names: Sequence[str]) -> None:
    checkpoint = Checkpoint(view.checkpoint, trainer.load)
    _once_a_stage(trainer, new, view, names, lambda name: load_checkpoint(new, checkpoint, [name]), new.moments_travel)
    load_checkpoint(new, checkpoint, [])


def _from_folder(trainer: Trainer, new: StageState, view: control_pb2.View, names: Sequence[str]) -> None:
    """The weights of the job's model folder."""
    places = {name: vectors[""] for name, vectors in new.named().items()}
    weights: Weights | None = None

    def load(name: str) -> None:
        nonlocal weights
        if weights is None:  # who takes everything from another reads nothing of the folder
            weights = weights_of(trainer.job, trainer.facts, trainer.load)
        places[name].copy_(initial_weights(trainer.definition, [name], trainer.job.run.seed, weights)[name])

    _once_a_stage(trainer, new, view, names, load, moments=False)
    trainer.definition.forget()
    release_freed_memory()


def _once_a_stage(
    trainer: Trainer,
    new: StageState,
    view: control_pb2.View,
    names: Sequence[str],
    load: Callable[[str], None],
    moments: bool,
) -> None:
    """Load these parameters: the node that keeps a stage's file from the coordinator, the others of its group from it.

    So the coordinator sends each stage once. Parameters go on as they come: nobody waits for the whole of a stage. What
    is here of a load that a view change broke off is not loaded again.
    """
    plan = Plan.from_json(view.plan)
    before, loaded = trainer.loading, set[str]()
    if before is not None:
        loaded = before.loaded.intersection(names)
        if before.state is not new:
            _copy(before.state, new, loaded)
    trainer.loading = Loading(view.checkpoint, new, loaded)
    from_whom = {name: plan.keeper(_stage_of(plan, trainer.definition.layer_of(name))) for name in names}
    missing = [name for name in names if name not in loaded]
    others = [name for name in missing if from_whom[name] != trainer.name]
    trainer.server.load(named([new]) | base_of([new]), missing)
    for name in missing:
        if from_whom[name] == trainer.name:
            load(name)
            loaded.add(name)
            trainer.server.ready(name)
            trainer.wire.worked()
    if others:
        fetch = fetch_of(trainer, new, others, lambda name: [from_whom[name]], moments=moments)
        try:
            _finish(trainer, fetch)
        finally:
            loaded.update(set(others) - fetch.missing)
    for name in others:
        trainer.server.ready(name)
    trainer.loading = None


def _copy(source: StageState, target: StageState, names: Collection[str]) -> None:
    here = source.named()
    for name, vectors in target.named().items():
        for prefix, values in vectors.items() if name in names else ():
            values.copy_(here[name][prefix])


def _stage_of(plan: Plan, layer: int) -> int:
    return next(stage for stage, (first, last) in enumerate(plan.stages) if first <= layer <= last)


def _from_holders(trainer: Trainer, new: StageState, held: Sequence[StageState], view: control_pb2.View) -> None:
    """Copy what this node has, ask holders for the rest."""
    here = named(held)
    missing = []
    for name, vectors in new.named().items():
        if name in here:
            for prefix, values in vectors.items():
                values.copy_(here[name][prefix])
        else:
            missing.append(name)
    _fetch(trainer, new, missing, _holders(trainer, view))


def _holders(trainer: Trainer, view: control_pb2.View) -> Callable[[str], list[str]]:
    """Who has a parameter's reference."""
    holders = {holder.layer: list(holder.nodes) for holder in view.holders}
    return lambda name: holders.get(trainer.definition.layer_of(name), [])


def _carry(trainer: Trainer, new: StageState, held: Sequence[StageState], view: control_pb2.View) -> None:
    """The local part of every parameter that this node held in another place goes with it. Of what is new to it the
    moments are one peer's, for they count as many steps as its own; or, where moments are private, all begin anew."""
    plan, agreed = Plan.from_json(view.plan), trainer.job.updates.agreed and not new.gradient
    before = [section for state in held for section in state.sections.values()]
    old: dict[str, tuple[Section, slice]] = {}
    for section in before:
        layout = section.layout
        for name, start, stop in zip(layout.names, layout.offsets, layout.offsets[1:], strict=False):
            old.setdefault(name, (section, slice(start, stop)))
    lacking: list[str] = []
    for section_name, section in new.sections.items():
        layout = section.layout
        weight = share_of(plan, section_name, trainer.name) if agreed else 0.0
        for name, start, stop in zip(layout.names, layout.offsets, layout.offsets[1:], strict=False):
            here = slice(start, stop)
            if name not in old:
                lacking.append(name)
                continue
            source, there = old[name]
            section.x[here] = source.x[there]
            factor = source.weight / weight if source.weight and weight else 1.0  # sections differ in it
            if factor != 1.0:
                section.x[here].sub_(section.g[here]).mul_(factor).add_(section.g[here])
            if source.feedback is not None:
                if section.feedback is None:
                    section.feedback = torch.zeros_like(section.g)
                section.feedback[here] = source.feedback[there] * factor
            for kind, vector in section.moments.items():
                vector[here] = source.moments[kind][there]
        section.weight = weight
    new.lacking = frozenset(lacking)
    steps = max((state.optimizer_steps for state in held), default=0)
    if new.gradient or len(lacking) == len(new.named()):
        return  # its moments are the group's; or nothing of it is old: as a joiner begins
    if lacking and not new.moments_travel:
        for section in new.sections.values():
            for moment in section.moments.values():
                moment.zero_()
        return
    new.optimizer_steps = steps
    if lacking and steps:
        holders = _holders(trainer, view)
        _fetch(trainer, new, lacking, lambda name: holders(name)[:1], moments_only=True)


def _fetch(
    trainer: Trainer,
    new: StageState,
    names: Sequence[str],
    holders: Callable[[str], Sequence[str]],
    moments_only: bool = False,
) -> None:
    """Fill these parameters of ``new`` from peers. FarflungError when none of the holders answers."""
    _finish(trainer, fetch_of(trainer, new, names, holders, moments_only=moments_only))


def _finish(trainer: Trainer, fetch: StateFetch) -> None:
    """Work until it is here. FarflungError when none of the holders answers."""
    while not fetch.done:
        lost, trainer.lost = trainer.lost, set()
        fetch.work(lost)
        if fetch.failure:
            raise Parted(f"no holder of the stage's state answered: {fetch.failure}", "start the node again")
        trainer.pump(0.05)


def fetch_of(
    trainer: Trainer,
    new: StageState,
    names: Sequence[str],
    holders: Callable[[str], Sequence[str]],
    snapshot: int = 0,
    moments_only: bool = False,
    moments: bool | None = None,
    kept: bool = False,
) -> StateFetch:
    """The fetch of these parameters of ``new``. FarflungError: somebody's view says that nobody holds one.
    ``moments_only``: the reference is here, and what comes of it is left."""
    found = {name: [node for node in holders(name) if node != trainer.name] for name in names}
    for name, nodes in found.items():
        if not nodes:
            raise FarflungError(
                f"no node of this view holds {name}", "this is a fault of the view; please report it", 4
            )
    moments = new.gradient or moments_only if moments is None else moments  # of a checkpoint they are nobody's own
    # In delta mode a peer's moments belong to the peer's own path; a joiner's begin anew, and bias correction is
    # their ramp.
    wanted = {
        name: {
            prefix: torch.empty_like(values) if moments_only and prefix in REFERENCE else values
            for prefix, values in vectors.items()
            if moments or prefix in REFERENCE
        }
        for name, vectors in new.named().items()
        if name in found
    }
    return begin_fetch(trainer, wanted, found, moments, snapshot, kept)


def begin_fetch(
    trainer: Trainer,
    wanted: Mapping[str, Vectors],
    holders: Mapping[str, Sequence[str]],
    moments: bool = False,
    snapshot: int = 0,
    kept: bool = False,
) -> StateFetch:
    """A fetch as `StateFetch` says, with a number of its own by which the trainer gives it its answers."""
    request = next(trainer.requests)
    fetch = StateFetch(
        trainer.send,
        trainer.refuse,
        trainer.tell,
        trainer.name,
        wanted,
        holders,
        moments,
        snapshot,
        trainer.emit,
        request=request,
        kept=kept,
    )
    trainer.fetches[request] = fetch
    return fetch


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
