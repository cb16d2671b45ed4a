"""A model that can be cut anywhere: names, shapes, initial values and stages of its layers.

    stage = definition.build(0, 3, torch.device("cpu"))      # layers 0 to 3, and nothing else

``factory.model_of`` makes the definition of a job's model. A language model has the layers [embedding, block 0 .. block
n-1, head]; the norm before the head belongs to the head. A tied embedding is one parameter with one name, held by the
first and by the last layer.
"""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...job.positions import longest_of, windows_of
from .families import DEFAULT_CONTEXT, FAMILIES, Family, initial_deviation
from .stage import LanguageStage, StageModel, materialise


class ModelDefinition(ABC):
    """What every partition of a model agrees on. Holds no weights."""

    layers: list[str]
    """Names of the layers, first to last."""
    shapes: dict[str, tuple[int, ...]]
    """Shape of every parameter, in the order of the layers."""
    tied: str | None = None
    """Name of the parameter that the first and the last layer share."""
    frozen: Mapping[str, tuple[int, ...]] = {}
    """Shape of every parameter that stays as the model folder has it: it neither trains nor travels."""
    frozen_names: Sequence[Collection[str]] = ()
    """Names of the frozen parameters of each layer; the tied one is of the first and of the last."""
    family: str

    _values: tuple[int, dict[str, Tensor]] | None = None
    """Initial values by seed and name, where they come all at once."""

    def __init__(self, layers: list[str], names: list[list[str]], recompute: bool) -> None:
        self.layers = layers
        self._names = names
        self._recompute = recompute
        self._layer_of = {name: layer for layer in reversed(range(len(layers))) for name in names[layer]}

    def parameter_names(self, first: int, last: int) -> list[str]:
        """Names of the parameters of layers [first, last], each once, in the order of ``StageModel.parameters()``."""
        return list(dict.fromkeys(name for layer in self._names[first : last + 1] for name in layer))

    @property
    def tied_trained(self) -> str | None:
        """``tied``, unless that is frozen."""
        return self.tied if self.tied in self.shapes else None

    def layer_of(self, name: str) -> int:
        """The layer that holds a parameter; for the tied one the first layer."""
        return self._layer_of[name]

    @abstractmethod
    def build(self, first: int, last: int, device: torch.device | str = "cpu") -> StageModel:
        """The stage of layers [first, last] on ``device``; the values of its parameters are undefined."""

    @abstractmethod
    def initial(self, name: str, seed: int) -> Tensor:
        """Initial value of a parameter, float32 on the CPU: a function of (seed, name) alone."""

    def forget(self) -> None:
        """Initial values are not asked for any more: lets go of what was kept for them."""
        self._values = None

    def initialise(self, stage: StageModel, seed: int) -> None:
        """Gives a stage its initial values."""
        with torch.no_grad():
            for name, parameter in stage.named_parameters():
                parameter.copy_(self.initial(name, seed))


