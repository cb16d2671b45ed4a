"""A stage: layers [first, last] of a model as one torch module, whose parameters keep the whole model's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ...job.data.marks import IGNORED
from ...proto.errors import OWN, FarflungError
from .decoders.balance import Routers
from .decoders.trunk import Trunk
from .dropout import Draw, KeyedDropout, keyed

_SENT = (FarflungError, RuntimeError, IndexError)
"""What a layer raises at values that do not fit it: only whoever received them knows whose fault that is."""


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
        self.balance: Tensor | None = None
        """After a pass that trains: the routers' balance loss, to be added to the loss sum; None without routers."""
        self.inner: tuple[nn.Module, ...] = ()
        """The modules of layers that ``_run`` computes."""
        self.around: tuple[nn.Module, ...] = ()
        """The modules that are computed before and after ``inner``; torch does not know them as submodules."""
        self.is_first = first == 0
        self.is_last = last == count - 1
        self.recompute = recompute
        self.tokens: Tensor | None = None
        """Set before a pass, except on the first stage, if the definition ``needs_tokens``: token ids, int64 [b, t]."""
        self.draw: Draw | None = None
        """Set before a pass that trains layers with dropout: the key of their masks."""

    @abstractmethod
    def forward(self, inputs: Tensor, places: Tensor | None = None) -> Tensor:
        """The stage's output for one microbatch.

        First stage: token ids [b, t] int64 (of a ``build`` model, the data batch). Others: the output of the stage
        before, float32, [b, t, d] for a language model. The last stage returns logits, [b, t, vocabulary].
        ``places``: each token's index in its document, int64 [b, t], if samples have several documents: a token attends
        only to tokens of its own document. None: a sample is one document.
        """

    @abstractmethod
    def loss_sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Sum of the loss over all targets of the microbatch, a float32 scalar (nats for a language model)."""

    def own_failure(self, error: BaseException) -> FarflungError | None:
        """What a person is told of an error in a pass over values that fit; None where the stage runs no code of a
        person's own, or memory was short."""
        return None

    def target_count(self, targets: Tensor) -> int:
        """How many targets ``loss_sum`` adds up: every element of ``targets``."""
        return targets.numel()

    def correct(self, logits: Tensor, targets: Tensor) -> Tensor:
        """How many targets have the largest logit, an int64 scalar on the logits' device; 0 if the logits are not one
        row of classes for each target."""
        if logits.shape[:-1] != targets.shape or targets.is_floating_point():
            return torch.zeros((), dtype=torch.int64, device=logits.device)
        return (logits.argmax(-1) == targets).sum()

    def _run(self, layer: Callable[..., Any], hidden: Tensor, *rest: Any, **keywords: Any) -> Tensor:
        if self.recompute and self.training and torch.is_grad_enabled():
            # Dropout is keyed (dropout.py), and nothing else is random, so there is no generator state to keep.
            output = checkpoint(layer, hidden, *rest, use_reentrant=False, preserve_rng_state=False, **keywords)
            torch.clear_autocast_cache()  # else all layers' weights stay in half precision too until the pass ends
        else:
            output = layer(hidden, *rest, **keywords)
            if not torch.is_grad_enabled():
                torch.clear_autocast_cache()
        result: Tensor = output[0] if isinstance(output, tuple) else output
        return result

    def _drawing(self) -> Draw | None:
        """The key of this pass's dropout masks; None if the pass drops nothing."""
        if self.draw is None or not self.training or not torch.is_grad_enabled():
            return None
        return self.draw


class Border(Protocol):
    """Shrinks the hidden state at the border between stages, and restores it after it (subspace.py)."""

    def shrunk(self, hidden: Tensor) -> Tensor:
        """The values that are sent to the stage after, from the hidden state [b, t, d]."""

    def grown(self, received: Tensor, tokens: Tensor, places: Tensor | None) -> Tensor:
        """The hidden state [b, t, d], from the values ``received`` from the stage before."""


