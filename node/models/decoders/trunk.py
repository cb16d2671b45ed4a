"""A stage's part of a model of `transformers`, computed by that model's own forward pass.

A ``Trunk`` is a copy of the whole model in which other stages' blocks are empty slots, which return their input. So the
model's own code prepares all inputs of its blocks (positions, masks, scales), on every stage alike. Every stage but the
first puts the hidden state from the stage before into its first slot; every stage but the last ends the pass after its
own blocks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .anatomy import Anatomy

Run = Callable[..., Tensor]


class _Left(Exception):
    """The pass has reached the stage's end. `Trunk.__call__` catches it."""


class _Crossing:
    """The input and output of a stage during a pass, which its slots share."""

    entry = 0
    """The index of the slot that takes ``received``, the hidden state from the stage before."""
    exit: int | None = None
    """The index of the slot after which the pass ends and its hidden state is ``left``. -1: in the first slot, before
    any block; None: the pass goes on to the head."""
    run: Run | None = None
    """Computes one of this stage's own blocks."""
    received: Tensor | None = None
    left: Tensor | None = None


class _Slot(nn.Module):
    """Replaces a block: computes it if it is the stage's ``own``, else returns its input."""

    def __init__(self, index: int, block: nn.Module, crossing: _Crossing, own: bool, tuples: bool) -> None:
        super().__init__()
        self._index, self._own, self._tuples = index, own, tuples
        self._hidden = (block, crossing)  # a tuple hides the block from torch: the stage registers it

    def forward(self, *args: Any, **keywords: Any) -> Any:
        hidden = args[0] if args else keywords.pop("hidden_states")
        block, crossing = self._hidden
        if self._index == crossing.entry and crossing.received is not None:
            hidden = crossing.received
        if self._own and crossing.run is not None:
            hidden = crossing.run(block, hidden, *args[1:], **keywords)
        if crossing.exit in (self._index, -1):
            crossing.left = hidden
            raise _Left
        return (hidden, None) if self._tuples else hidden

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_hidden"][0], name)  # a model may read a block's attributes


class _Nothing(nn.Module):
    """Replaces a module of the first layer on later stages, where its output has no effect."""

    def forward(self, *args: Any, **keywords: Any) -> Tensor:
        floating = [one for one in args if isinstance(one, Tensor) and one.is_floating_point() and one.dim() == 3]
        return floating[0] if floating else torch.zeros(())


class Trunk:
    """The forward pass of layers [first, last]: embedding, blocks and head are layers 0, 1 to n and n + 1."""

    def __init__(
        self,
        model: Any,
        anatomy: Anatomy,
        blocks: Mapping[int, nn.Module],
        first: bool,
        last: bool,
        begin: int,
    ) -> None:
        """``model``: the whole model on the meta device, which is copied. ``blocks``: this stage's own blocks by
        number. ``begin``: the number of its first block; if it has none, of the block after it."""
        self._crossing = crossing = _Crossing()
        self.numbers = {block: number + 1 for number, block in blocks.items()}
        """The layer number, in the whole model, of each of this stage's blocks."""
        memo: dict[int, Any] = {id(model.config): model.config}
        for index, block in enumerate(model.get_submodule(anatomy.blocks)):
            own = blocks.get(index)
            memo[id(block)] = _Slot(index, own or block, crossing, own is not None, anatomy.tuples)
        if not first:
            memo.update({id(model.get_submodule(path)): _Nothing() for path in anatomy.first})
            crossing.entry = min(begin, anatomy.count - 1)
        if not last:
            crossing.exit = max(blocks, default=-1)
        self.model = copy.deepcopy(model, memo).eval()
        self._enters = not first
        for path in anatomy.first if first else ():  # the hidden state is fp32, whatever dtype an embedding has
            self.model.get_submodule(path).register_forward_hook(lambda module, args, output: output.float())
        self._outside = (*anatomy.first, *anatomy.last)
        self.head: nn.Module = self.model.get_submodule(anatomy.head)

    def modules(self, begins: Sequence[str], ends: Sequence[str]) -> list[nn.Module]:
        """All modules outside of the blocks; of the first layer only those at ``begins``, of the last at ``ends``."""
        absent = {id(self.model.get_submodule(path)) for path in self._outside if path not in (*begins, *ends)}
        return [module for module in self.model.modules() if id(module) not in absent]

    def __call__(self, inputs: Tensor, run: Run, **keywords: Any) -> Tensor:
        """``inputs``: on the first stage token ids [b, t], else the hidden state [b, t, d]. ``run``: computes a block.
        Returns logits [b, t, vocabulary] on the last stage, else the hidden state."""
        crossing = self._crossing
        crossing.run = run
        named: dict[str, Any] = {"input_ids": inputs}
        if self._enters:
            crossing.received = inputs
            named = {"inputs_embeds": inputs.detach()}
        try:
            logits: Tensor = self.model(**named, use_cache=False, **keywords).logits
            return logits
        except _Left:
            assert crossing.left is not None
            return crossing.left
        finally:
            crossing.run = crossing.received = crossing.left = None
