"""Makes a node's rest: what it has learnt and not sent when a checkpoint is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from ...rounds.arithmetic.exchange import Exchange
from ...state.files.rests import FEEDBACK, MOMENT, REST, Rest, digest_of
from ...state.sections import vectors
from ...state.sections.room import Room, leave, room_for
from ...state.sections.section import Section
from .view_member import ViewMember

Reads = dict[str, tuple[Tensor, Callable[[], Tensor]]]
"""Name in the file -> (shape and dtype, on no device; what reads the tensor from the state)."""


def rest_of(view: ViewMember, step: int, room: float = math.inf) -> Rest | None:
    """The rest of this node beside the checkpoint of ``step``: what would be lost if the run restarted from that
    checkpoint. None if it is zero. Changes nothing. Copies on the CPU if they take at most ``room`` bytes; else the
    rest has only its tensors' shapes, and reads them from the node's state while it is written."""
    state, reads = view.state, Reads()
    beside: dict[str, tuple[str, float]] = {}
    squares, moved = 0.0, 0.0
    for name, section in state.sections.items():
        exchange = view.exchanges[name]
        share = exchange.share
        squares += _squares(exchange, section) * (1.0 if view.gradient else share) ** 2
        moved += exchange.own_norm**2 if view.gradient else section.moved**2
        reads |= _terms(exchange, section)
        reads |= {} if view.gradient else _moments(section)
        beside |= {one: (digest_of(values), share) for one, values in section.layout.views(section.g)}
        section.leave()
    if not any(name.startswith((REST, FEEDBACK)) for name in reads) or (view.is_alone and not squares):
        return None
    make = partial(Rest, step, view.context.view, math.sqrt(squares), math.sqrt(moved))
    if sum(shape.nbytes for shape, _ in reads.values()) > room:
        shapes = {one: shape for one, (shape, _) in reads.items()}
        return make(shapes, beside, state.optimizer_steps, read=lambda one: reads[one][1]())
    tensors: dict[str, Tensor] = {}
    rooms: list[Room] = []
    for name, section in state.sections.items():
        # If an island's ranks keep the section, its copies lie outside of this process too, until they are written.
        lies = None if section.room is None else room_for(section.layout.numel, 2 + len(section.moments))
        rooms += [] if lies is None else [lies]
        tensors |= _copies(view, name, section, lies)
    return make(tensors, beside, state.optimizer_steps, tuple(rooms))


def _copies(view: ViewMember, name: str, section: Section, room: Room | None) -> Iterator[tuple[str, Tensor]]:
    """(name in the file, copy on the CPU) of all that a section's rest has."""
    for prefix, vector in view.exchanges[name].unsent(torch.zeros if room is None else room.zeros).items():
        yield from ((prefix + one, values) for one, values in section.layout.views(vector))
        leave(vector)
    for kind, vector in () if view.gradient else section.moments.items():
        own = _copied(vector, room)
        yield from ((f"{MOMENT}{kind}.{one}", values) for one, values in section.of_moments.views(own))


def _copied(vector: Tensor, room: Room | None) -> Tensor:
    """A copy of a moment, on the CPU: in the room, if there is one."""
    if room is None:
        return vector.detach().to("cpu", copy=True)
    made = room.zeros(vector.numel(), vector.dtype).copy_(vector)
    leave(made, vector)
    return made


def _terms(exchange: Exchange, section: Section) -> Reads:
    """Of each parameter its part of this node's terms of S."""
    layout, found = section.layout, Reads()
    for kind in exchange.unsent_kinds:
        for name, shape, (start, stop) in zip(layout.names, layout.shapes, pairwise(layout.offsets), strict=True):
            read = partial(_read, exchange, kind, slice(start, stop), shape)
            found[kind + name] = torch.empty(shape, device="meta"), read
    return found


def _read(exchange: Exchange, kind: str, here: slice, shape: tuple[int, ...]) -> Tensor:
    return exchange.unsent_at(kind, here).view(shape)


def _moments(section: Section) -> Reads:
    """Of each parameter the optimiser's state."""
    found = Reads()
    for kind, vector in section.moments.items():
        for name, values in section.of_moments.views(vector.detach()):
            found[f"{MOMENT}{kind}.{name}"] = torch.empty_like(values, device="meta"), values.detach
    return found


def _squares(exchange: Exchange, section: Section) -> float:
    """The squared norm of this node's terms of S in a section."""
    found = []
    for start, stop in section.layout.blocks(vectors.PIECE):
        terms = [exchange.unsent_at(kind, slice(start, stop)) for kind in exchange.unsent_kinds]
        found.append(vectors.squared_norm_of_sum(terms))
    return math.fsum(found)
