"""Where a causal language model of `transformers` keeps its pieces, read from the model itself.

The model is run once on the meta device, which has shapes and no values. Modules that are computed before the blocks
belong to the first layer, modules that are computed after them to the last. A model can be cut between blocks if each
block's input is the hidden state that the block before returned, and no other value that depends on parameters.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ....proto.errors import FarflungError

_TOKENS = 4  # length of the text that the model is run on
EXPERTS = "experts"
"""Name of modules whose control flow depends on values; they are skipped in this run, which has no values."""


@dataclass(frozen=True)
class Anatomy:
    """Paths of a model's modules: the list of its ``blocks``; the modules with parameters that are computed before the
    blocks (``first``) and after them (``last``), in the order of computing; ``head``, the last of these.

    tuples: whether a block returns a tuple, whose first element is the hidden state. documents: whether the masks are
    made from position ids, by which `transformers` separates the documents of a sample. table: the module whose table
    of relative positions all blocks share (DeBERTa's), if there is one: its parameters belong to the first layer.
    """

    blocks: str
    count: int
    first: tuple[str, ...]
    last: tuple[str, ...]
    head: str
    tuples: bool
    documents: bool
    table: str | None = None


def anatomy_of(model: Any, classes: bool = False) -> Anatomy:
    """The anatomy of a model that lies on the meta device. ``classes``: its head predicts a text's class.

    Raises:
        FarflungError: the model cannot be cut between its blocks; the message says why.
    """
    kind = str(model.config.model_type)
    path, blocks = _blocks(model, kind)
    seen = _Seen(model, path, blocks)
    try:
        seen.watch()
        with torch.device("meta"), NoValues(), _MasksSeen(model) as masks:
            model(input_ids=torch.zeros(1, _TOKENS, dtype=torch.long, device="meta"), use_cache=False)
    except FarflungError:
        raise
    except Exception as error:  # a model may fail in any way without values
        raise refused(kind, f"it does not run without values ({type(error).__name__}: {error})") from error
    finally:
        seen.forget()
    return seen.anatomy(kind, masks.documents, classes)


def table_module(model: Any) -> str | None:
    """The path of the module whose ``get_rel_embedding()`` gives every block of a model the same table; None: none."""
    for path, module in model.named_modules():
        if getattr(module, "relative_attention", False) and hasattr(module, "get_rel_embedding"):
            return str(path)
    return None


def refused(kind: str, why: str) -> FarflungError:
    """The error for a model that farflung does not train, with a hint what would have to be added."""
    return FarflungError(
        f"the model family {kind!r} can't be cut into stages: {why}",
        hint=f"farflung trains decoders whose blocks hand on one hidden state; where {kind} does, its row is missing: "
        f"add FAMILIES[{kind!r}] in farflung/node/models/decoders/families.py and a case in tests/node/models/zoo "
        "(docs/how-to/models.md says how)",
    )


def _blocks(model: Any, kind: str) -> tuple[str, nn.ModuleList]:
    count = getattr(model.config, "num_hidden_layers", None)
    if groups := getattr(model.config, "num_hidden_groups", None):
        raise FarflungError(
            f"the model family {kind!r} can't be cut into stages: its {count} blocks are {groups} computed again and "
            "again, so that every stage would train the same weights",
            hint="use a family whose blocks have weights of their own, such as a bert, a roberta or a deberta",
        )
    lists = [(path, module) for path, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    found = [(path, module) for path, module in lists if len(module) == count]
    outer = [one for one in found if not any(one[0].startswith(f"{other}.") for other, _ in lists if other != one[0])]
    if len(outer) != 1:
        have = ", ".join(f"{path} ({len(module)})" for path, module in lists[:4]) or "none"
        raise refused(kind, f"it has no one list of {count} blocks; its lists are {have}")
    return outer[0]


_ASKS = (torch.Tensor.__bool__, torch.Tensor.item, torch.Tensor.__contains__)


class NoValues(TorchFunctionMode):
    """Makes ``bool(tensor)``, ``tensor.all()`` and the like True on the meta device, as for a mask without padding. A
    tensor that is made of one number keeps it, on the CPU: DeBERTa makes one of a length, and cuts by it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ASKS and args[0].is_meta:
            return True
        if func is torch.tensor and args and isinstance(args[0], int) and "device" not in (kwargs or {}):
            kwargs = {**(kwargs or {}), "device": "cpu"}
        return func(*args, **(kwargs or {}))


class _MasksSeen:
    """Observes whether a model makes all its attention masks from position ids."""

    def __init__(self, model: Any) -> None:
        self._module = sys.modules[type(model).__module__]
        self._own = {
            name: one
            for name, one in vars(self._module).items()
            if name.startswith("create_") and name.endswith("_mask") and callable(one)
        }
        self._places = "position_ids" in inspect.signature(type(model).forward).parameters
        self._made: list[bool] = []

    def __enter__(self) -> _MasksSeen:
        for name, one in self._own.items():
            setattr(self._module, name, self._spied(one))
        return self

    def __exit__(self, *error: object) -> None:
        for name, one in self._own.items():
            setattr(self._module, name, one)

    def _spied(self, make: Any) -> Any:
        def spy(*args: Any, **named: Any) -> Any:
            self._made.append(named.get("position_ids") is not None)
            return make(*args, **named)

        return spy

    @property
    def documents(self) -> bool:
        return self._places and bool(self._made) and all(self._made)


class _Seen:
    """Observes a run of the model by hooks."""

    def __init__(self, model: Any, path: str, blocks: nn.ModuleList) -> None:
        self._model, self._path, self._blocks = model, path, blocks
        self._kind = str(model.config.model_type)
        self._inside = {id(module) for block in blocks for module in block.modules()}
        self._hooks: list[Any] = []
        self._passed_by: list[nn.Module] = []
        self._at = 0  # blocks that have begun; one more when the last has ended
        self._given: Tensor | None = None
        self._tuples: set[bool] = set()
        self._order: list[tuple[str, bool]] = []
        self._table: Tensor | None = None
        self._table_of = table_module(model)

    def watch(self) -> None:
        if self._table_of is not None:
            owner = self._model.get_submodule(self._table_of)
            own = owner.get_rel_embedding

            def table() -> Tensor:
                self._order.append((f"{self._table_of}.rel_embeddings", False))
                self._table = own()
                return self._table

            owner.get_rel_embedding = table
        for index, block in enumerate(self._blocks):
            self._hooks.append(block.register_forward_pre_hook(self._before(index), with_kwargs=True))
            self._hooks.append(block.register_forward_hook(self._after))
        for path, module in self._model.named_modules():
            if path.rpartition(".")[2] == EXPERTS and next(module.parameters(), None) is not None:
                module.forward = _passed_by
                self._passed_by.append(module)
            elif id(module) not in self._inside and next(module.parameters(recurse=False), None) is not None:
                self._hooks.append(module.register_forward_pre_hook(self._computed(path)))

    def forget(self) -> None:
        if self._table_of is not None:
            del self._model.get_submodule(self._table_of).get_rel_embedding
        for hook in self._hooks:
            hook.remove()
        for module in self._passed_by:
            del module.forward

    def _before(self, index: int) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
            if index != self._at:
                raise refused(self._kind, f"block {index} of {self._path} is computed out of turn")
            hidden = args[0] if args else kwargs.get("hidden_states")
            if index and hidden is not self._given:
                raise refused(self._kind, f"block {index} of {self._path} takes other values than the one before gives")
            rest = [*args[1:], *(value for name, value in kwargs.items() if value is not hidden)]
            if any(one.requires_grad and one is not self._table for one in _tensors(rest)):
                raise refused(self._kind, f"block {index} of {self._path} takes learnt values beside the hidden state")
            self._at += 1

        return hook

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        self._tuples.add(isinstance(output, tuple))
        self._given = output[0] if isinstance(output, tuple) else output

    def _computed(self, path: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            if 0 < self._at < len(self._blocks):
                raise refused(self._kind, f"{path} is computed between blocks")
            self._order.append((path, self._at > 0))

        return hook

    def anatomy(self, kind: str, documents: bool, classes: bool) -> Anatomy:
        """The anatomy that was observed. FarflungError if the model cannot be cut."""
        if self._at != len(self._blocks) or len(self._tuples) != 1:
            raise refused(kind, f"not every block of {self._path} is computed once")
        first = tuple(dict.fromkeys(path for path, late in self._order if not late))
        last = tuple(dict.fromkeys(path for path, late in self._order if late))
        output = None if classes else self._model.get_output_embeddings()
        heads = [path for path, module in self._model.named_modules() if module is output]
        heads += last[-1:] if classes and isinstance(self._model.get_submodule(last[-1]), nn.Linear) else []
        if not first or not last or last[-1] not in heads:
            raise refused(kind, "it has no embedding at its beginning, or no head at its end")
        known = {f"{path}." for path in (*first, *last, self._path)}
        for name, _ in self._model.named_parameters(remove_duplicate=False):
            if not any(name.startswith(path) for path in known):
                raise refused(kind, f"nothing is seen to compute with {name}")
        count, tuples = len(self._blocks), self._tuples.pop()
        return Anatomy(self._path, count, first, last, last[-1], tuples, documents, table=self._table_of)


def _passed_by(hidden: Tensor, *rest: Any, **named: Any) -> Tensor:
    return hidden.clone()


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from _tensors(list(values.values()))
    elif isinstance(values, (list, tuple)):
        for one in values:
            yield from _tensors(one)
