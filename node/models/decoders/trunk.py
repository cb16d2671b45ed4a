"""A stage's part of a model of `transformers`, computed by that model's own forward pass.

A ``Trunk`` is a copy of the whole model in which other stages' blocks are empty slots that hand on what they get. So
whatever the model prepares for its blocks (positions, masks, scales) is prepared by its own code, on every stage
alike. A stage that is not the first one's takes the hidden state from the stage before in its first slot; one that is
not the last stops the pass where its own blocks end.
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
    """The pass has reached the stage's end. Caught where it began."""


class _Crossing:
    """What goes into a stage, and what comes out of it, while a pass is computed."""

    entry = 0
    """The slot that takes what came from the stage before."""
    exit: int | None = None
    """The slot behind which the pass ends, -1: before the first; None: it goes on to the head."""
    run: Run | None = None
    """How this stage's own blocks are computed."""
    received: Tensor | None = None
    left: Tensor | None = None


class _Slot(nn.Module):
    """Stands where a block stood: computes it if it is the stage's ``own``, else hands on what it gets."""

    def __init__(self, index: int, block: nn.Module, crossing: _Crossing, own: bool, tuples: bool) -> None:
        super().__init__()
        self._index, self._own, self._tuples = index, own, tuples
        self._hidden = (block, crossing)  # a tuple hides the block from torch: it is registered by the stage

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
            return getattr(self.__dict__["_hidden"][0], name)  # as a model asks a block for its kind of attention


class _Nothing(nn.Module):
    """Stands where a module of the first layer stood: what is made of its output is not used."""

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
        """``model``: the whole one on the meta device, of which a copy is taken. ``blocks``: this stage's own by
        number. ``begin``: the number of its first block, or of that which would come next."""
        self._crossing = crossing = _Crossing()
        self.numbers = {block: number + 1 for number, block in blocks.items()}
        """Of each of this stage's blocks its layer in the whole model."""
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
        for path in anatomy.first if first else ():  # the hidden state is fp32, whatever an embedding is kept in
            self.model.get_submodule(path).register_forward_hook(lambda module, args, output: output.float())
        self._outside = (*anatomy.first, *anatomy.last)
        self.head: nn.Module = self.model.get_submodule(anatomy.head)

    def modules(self, begins: Sequence[str], ends: Sequence[str]) -> list[nn.Module]:
        """All modules but the blocks, of the first and the last layer those at these paths."""
        absent = {id(self.model.get_submodule(path)) for path in self._outside if path not in (*begins, *ends)}
        return [module for module in self.model.modules() if id(module) not in absent]

    def __call__(self, inputs: Tensor, run: Run, **keywords: Any) -> Tensor:
        """``inputs``: ids [b, t] of the first stage, else the hidden state [b, t, d]. ``run``: computes a block. Logits
        [b, t, vocabulary] of the last stage, else the hidden state."""
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
