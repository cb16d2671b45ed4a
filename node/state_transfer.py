"""How a node that takes up a stage gets its reference: from itself, from peers, from a checkpoint, or from the seed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..proto import control_pb2, data_pb2
from ..proto.errors import FarflungError
from .checkpoints import Checkpoint, load_checkpoint
from .pretrained import initial_weights, weights_of
from .stage_state import REFERENCE, StageState

if TYPE_CHECKING:
    from .trainer import Trainer

Send = Callable[[str, data_pb2.Header, Sequence[memoryview], int], None]
BYTES_AT_ONCE = 64 << 20
"""Asked of holders and not yet here; a tensor is one message, so at least one is asked for."""
ANSWER_SECONDS = 600.0
"""Silence of a source that is connected. A broken connection is noticed at once; 463 MB at 50 Mbit/s take 74 s."""
BULK = 2
MOST_WAITING = 1 << 16
"""Requests of a view that is being prepared: more than the tensors that its joiners can lack."""


class StateServer:
    """Answers peers that ask for tensors of the reference. Requests wait until ``open`` says what it holds."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self._waiting: deque[tuple[str, str, bool]] = deque()
        self._held: dict[str, dict[str, Tensor]] | None = None

    def open(self, states: Sequence[StageState]) -> None:
        """This is what the node holds, at the round that the view begins with."""
        self._held = _named(states)
        while self._waiting:
            self.request(*self._waiting.popleft())

    def request(self, sender: str, name: str, moments: bool) -> None:
        """``sender`` wants a parameter: its reference, and the optimiser's moments if it says so."""
        if self._held is None:
            if len(self._waiting) == MOST_WAITING:
                raise ValueError(f"{MOST_WAITING} requests wait already")
            self._waiting.append((sender, name, moments))
            return
        vectors = self._held.get(name, {})
        wanted = [values for prefix, values in vectors.items() if moments or prefix in REFERENCE]
        pieces = [values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() for values in wanted]
        header = data_pb2.Header(kind=data_pb2.STATE, text=name, sizes=[piece.nbytes for piece in pieces])
        self.send(sender, header, [piece.data.cast("B") for piece in pieces], BULK)


def _named(states: Sequence[StageState]) -> dict[str, dict[str, Tensor]]:
    """parameter -> prefix -> view, of all of these."""
    return {name: vectors for state in reversed(states) for name, vectors in state.named().items()}


def load_state(trainer: Trainer, new: StageState, held: Sequence[StageState], view: control_pb2.View) -> None:
    """Fill ``new`` with the reference at the view's start, and set x := g.

    Raises:
        FarflungError: a checkpoint or the initial weights cannot be read, or no holder answers.
    """
    names = [name for section in new.sections.values() for name in section.layout.names]
    with torch.no_grad():
        if view.checkpoint > 0:
            load_checkpoint(new, Checkpoint(view.checkpoint, trainer.wire.fetch), names)
        elif view.checkpoint == 0:
            weights = weights_of(trainer.job, trainer.facts, trainer.wire.fetch)
            for name, prefix, values in new.tensors():
                if not prefix:
                    values.copy_(initial_weights(trainer.definition, [name], trainer.job.run.seed, weights)[name])
        else:
            _from_holders(trainer, new, held, view)
        for section in new.sections.values():
            section.adopt()


def _from_holders(trainer: Trainer, new: StageState, held: Sequence[StageState], view: control_pb2.View) -> None:
    """Copy what this node has, ask holders for the rest."""
    here = _named(held)
    wanted = new.named()
    missing = []
    for name, vectors in wanted.items():
        if name in here:
            for prefix, values in vectors.items():
                values.copy_(here[name][prefix])
        else:
            missing.append(name)
    holders = {holder.layer: list(holder.nodes) for holder in view.holders}
    sources = {name: _others(holders, trainer, name) for name in missing}
    # In delta mode a peer's moments belong to the peer's own path; a joiner's begin anew, and bias correction is
    # their ramp.
    asked = {
        name: {prefix: values for prefix, values in wanted[name].items() if new.gradient or prefix in REFERENCE}
        for name in missing
    }
    _fetch_from_peers(trainer, asked, sources, new.gradient)
    if not new.gradient:
        for section in new.sections.values():
            for moment in section.moments.values():
                moment.zero_()
        new.optimizer_steps = 0


def _others(holders: dict[int, list[str]], trainer: Trainer, name: str) -> list[str]:
    found = [node for node in holders.get(trainer.definition.layer_of(name), []) if node != trainer.name]
    if not found:
        raise FarflungError(f"no node of this view holds {name}", "this is a fault of the view; please report it", 4)
    start = sum(name.encode() + trainer.name.encode()) % len(found)  # spread over the holders
    return found[start:] + found[:start]


def _fetch_from_peers(
    trainer: Trainer, wanted: dict[str, dict[str, Tensor]], sources: dict[str, list[str]], moments: bool
) -> None:
    """Ask some tensors at a time; a holder that is lost, silent or lacks one is passed over for the next."""
    waiting = deque(sources)
    asked = trainer.awaited = {}
    heard = dict.fromkeys((node for nodes in sources.values() for node in nodes), time.monotonic())
    tries = dict.fromkeys(sources, 0)
    while waiting or asked:
        while waiting and (not asked or sum(_size(wanted[name]) for name in asked) < BYTES_AT_ONCE):
            name = waiting.popleft()
            if tries[name] == 2 * len(sources[name]):
                raise FarflungError(
                    f"no holder of {name} answered: {', '.join(sources[name])}", "start the node again", 4
                )
            source = sources[name][tries[name] % len(sources[name])]
            tries[name] += 1
            header = data_pb2.Header(kind=data_pb2.STATE_REQUEST, text=name, moments=moments)
            trainer.send(source, header, b"", BULK)
            asked[name] = source
        trainer.pump(0.2)
        now = time.monotonic()
        for name, source in list(asked.items()):
            got = trainer.state_of(name)
            if got is not None:
                heard[source] = now
            if got is not None and _fill(wanted[name], *got):
                del asked[name]
            elif got is not None or source in trainer.lost or now - heard[source] > ANSWER_SECONDS:
                del asked[name]
                waiting.append(name)


def _size(vectors: dict[str, Tensor]) -> int:
    return sum(values.nbytes for values in vectors.values())


def _fill(vectors: dict[str, Tensor], header: data_pb2.Header, payload: npt.NDArray[np.uint8]) -> bool:
    """Copy an answer into place; False if the sender did not hold the tensor or it has another size."""
    sizes: list[Any] = list(header.sizes)
    if sizes != [values.nbytes for values in vectors.values()] or sum(sizes) != payload.nbytes:
        return False
    start = 0
    for values, size in zip(vectors.values(), sizes, strict=True):
        piece = torch.from_numpy(payload[start : start + size])
        values.copy_(piece.view(values.dtype).view(values.shape))
        start += size
    return True
