"""Moments that lie in main memory pass through the device that computes with them: the next piece comes and the last
one goes back while the device computes (turns.py). The bits are those of pieces that are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ...device.side_stream import COMPUTE, DOWN, UP, Mark, streams_of
from . import turns
from .moments import closed


def passing(
    moments: Mapping[str, Tensor], pieces: Sequence[tuple[slice, int]], device: torch.device, step: int, slots: int
) -> Iterator[dict[str, Tensor]]:
    """The pieces of moments, each fp32 on ``device``, one after the other: change them before the next is asked for.
    When the last one was taken back, all are in main memory.

    Args:
        pieces: of each, its place in the vectors, and the index of its first element, for the dither.
        step: the number of steps, for the dither.
        slots: how many pieces the device has room for.
    """
    streams = streams_of(device)
    longest = max((there.stop - there.start for there, _ in pieces), default=0)
    slots = min(slots, len(pieces))
    rooms = [{name: torch.empty(longest, dtype=torch.float32, device=device) for name in moments} for _ in range(slots)]
    raw = [
        {name: torch.empty(longest, device=device, dtype=one.dtype) for name, one in moments.items()}
        if any(one.dtype != torch.float32 for one in moments.values())
        else {}
        for _ in range(slots)
    ]
    # The memory of the slots may just have been freed, by what this stream has not computed yet.
    marks: dict[turns.What, Mark] = {}
    begun = streams.mark(COMPUTE)
    for turn in turns.turns(len(pieces), slots):
        there, first = pieces[turn.part]
        count, after = there.stop - there.start, [marks[one] for one in turn.after] or [begun]
        values = {name: room[:count] for name, room in rooms[turn.slot].items()}
        kept = {name: vector[there] for name, vector in moments.items()}
        if turn.do == turns.FETCH:
            with streams.on(UP, after):
                for name, source in kept.items():
                    way = raw[turn.slot][name][:count] if raw[turn.slot] else values[name]
                    way.copy_(source, non_blocking=streams.is_async)
                    if way is not values[name]:
                        values[name].copy_(way)
            marks[turn.do, turn.part] = streams.mark(UP)
        elif turn.do == turns.COMPUTE:
            with streams.on(COMPUTE, after):
                pass  # what the caller computes from now on waits for the piece
            yield values
            marks[turn.do, turn.part] = streams.mark(COMPUTE)
        else:
            with streams.on(DOWN, after):
                closed(kept, values, first, step, streams.is_async)
            marks[turn.do, turn.part] = streams.mark(DOWN)
    if pieces:
        streams.finish(marks[turns.STORE, len(pieces) - 1])