class LanguageModel(ModelDefinition):
    """A causal language model of `transformers`, read from its own class on the meta device."""

    def __init__(
        self, config: Any, recompute: bool = False, change: Callable[[nn.Module], None] = lambda model: None
    ) -> None:
        """``change``: is given the whole model on the meta device before it is looked at."""
        self.config = config
        self.longest = longest_of(config.to_dict()) or DEFAULT_CONTEXT
        self.row: Family = FAMILIES[config.model_type]
        self.family = self.row.name
        self.skeleton = skeleton_of(config)
        change(self.skeleton)
        base = getattr(self.skeleton, self.row.base)
        self._base = base
        head = self.skeleton.get_output_embeddings()
        self.head_name = f"{self.row.head}.weight"
        embedding = getattr(base, self.row.embedding)
        tied = bool(getattr(config, "tie_word_embeddings", False))
        self.tied = f"{self._path(self.row.embedding)}.weight" if tied else None
        blocks: Sequence[nn.Module] = list(getattr(base, self.row.blocks))
        first = named(self._path(self.row.embedding), embedding)
        if self.row.positions:
            first += named(self._path(self.row.positions), getattr(base, self.row.positions))
        last = named(self._path(self.row.norm), getattr(base, self.row.norm))
        last += [(self.tied, embedding.weight)] if self.tied else named(self.row.head, head)
        self._last = len(blocks) + 1
        self._windows = windows_of(config.to_dict(), len(blocks))
        pieces = [first, *(named(self._block_path(i), block) for i, block in enumerate(blocks)), last]
        layers = ["embedding", *(f"block {i}" for i in range(len(blocks))), "head"]
        super().__init__(layers, [[name for name, _ in piece] for piece in pieces], recompute)
        self.shapes = {name: tuple(tensor.shape) for piece in pieces for name, tensor in piece}

    def build(self, first: int, last: int, device: torch.device | str = "cpu") -> LanguageStage:
        device = torch.device(device)
        row = self.row
        has_head = last == self._last

        def real(attribute: str) -> tuple[str, nn.Module]:
            return self._path(attribute), materialise(copy.deepcopy(getattr(self._base, attribute)), device)

        # The embedding also comes along as the holder of a tied head's weight.
        embedding = real(row.embedding) if first == 0 or (has_head and self.tied) else None
        head = None
        if has_head and not self.tied:
            head = (row.head, materialise(copy.deepcopy(self.skeleton.get_output_embeddings()), device))
        blocks = range(max(first, 1) - 1, min(last, self._last - 1))
        stage = LanguageStage(
            first,
            last,
            self._last + 1,
            embedding=embedding if first == 0 else None,
            positions=real(row.positions) if first == 0 and row.positions else None,
            blocks=[(self._block_path(i), self._block(i, device)) for i in blocks],
            norm=real(row.norm) if has_head else None,
            head=head,
            tied_head=embedding if has_head and self.tied else None,
            rotary=self._rotary(device),
            windows=[self._windows[i] for i in blocks],
            recompute=self._recompute,
        )
        return stage

    def initial(self, name: str, seed: int) -> Tensor:
        # The class may call the head otherwise than files do; its initial value is the same under both names.
        name = self.head_name if name in {f"{head}.weight" for head in self.row.other_heads} else name
        shape = self.shapes[name]
        if len(shape) < 2:
            return torch.zeros(shape) if name.endswith(".bias") else torch.ones(shape)
        values = generator(seed, name).standard_normal(shape, dtype=np.float32)
        values *= np.float32(initial_deviation(self.row, name, shape, self.config))
        return torch.from_numpy(values)

    def _path(self, attribute: str) -> str:
        return f"{self.row.base}.{attribute}"

    def _block_path(self, index: int) -> str:
        return f"{self.row.base}.{self.row.blocks}.{index}"

    def _block(self, index: int, device: torch.device) -> nn.Module:
        skeleton = getattr(self._base, self.row.blocks)[index]
        block = copy.deepcopy(skeleton)
        if any(True for _ in skeleton.buffers()):  # transformers 4's GPT-2 keeps its causal mask in one
            whole = type(skeleton)(self.config, layer_idx=index)
            for path, buffer in whole.named_buffers():
                module, _, name = path.rpartition(".")
                block.get_submodule(module)._buffers[name] = buffer
        return materialise(block, device)

    def _rotary(self, device: torch.device) -> nn.Module | None:
        """The rotary angles, computed anew (they are no weights, and their values on the meta device are none)."""
        if self.row.positions:
            return None
        rotary: nn.Module = type(self._base.rotary_emb)(self.config)
        return rotary.to(device)


def skeleton_of(config: Any) -> Any:
    """The `transformers` model of a configuration on the meta device: names and shapes, no values."""
    import transformers

    quiet: Callable[[], None] = transformers.logging.set_verbosity_error
    quiet()
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="sdpa", trust_remote_code=False
        )


def named(path: str, module: nn.Module) -> list[tuple[str, Tensor]]:
    """(full name, parameter) of a module that stands at ``path``."""
    return [(f"{path}.{name}", parameter) for name, parameter in module.named_parameters()]


def generator(seed: int, name: str) -> np.random.Generator:
    """A random generator that depends on (seed, name) alone."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], np.uint64)))