class Pass:
    """One microbatch in a stage: constructing it computes the forward pass; `backward` may be called once.

    Attributes:
        output: the stage's output; on the last stage the sum of the loss, a scalar.
        correct: how many targets the last stage predicted correctly, an int64 scalar.
    """

    def __init__(self, model: StageModel, inputs: Tensor, targets: Tensor, places: Tensor | None = None) -> None:
        self._inputs = inputs
        if torch.is_grad_enabled() and not model.is_first:
            inputs.requires_grad_(True)
        self.output = model(inputs) if places is None else model(inputs, places)
        self.correct = torch.zeros((), dtype=torch.int64)
        self._balance = model.balance
        model.balance = None
        if model.is_last:
            logits = self.output
            self.output = model.loss_sum(logits, targets)
            self.correct = model.correct(logits.detach(), targets)

    def backward(self, gradient: Tensor, scale: float = 0.0) -> Tensor | None:
        """Adds to the parameters' gradients. ``gradient``: that of the output. ``scale``: the factor on the balance
        loss. Returns the gradient of the inputs; None on the first stage."""
        if self._balance is None:
            torch.autograd.backward([self.output], [gradient])
        else:
            ends = [self.output, self._balance], [gradient, torch.full_like(self._balance, scale)]
            torch.autograd.backward(*ends)
        return self._inputs.grad


class LanguageStage(StageModel):
    """Layers of a causal language model of `transformers`: embedding, blocks, then norm and head as one layer.

    The forward pass is the model's own (``trunk.Trunk``). Attention is causal over whole samples without padding.
    ``blocks``, and the parameters outside of the blocks (``before``, ``after``), come with their full names; a tied
    head is computed with the embedding's parameter, under the embedding's name.
    """

    def __init__(
        self,
        first: int,
        last: int,
        count: int,
        trunk: Trunk,
        *,
        before: Sequence[tuple[str, nn.Parameter]],
        blocks: Sequence[tuple[str, nn.Module]],
        after: Sequence[tuple[str, nn.Parameter]],
        recompute: bool = False,
        documents: bool = True,
        routers: Routers | None = None,
        half: bool = False,
        drops: bool = False,
    ) -> None:
        """``documents``: whether attention separates the documents of a sample by position ids. ``half``: some weights
        are in bf16, so that the stage computes under autocast. ``drops``: passes that train need a draw."""
        super().__init__(first, last, count, recompute)
        self._documents, self._routers, self._half, self._drops = documents, (routers,), half, drops
        for name, parameter in before:
            attach(self, name, parameter)
        for name, block in blocks:
            attach(self, name, block)
        for name, parameter in after:
            attach(self, name, parameter)
        # A tuple hides the modules from torch: they are registered once, under their full names, above.
        self._trunk = (trunk,)
        self.border: Border | None = None
        """Shrinks the hidden state before it is sent; None: it is sent whole."""
        self.inner = tuple(block for _, block in blocks)
        self.around = tuple(trunk.model.modules())

    def forward(self, inputs: Tensor, places: Tensor | None = None) -> Tensor:
        """``places``: as in `StageModel.forward`."""
        return self._computed(inputs, {} if places is None else self._placed(places))

    def _placed(self, places: Tensor) -> dict[str, Any]:
        """The keyword arguments that give the `transformers` model the tokens' places."""
        if not self._documents:
            raise FarflungError(
                "this model family takes samples of one document each: its attention can't tell several apart",
                hint="write pack = false under [data]",
            )
        return {"position_ids": places}

    def _computed(self, inputs: Tensor, keywords: dict[str, Any]) -> Tensor:
        """This stage's part of the model's own forward pass."""
        kind = inputs.device.type
        needed = self._half and not torch.is_autocast_enabled(kind)
        draw = self._drawing()
        if self._drops and draw is None and self.training and torch.is_grad_enabled() and kind != "meta":
            raise RuntimeError("a pass of layers with dropout has no draw")
        outside = KeyedDropout(draw, 0) if draw is not None else nullcontext()
        if self.border is not None and not self.is_first:
            assert self.tokens is not None
            inputs = self.border.grown(inputs, self.tokens, keywords.get("position_ids"))
        with torch.autocast(kind, torch.bfloat16) if needed else nullcontext(), outside:
            output = self._trunk[0](inputs, self._run if draw is None else self._keyed(draw), **keywords)
        if self._routers[0] is not None and self.training and torch.is_grad_enabled():
            self.balance = self._routers[0].loss()
        if self.is_last:
            return output
        return (output if self.border is None else self.border.shrunk(output)).float()

    def outside(self, path: str) -> nn.Module:
        """A module outside of the blocks, as this stage computes it."""
        module: nn.Module = self._trunk[0].model.get_submodule(path)
        return module

    def _keyed(self, draw: Draw) -> Callable[..., Tensor]:
        """A function that computes a block with the dropout masks of its layer number."""
        numbers = self._trunk[0].numbers

        def run(block: nn.Module, hidden: Tensor, *rest: Any, **keywords: Any) -> Tensor:
            return self._run(keyed(block, draw, numbers[block]), hidden, *rest, **keywords)

        return run

    def loss_sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        flat = logits.float().reshape(-1, logits.shape[-1])
        return functional.cross_entropy(flat, targets.reshape(-1), reduction="sum", ignore_index=IGNORED)

    def target_count(self, targets: Tensor) -> int:
        return int((targets != IGNORED).sum())


