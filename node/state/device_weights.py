"""The parameters on a device whose sections lie in main memory (``train.offload`` = "optimizer", "parameters").

ZeRO-Offload (Ren et al., 2021): the optimiser's state and the fp32 weights that it moves are in main memory, where the
step is made; the device has the weights to compute with. With "parameters" it has those of a block only while the block
computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


class DeviceWeights:
    """The parameters of a stage on ``device``. A device computes its copies in order, so a copy out of pinned memory
    is queued behind the passes before it, and passes after it see it."""

    def __init__(
        self, parameters: Mapping[str, Tensor], device: torch.device, blocks: Iterable[nn.Module] = ()
    ) -> None:
        """``parameters``: those that train, by name. ``blocks``: modules whose parameters are on the device only while
        they compute; where the backward pass computes a block again, the weights that it needs live until it is
        over."""
        self._parameters = dict(parameters)
        self._nothing = torch.zeros((), device=device)
        """Stretched over the shape of a parameter that is not there: its gradient keeps the shape."""
        self._sources: dict[str, Tensor] = {}
        names = {id(parameter): name for name, parameter in parameters.items()}
        self._passing: set[str] = set()
        for block in blocks:
            own = [names[id(one)] for one in block.parameters() if id(one) in names]
            self._passing.update(own)
            block.register_forward_pre_hook(partial(self._fetch, own))
            block.register_forward_hook(partial(self._free, own), always_call=True)

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Compute with ``weights``, views of vectors in main memory, as they are now; those of blocks as they are when
        the block computes."""
        self._sources = dict(weights)
        for name, values in weights.items():
            parameter = self._parameters[name]
            if name in self._passing:
                parameter.data = self._nothing.expand(values.shape)
                continue
            if parameter.shape != values.shape:
                parameter.data = self._nothing.new_empty(values.shape)
            parameter.data.copy_(values, non_blocking=True)

    def _fetch(self, names: Iterable[str], *_: Any) -> None:
        for name in names:
            source = self._sources[name]
            self._parameters[name].data = self._nothing.new_empty(source.shape).copy_(source, non_blocking=True)

    def _free(self, names: Iterable[str], *_: Any) -> None:
        for name in names:
            self._parameters[name].data = self._nothing.expand(self._sources[name].shape)
