"""Makes a node's rest: what it has learnt and not sent when a checkpoint is made."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...state.files.rests import FEEDBACK, MOMENT, REST, Rest, digest_of
from ...state.sections.room import Room, leave, room_for
from .view_member import ViewMember


def rest_of(view: ViewMember, step: int) -> Rest | None:
    """The rest of this node beside the checkpoint of ``step``: what would be lost if the run restarted from that
    checkpoint. None if it is zero. Copies on the CPU; changes nothing."""
    state = view.state
    tensors: dict[str, Tensor] = {}
    beside: dict[str, tuple[str, float]] = {}
    squares, moved = 0.0, 0.0
    rooms: list[Room] = []
    for name, section in state.sections.items():
        exchange = view.exchanges[name]
        # If an island's ranks keep the section, its copies lie outside of this process too, until they are written.
        room = None if section.room is None else room_for(section.layout.numel, 2 + len(section.moments))
        rooms += [] if room is None else [room]
        vectors = exchange.unsent(torch.zeros if room is None else room.zeros)
        share = exchange.share
        whole = sum(vectors.values(), torch.zeros(()))
        squares += float(whole.double().square().sum()) * (1.0 if view.gradient else share) ** 2
        moved += exchange.own_norm**2 if view.gradient else section.moved**2
        for prefix, vector in vectors.items():
            tensors |= {prefix + one: values for one, values in section.layout.views(vector)}
        if not view.gradient:
            for kind, vector in section.moments.items():
                own = _copied(vector, room)
                tensors |= {f"{MOMENT}{kind}.{one}": values for one, values in section.of_moments.views(own)}
        beside |= {one: (digest_of(values), share) for one, values in section.layout.views(section.g)}
        leave(section.g, *vectors.values())
    if not any(name.startswith((REST, FEEDBACK)) for name in tensors) or (view.is_alone and not squares):
        return None
    norms = (math.sqrt(squares), math.sqrt(moved))
    return Rest(step, view.context.view, *norms, tensors, beside, state.optimizer_steps, tuple(rooms))


def _copied(vector: Tensor, room: Room | None) -> Tensor:
    """A copy of a moment, on the CPU: in the room, if there is one."""
    if room is None:
        return vector.detach().to("cpu", copy=True)
    made = room.zeros(vector.numel(), vector.dtype).copy_(vector)
    leave(made, vector)
    return made
