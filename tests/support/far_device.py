"""An emulated accelerator: tensors that say they are on ``FAR`` and mix with those of the CPU no more than CUDA's do.

    with far_device():
        x = torch.randn(8).to(FAR)
        x + torch.ones(8)          # RuntimeError: tensors of cuda:63 and of the CPU in one call of torch.add

The numbers are computed on the CPU. What CUDA allows goes: numbers and tensors without a dimension, places from the CPU
in ``x[places]``, ``copy_``. What it does not do by itself is refused: ``numpy()`` of a far tensor too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

FAR = torch.device("cuda", 63)
"""A device that no machine has, of a kind that codecs compute on."""


class Far(torch.Tensor):
    """A tensor on ``FAR``; its numbers lie in the memory of the CPU."""


def far(x: torch.Tensor) -> torch.Tensor:
    """The same memory, as a far tensor."""
    return x if isinstance(x, Far) else x.detach().as_subclass(Far)


def near(x: Any) -> Any:
    """The numbers of a far tensor, by an ordinary one; anything else as it is."""
    return x.as_subclass(torch.Tensor) if isinstance(x, Far) else x


WAITS = ("cpu", "item", "tolist", "__bool__", "__float__", "__int__", "__index__", "nonzero", "masked_select", "equal")
"""What waits for a device, when a far tensor is asked it; and so do copies that leave the device, and ``x[flags]``."""
_waited: list[str] | None = None


class _Device(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = dict(kwargs or {})
        tensors = [one for one in tree_flatten((args, keywords))[0] if isinstance(one, torch.Tensor)]
        there = [one for one in tensors if isinstance(one, Far)]
        name = getattr(func, "__name__", str(func))
        if func is torch.device:
            return func(*args, **keywords)
        if name == "__hash__":
            return id(args[0])
        if name == "__get__" and there:
            if func == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
                return FAR
            if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
                return True
        if name in ("__get__", "__set__"):
            return func(*args)  # of the tensor itself, not of a view: its gradient is its own
        if there and name in ("numpy", "__array__"):
            raise TypeError(f"can't convert a tensor of {FAR} to numpy: .cpu() copies it")
        asked = [one for one in (*args, *keywords.values()) if _is_device(one)]
        if there:
            self._check(name, args, tensors)
            _note(name, args, asked)
        moved = [_is_far(one) for one in asked]
        if any(moved):  # made or moved there
            args = tuple("cpu" if _is_far(one) else one for one in args)
            keywords = {key: "cpu" if _is_far(one) else one for key, one in keywords.items()}
        result = func(*tree_map(near, args), **tree_map(near, keywords))
        if name in ("to", "type_as") and not asked and len(tensors) > 1:
            moved = [isinstance(tensors[1], Far)]
        stays = bool(there) and name != "cpu" and not (asked and not any(moved))
        if name == "copy_" or (name.endswith("_") and not name.endswith("__")) or name == "__setitem__":
            return args[0] if name != "__setitem__" else None
        if not stays and not any(moved):
            return result
        return tree_map(lambda one: far(one) if isinstance(one, torch.Tensor) else one, result)

    @staticmethod
    def _check(name: str, args: Any, tensors: list[torch.Tensor]) -> None:
        """RuntimeError for tensors of both places in one call, but for those that CUDA takes."""
        if name in ("copy_", "to", "type_as", "__get__", "__set__"):
            return
        first = args[0] if args else None
        if name in ("__getitem__", "__setitem__") and isinstance(first, Far):
            tensors = [first, *(one for one in args[2:] if isinstance(one, torch.Tensor))]
        if any(not isinstance(one, Far) and one.dim() > 0 for one in tensors):
            raise RuntimeError(f"tensors of {FAR} and of the CPU in one call of torch.{name}")


def _is_device(one: Any) -> bool:
    return isinstance(one, torch.device) or (isinstance(one, str) and one.partition(":")[0] in ("cpu", "cuda", "meta"))


def _is_far(one: Any) -> bool:
    return _is_device(one) and torch.device(one) == FAR


def _note(name: str, args: Any, asked: list[Any]) -> None:
    if _waited is None:
        return
    leaves = name == "to" and bool(asked) and not any(_is_far(one) for one in asked)
    leaves |= name == "copy_" and not isinstance(args[0], Far)
    flags = name in ("__getitem__", "__setitem__") and any(
        isinstance(one, Far) and one.as_subclass(torch.Tensor).dtype == torch.bool for one in tree_flatten(args[1:])[0]
    )
    if name in WAITS or leaves or flags:
        _waited.append(name)


@contextmanager
def counted() -> Iterator[list[str]]:
    """The names of the calls, while it lasts, that wait for the far device."""
    global _waited
    _waited = []
    try:
        yield _waited
    finally:
        _waited = None


@contextmanager
def far_device() -> Iterator[torch.device]:
    """While it lasts, ``FAR`` is a device of torch."""
    with _Device():
        yield FAR
