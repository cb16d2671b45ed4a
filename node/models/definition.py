"""A model that can be cut anywhere: names, shapes, initial values and stages of its layers.

    stage = definition.build(0, 3, torch.device("cpu"))      # layers 0 to 3, and nothing else

``factory.model_of`` makes the definition of a job's model. A language model has the layers [embedding, block 0 .. block
n-1, head]; the norm before the head belongs to the head. A tied embedding is one parameter with one name, held by the
first and by the last layer.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...job.model_folder.positions import longest_of
from ...proto.errors import FarflungError
from .decoders.anatomy import anatomy_of
from .decoders.balance import Routers, check_balanced
from .decoders.families import DEFAULT_CONTEXT, Family, initial_constant, initial_deviation, row_of
from .decoders.materialise import fill_buffers, freeze_buffers, materialise
from .decoders.trunk import Trunk
from .dropout import Dropouts, drops, has_rates, no_dropout
from .stage import LanguageStage, StageModel


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
    """Names of the frozen parameters of each layer; a tied one is listed in the first and in the last layer."""
    frozen_dtype = torch.float32
    """The dtype of frozen matrices."""
    starts_from_folder = True
    """Whether the parameters of ``shapes`` start with a model folder's values, if the job has a folder."""
    family: str
    needs_tokens = False
    """Whether every stage needs the tokens of its microbatch, not only the first and the last."""
    drops = False
    """Whether layers drop elements while they train: passes then need a `dropout.Draw`."""

    _values: tuple[int, dict[str, Tensor]] | None = None
    """(seed, initial values by name), for models that make all initial values at once."""

    def __init__(self, layers: list[str], names: list[list[str]], recompute: bool) -> None:
        self.layers = layers
        self._names = names
        self._recompute = recompute
        self._layer_of = {name: layer for layer in reversed(range(len(layers))) for name in names[layer]}

    def parameter_names(self, first: int, last: int) -> list[str]:
        """Names of the parameters of layers [first, last], each once, in the order of ``StageModel.parameters()``."""
        return list(dict.fromkeys(name for layer in self._names[first : last + 1] for name in layer))

    @property
    def stored(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every parameter that a model folder has."""
        return {**self.shapes, **self.frozen}

    @property
    def tied_trained(self) -> str | None:
        """``tied``, or None if that parameter is frozen."""
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
        """Frees what was kept to compute initial values; call it when they are not needed any more."""
        self._values = None

    def initialise(self, stage: StageModel, seed: int) -> None:
        """Gives a stage its initial values."""
        with torch.no_grad():
            for name, parameter in stage.named_parameters():
                parameter.copy_(self.initial(name, seed))


class LanguageModel(ModelDefinition):
    """A causal language model of `transformers`, read from its own class on the meta device."""

    auto = "AutoModelForCausalLM"
    """The auto class of `transformers` that makes the model and loads an export."""
    classes = False
    """Whether its head predicts a text's class."""

    def __init__(
        self,
        config: Any,
        recompute: bool = False,
        change: Callable[[nn.Module], None] = lambda model: None,
        balance: float = 0.0,
    ) -> None:
        """``change``: changes the whole model on the meta device before its parameters are read. ``balance``: the
        weight of the routers' balance loss."""
        self.config, self.balance = config, balance
        self.longest = longest_of(config.to_dict()) or DEFAULT_CONTEXT
        self.row: Family = Family(str(config.model_type)) if self.classes else row_of(str(config.model_type))
        self.family = self.row.name
        self.skeleton = skeleton_of(config, self.auto)
        with Dropouts() as dropouts:
            self.anatomy = anatomy = anatomy_of(self.skeleton, self.classes)
        if has_rates(config) and not dropouts.seen:
            raise no_dropout(self.family)
        buffers = freeze_buffers(self.skeleton, anatomy)
        if balance:
            check_balanced(self.skeleton)
        change(self.skeleton)
        self.drops = drops(self.skeleton) or has_rates(config)
        heads = (self.row.head or anatomy.head, *self.row.other_heads)
        self.head_names = tuple(f"{path}.weight" for path in heads)
        """The names that files may have for the head's matrix."""
        self.head_name = self.head_names[0]
        first, last = self._outside(anatomy.first), self._outside(anatomy.last)
        shared = {id(parameter): name for name, parameter in first}
        head: nn.Module = self.skeleton.get_submodule(anatomy.head)
        self.tied = shared.get(id(head.weight))
        last = [(shared.get(id(parameter), name), parameter) for name, parameter in last]
        self._last = anatomy.count + 1
        blocks = [named(self._block_path(i), self._block(i)) for i in range(anatomy.count)]
        pieces: list[list[tuple[str, Tensor]]] = [list(first), *blocks, list(last)]
        layers = ["embedding", *(f"block {i}" for i in range(anatomy.count)), "head"]
        self._pieces = [[name for name, _ in piece] for piece in pieces]
        super().__init__(layers, [[name for name in piece if name not in buffers] for piece in self._pieces], recompute)
        self._everything = {name: tuple(tensor.shape) for piece in pieces for name, tensor in piece}
        self.shapes = {name: shape for name, shape in self._everything.items() if name not in buffers}
        self.frozen = {name: self._everything[name] for name in buffers}
        self.frozen_names = [{name for name in piece if name in buffers} for piece in self._pieces]

    def build(self, first: int, last: int, device: torch.device | str = "cpu") -> LanguageStage:
        device, anatomy = torch.device(device), self.anatomy
        begins = anatomy.first if first == 0 else ()
        ends = anatomy.last if last == self._last else ()
        numbers = range(max(first, 1) - 1, min(last, self._last - 1))
        blocks = {number: copy.deepcopy(self._block(number)) for number in numbers}
        trunk = Trunk(self.skeleton, anatomy, blocks, bool(begins), bool(ends), numbers.start)
        inside = [module for block in blocks.values() for module in block.modules()]
        materialise(
            [*(trunk.model.get_submodule(path) for path in (*begins, *ends)), *inside], device, self.frozen_dtype
        )
        fill_buffers(self.skeleton, [*inside, *trunk.modules(begins, ends)], device)
        return self._stage()(
            first,
            last,
            self._last + 1,
            trunk,
            before=self._outside(begins, trunk.model),
            blocks=[(self._block_path(number), block) for number, block in blocks.items()],
            after=[
                (self.tied if self.tied and name == self.head_name else name, one)
                for name, one in self._outside(ends, trunk.model)
            ],
            recompute=self._recompute,
            documents=anatomy.documents,
            half=self.frozen_dtype == torch.bfloat16,
            drops=self.drops,
            routers=Routers(self.skeleton, blocks.values(), self.balance) if self.balance else None,
        )

    def _stage(self) -> Callable[..., LanguageStage]:
        return LanguageStage

    def beside(self, context: int) -> int:
        """How many vectors are handed on between stages beside the hidden state of ``context`` tokens."""
        return 0

    def begins_anew(self, name: str) -> bool:
        """Whether a model folder may lack this parameter, which then starts with a fresh model's values."""
        return False

    def initial(self, name: str, seed: int) -> Tensor:
        # The head's name in the class may differ from that in files; both names have the same initial value.
        name = self.head_name if name in self.head_names else name
        shape = self.shapes[name]
        if len(shape) < 2:
            return initial_constant(self.skeleton, self.inner(name), shape)
        values = generator(seed, name).standard_normal(shape, dtype=np.float32)
        values *= np.float32(initial_deviation(self.row, name, shape, self.config))
        return torch.from_numpy(values)

    def _outside(self, paths: Iterable[str], model: nn.Module | None = None) -> list[tuple[str, nn.Parameter]]:
        """(name in files, parameter) of the modules at ``paths`` of the skeleton, or of its copy ``model``."""
        found = []
        for path in paths:
            known = self.row.head if self.row.head and path == self.anatomy.head else path
            module = (model or self.skeleton).get_submodule(path)
            found += [(f"{known}.{name}", one) for name, one in module.named_parameters(recurse=False)]
        return found

    def exported(self, name: str, values: Tensor) -> Tensor:
        """The parameter ``name`` in the shape of the family's own class, from its ``values`` in a checkpoint."""
        return values

    def inner(self, name: str) -> str:
        """A parameter's name in the class, from its name in files: the head's may differ."""
        return f"{self.anatomy.head}.weight" if name == self.head_name else name

    def _block_path(self, index: int) -> str:
        return f"{self.anatomy.blocks}.{index}"

    def _block(self, index: int) -> nn.Module:
        block: nn.Module = self.skeleton.get_submodule(self._block_path(index))
        return block


def skeleton_of(config: Any, auto: str = LanguageModel.auto) -> Any:
    """The `transformers` model of a configuration on the meta device: names and shapes, no values. ``auto``: the class
    that makes it."""
    import transformers

    quiet: Callable[[], None] = transformers.logging.set_verbosity_error
    quiet()
    # Other attention implementations draw dropout masks inside of a kernel, where they cannot be keyed.
    more = {"attn_implementation": "eager"} if has_rates(config) else {}
    try:
        # With torch 2.6 this module, which every model imports, cannot be imported under the meta device.
        importlib.import_module("transformers.generation.utils")
        with torch.device("meta"):
            return getattr(transformers, auto).from_config(config, trust_remote_code=False, **more)
    except Exception as error:  # a class may fail in any way at a configuration that it does not expect
        raise FarflungError(
            f"transformers does not build the model {config.model_type!r}: {type(error).__name__}: {error}",
            hint="check its config.json, or pip install -U transformers",
        ) from error


def named(path: str, module: nn.Module) -> list[tuple[str, Tensor]]:
    """(full name, parameter) of a module that stands at ``path``."""
    return [(f"{path}.{name}", parameter) for name, parameter in module.named_parameters()]


def generator(seed: int, name: str) -> np.random.Generator:
    """A random generator that depends on (seed, name) alone."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], np.uint64)))