class SequentialStage(StageModel):
    """Layers of an ``nn.Sequential``: each is one or more of its children; the names ("0.weight") stay."""

    def __init__(
        self,
        first: int,
        last: int,
        count: int,
        layers: list[list[tuple[str, nn.Module]]],
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        recompute: bool = False,
        spec: str = "",
    ) -> None:
        super().__init__(first, last, count, recompute)
        for layer in layers:
            for name, child in layer:
                attach(self, name, child)
        self._layers = [nn.Sequential(*(child for _, child in layer)) for layer in layers]
        self.inner = tuple(self._layers)
        self._loss, self._spec = loss, spec

    def forward(self, inputs: Tensor, places: Tensor | None = None) -> Tensor:
        hidden, draw = inputs, self._drawing()
        try:
            for number, layer in enumerate(self._layers, self.first):
                hidden = self._run(layer if draw is None else keyed(layer, draw, number), hidden)
        except _SENT:
            raise
        except OWN as error:
            raise self._failure(error) from error
        return hidden if self.is_last else hidden.float()

    def own_failure(self, error: BaseException) -> FarflungError | None:
        return None if isinstance(error, torch.OutOfMemoryError) else self._failure(error)

    def _failure(self, error: BaseException) -> FarflungError:
        what = f"model.build: a layer or the loss of {self._spec} failed: {type(error).__name__}: {error}"
        return FarflungError(what, "try it on data.build's tensors; the run's last checkpoint is in its state folder")

    def run_layer(self, layer: int, inputs: Tensor) -> Tensor:
        """The output of one of the stage's layers, numbered as in the whole model."""
        return self._run(self._layers[layer - self.first], inputs)

    def loss_sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        try:
            return self._loss(logits, targets).float()
        except _SENT:
            raise
        except OWN as error:
            raise self._failure(error) from error


def attach(root: nn.Module, path: str, what: nn.Module | nn.Parameter) -> None:
    """Registers a module or a parameter below ``root`` at a dotted path, with empty modules on the way."""
    *way, name = path.split(".")
    for step in way:
        below = getattr(root, step, None)
        if below is None:
            below = nn.Module()
            root.add_module(step, below)
        root = below
    if isinstance(what, nn.Parameter):
        root.register_parameter(name, what)
    else:
        root.add_module(name, what)
