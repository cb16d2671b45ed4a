"""A stage: layers [first, last] of a model as one torch module, whose parameters keep the whole model's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ...job.marks import IGNORED


class StageModel(nn.Module, ABC):
    """Layers ``first`` to ``last`` (inclusive) of a model with ``count`` layers; nothing else is materialised.

    ``named_parameters()`` gives the names of the whole model ("transformer.h.0.attn.c_attn.weight"), in the order of
    ``ModelDefinition.parameter_names(first, last)``. All parameters are float32. With ``recompute`` set, training
    keeps only each layer's input and computes the layer again in the backward pass (Chen et al. 2016).
    """

    def __init__(self, first: int, last: int, count: int, recompute: bool = False) -> None:
        super().__init__()
        if not 0 <= first <= last < count:
            raise ValueError(f"layers [{first}, {last}] are not a range of a model with {count} layers")
        self.first = first
        self.last = last
        self.is_first = first == 0
        self.is_last = last == count - 1
        self.recompute = recompute

    @abstractmethod
    def forward(self, inputs: Tensor, places: Tensor | None = None) -> Tensor:
        """The stage's output for one microbatch.

        First stage: token ids [b, t] int64 (of a ``build`` model, the data batch). Others: the output of the stage
        before, float32, [b, t, d] for a language model. The last stage returns logits, [b, t, vocabulary].
        ``places``: of samples of several documents the place of each token in its own, int64 [b, t]: tokens attend to
        those of their document alone. None: a sample is one document.
        """

    @abstractmethod
    def loss_sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Sum of the loss over all targets of the microbatch, a float32 scalar (nats for a language model)."""

    def target_count(self, targets: Tensor) -> int:
        """How many targets ``loss_sum`` adds up: every element of ``targets``."""
        return targets.numel()

    def correct(self, logits: Tensor, targets: Tensor) -> int:
        """How many targets the largest logit names; 0 where logits are not one row of classes for each target."""
        if logits.shape[:-1] != targets.shape or targets.is_floating_point():
            return 0
        return int((logits.argmax(-1) == targets).sum())

    def _run(self, layer: Callable[..., Any], hidden: Tensor, **keywords: Any) -> Tensor:
        if self.recompute and self.training and torch.is_grad_enabled():
            # No layer draws random numbers (dropout is refused), so there is no generator state to keep.
            output = checkpoint(layer, hidden, use_reentrant=False, preserve_rng_state=False, **keywords)
        else:
            output = layer(hidden, **keywords)
        result: Tensor = output[0] if isinstance(output, tuple) else output  # before transformers 5, blocks gave tuples
        return result


