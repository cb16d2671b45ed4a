"""The parameters on a device whose sections lie in main memory (``train.offload`` = "optimizer", "parameters").

ZeRO-Offload (Ren et al., 2021): the optimiser's state and the fp32 weights that it moves are in main memory, where the
step is made; the device has the weights to compute with. With "parameters" it has those of a block only while the block
computes, and those of the next block come meanwhile (ahead.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..device.side_stream import COMPUTE, UP, Mark, streams_of
from .ahead import Ahead, Block


class DeviceWeights:
    """The parameters of a stage on ``device``. A device computes its copies in order, so a copy out of pinned memory
    is queued behind the passes before it, and passes after it see it."""

    def __init__(
        self, parameters: Mapping[str, Tensor], device: torch.device, stages: Sequence[Sequence[nn.Module]] = ()
    ) -> None:
        """``parameters``: those that train, by name. ``stages``: of each of the node's stages the blocks whose
        parameters are on the device only while they compute; where the backward pass computes a block again, the
        weights that it needs live until it is over."""
        self._parameters = dict(parameters)
        self._nothing = torch.zeros((), device=device)
        """Stretched over the shape of a parameter that is not there: its gradient keeps the shape."""
        self._sources: dict[str, Tensor] = {}
        names = {id(parameter): name for name, parameter in parameters.items()}
        self._passing: set[str] = set()
        self._streams = streams_of(device)
        self._ahead, self._names = Ahead([len(blocks) for blocks in stages]), dict[Block, list[str]]()
        self._coming: tuple[dict[str, Tensor], Mark] = {}, None
        """The weights of the block that comes next, and when they are there."""
        for stage, blocks in enumerate(stages):
            for at, block in enumerate(blocks):
                own = [names[id(one)] for one in block.parameters() if id(one) in names]
                self._passing.update(own)
                self._names[stage, at] = own
                block.register_forward_pre_hook(partial(self._fetch, (stage, at)))
                block.register_forward_hook(partial(self._free, own), always_call=True)

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Compute with ``weights``, views of vectors in main memory, as they are now; those of blocks as they are when
        the block computes, or at most one block before it."""
        self._drop()
        self._ahead.forget()
        self._sources = dict(weights)
        for name, values in weights.items():
            parameter = self._parameters[name]
            if name in self._passing:
                parameter.data = self._nothing.expand(values.shape)
                continue
            if parameter.shape != values.shape:
                parameter.data = self._nothing.new_empty(values.shape)
            parameter.data.copy_(values, non_blocking=True)

    def _fetch(self, block: Block, *_: Any) -> None:
        arrival = self._ahead.arrives(block)
        if arrival.drop is not None:
            self._drop()
        found = self._taken() if arrival.here else self._copies(self._names[block])
        for name, values in found.items():
            self._parameters[name].data = values
        if arrival.begin is not None:
            self._send_for(self._names[arrival.begin])

    def _copies(self, names: Iterable[str]) -> dict[str, Tensor]:
        return {
            name: self._nothing.new_empty(source.shape).copy_(source, non_blocking=True)
            for name, source in ((name, self._sources[name]) for name in names)
        }

    def _send_for(self, names: Iterable[str]) -> None:
        """Weights come beside the arithmetic. Their memory is of the stream that computes, which may not be done yet
        with what was there: so it never has more than what it has at this point, however far the host is ahead."""
        rooms = {name: self._nothing.new_empty(self._sources[name].shape) for name in names}
        with self._streams.on(UP, [self._streams.mark(COMPUTE)]):
            for name, room in rooms.items():
                room.copy_(self._sources[name], non_blocking=True)
        self._coming = rooms, self._streams.mark(UP)

    def _taken(self) -> dict[str, Tensor]:
        """The weights that were sent for; what is computed from now on waits for them."""
        (rooms, mark), self._coming = self._coming, ({}, None)
        if rooms:
            with self._streams.on(COMPUTE, [mark]):
                pass
        return rooms

    def _drop(self) -> None:
        """Do without what was sent for: whoever gets its memory next computes after it has come."""
        self._taken()

    def _free(self, names: Iterable[str], *_: Any) -> None:
        for name in names:
            self._parameters[name].data = self._nothing.expand(self._sources[name].shape)