class Pass:
    """One microbatch on its way through a stage: forward when it is made, and back once.

    Attributes:
        output: what the stage hands on; of the last stage the sum of the loss, a scalar.
        correct: how many targets the last stage named right.
    """

    def __init__(self, model: StageModel, inputs: Tensor, targets: Tensor, places: Tensor | None = None) -> None:
        self._inputs = inputs
        if torch.is_grad_enabled() and not model.is_first:
            inputs.requires_grad_(True)
        self.output = model(inputs) if places is None else model(inputs, places)
        self.correct = 0
        if model.is_last:
            logits = self.output
            self.output = model.loss_sum(logits, targets)
            self.correct = model.correct(logits.detach(), targets)

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Adds to the parameters' gradients; the gradient of the inputs, None of the first stage's."""
        torch.autograd.backward([self.output], [gradient])
        return self._inputs.grad


class LanguageStage(StageModel):
    """Layers of a causal language model of `transformers`: embedding, blocks, then norm and head as one layer.

    Attention is causal over whole samples (scaled_dot_product_attention's own causal form; padding is at their ends); a
    block with a sliding window (``windows``) that is shorter than the sample has a mask, and so have all blocks where
    samples have several documents.
    Each piece is (full name, materialised module), None where the stage does not hold it. A tied head is computed
    with the embedding (``tied_head``), under the embedding's name.
    """

    def __init__(
        self,
        first: int,
        last: int,
        count: int,
        *,
        embedding: tuple[str, nn.Module] | None,
        positions: tuple[str, nn.Module] | None,
        blocks: list[tuple[str, nn.Module]],
        norm: tuple[str, nn.Module] | None,
        head: tuple[str, nn.Module] | None,
        tied_head: tuple[str, nn.Module] | None,
        rotary: nn.Module | None,
        windows: Sequence[int | None] = (),
        recompute: bool = False,
    ) -> None:
        super().__init__(first, last, count, recompute)
        for named in (embedding, positions, *blocks, norm, head, tied_head):
            if named is not None:
                attach(self, *named)
        # A dictionary hides the modules from torch: they are registered once, under their full names, above.
        pieces = {"embedding": embedding, "positions": positions, "norm": norm, "head": head, "tied_head": tied_head}
        self._pieces = {piece: named[1] for piece, named in pieces.items() if named is not None}
        self._blocks = [block for _, block in blocks]
        self._rotary = [rotary] if rotary is not None and blocks else []
        self._windows = windows or [None] * len(blocks)

    def forward(self, inputs: Tensor, places: Tensor | None = None) -> Tensor:
        hidden = self._embed(inputs, places) if self.is_first else inputs
        keywords: dict[str, Any] = {}
        for rotary in self._rotary:
            angles = torch.arange(hidden.shape[1], device=hidden.device)[None] if places is None else places
            keywords = {"attention_mask": None, "position_embeddings": rotary(hidden, angles)}
        masks: dict[int | None, Tensor | None] = {}
        for block, window in zip(self._blocks, self._windows, strict=True):
            if window not in masks:
                masks[window] = (
                    sliding_mask(hidden.shape[1], window, hidden.device)
                    if places is None
                    else documents_mask(places, window)
                )
            if (mask := masks[window]) is not None:
                hidden = self._run(block, hidden, **{**keywords, "attention_mask": mask})
            else:
                hidden = self._run(block, hidden, **keywords)
        return self._logits(hidden) if self.is_last else hidden

    def loss_sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        flat = logits.float().reshape(-1, logits.shape[-1])
        return functional.cross_entropy(flat, targets.reshape(-1), reduction="sum", ignore_index=IGNORED)

    def target_count(self, targets: Tensor) -> int:
        return int((targets != IGNORED).sum())

    def _embed(self, ids: Tensor, places: Tensor | None = None) -> Tensor:
        hidden: Tensor = self._pieces["embedding"](ids)
        if "positions" in self._pieces:
            places = torch.arange(ids.shape[1], device=ids.device)[None] if places is None else places
            hidden = hidden + self._pieces["positions"](places)
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        hidden = self._pieces["norm"](hidden)
        if "tied_head" in self._pieces:
            return functional.linear(hidden, self._pieces["tied_head"].get_parameter("weight"))
        logits: Tensor = self._pieces["head"](hidden)
        return logits


def sliding_mask(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """What each of ``length`` tokens attends to where it looks back over ``window`` tokens, its own among them: bool
    [1, 1, length, length]. None where that is all before it."""
    if window is None or window >= length:
        return None
    whole = torch.ones(length, length, dtype=torch.bool, device=device)
    return (whole.tril() & whole.triu(1 - window))[None, None]


def documents_mask(places: Tensor, window: int | None = None) -> Tensor:
    """What each token attends to in samples of several documents: those before it and itself in its own document, at
    most ``window`` of them. ``places``: int64 [b, t]; the mask is bool [b, 1, t, t]."""
    document = (places == 0).cumsum(-1)
    same = document[:, :, None] == document[:, None, :]
    order = torch.arange(places.shape[1], device=places.device)
    back = order[:, None] - order[None, :]
    near = back >= 0 if window is None else (back >= 0) & (back < window)
    return (same & near)[:, None]


class SequentialStage(StageModel):
    """Layers of an ``nn.Sequential``: each a few of its children, whose names ("0.weight") they keep."""

    def __init__(
        self,
        first: int,
        last: int,
        count: int,
        layers: list[list[tuple[str, nn.Module]]],
        loss: Callable[[Tensor, Tensor], Tensor],
        recompute: bool = False,
    ) -> None:
        super().__init__(first, last, count, recompute)
        for layer in layers:
            for name, child in layer:
                attach(self, name, child)
        self._layers = [nn.Sequential(*(child for _, child in layer)) for layer in layers]
        self._loss = loss

    def forward(self, inputs: Tensor, places: Tensor | None = None) -> Tensor:
        hidden = inputs
        for layer in self._layers:
            hidden = self._run(layer, hidden)
        return hidden if self.is_last else hidden.float()

    def run_layer(self, layer: int, inputs: Tensor) -> Tensor:
        """The output of one of the stage's layers, numbered as in the whole model."""
        return self._run(self._layers[layer - self.first], inputs)

    def loss_sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self._loss(logits, targets).float()


def attach(root: nn.Module, path: str, module: nn.Module) -> None:
    """Registers ``module`` below ``root`` at a dotted path, with empty modules on the way."""
    *way, name = path.split(".")
    for step in way:
        below = getattr(root, step, None)
        if below is None:
            below = nn.Module()
            root.add_module(step, below)
        root = below
    root.add_module(name, module)


def materialise(skeleton: nn.Module, device: torch.device) -> nn.Module:
    """Gives a module built on the meta device real float32 parameters (values undefined) on ``device``, in place;
    frozen ones stay frozen.

    Buffers must not be on the meta device: their values are the module's own and would be lost.
    """
    for module in skeleton.modules():
        for name, parameter in module.named_parameters(recurse=False):
            real = torch.empty(parameter.shape, dtype=torch.float32, device=device)
            module.register_parameter(name, nn.Parameter(real, requires_grad=parameter.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                raise ValueError(f"buffer {name} of {type(module).__name__} has no value")
            module._buffers[name] = buffer.to(device)
    return skeleton
