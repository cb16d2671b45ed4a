"""An emulated accelerator: tensors that say they are on ``FAR`` and mix with those of the CPU no more than CUDA's do.

    with far_device() as device:
        x = torch.randn(8).to(device)
        x + torch.ones(8)          # RuntimeError: tensors of cuda:63 and of the CPU in one call of torch.add

The numbers are computed on the CPU. What CUDA allows goes: numbers and tensors without a dimension, places from the CPU
in ``x[places]``, ``copy_``. What it does not do by itself is refused: ``numpy()`` of a far tensor too. A mode is of one
thread: each that computes enters it. ``waits`` counts what makes the host wait for the device.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

FAR = torch.device("cuda", 63)
"""A device that no machine has, of a kind that codecs compute on."""
OF_ITSELF = {"requires_grad_", "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "__setstate__"}
"""What is done to a tensor, and not to its values."""
READS = {"item", "tolist", "__bool__", "__float__", "__int__", "__index__", "equal", "allclose", "nonzero", "unique"}
READS |= {"masked_select", "is_nonzero", "bincount", "__contains__", "cpu", "argwhere"}
"""Calls that wait for the values of a far tensor."""
DIVIDES = {"div", "div_", "divide", "true_divide", "__truediv__", "__itruediv__"}
"""Calls that on CUDA multiply by the rounded reciprocal if the divisor is a number."""


_COUNTING = threading.Lock()
"""Several threads may count in one."""
_waited: list[str] | None = None


class Far(torch.Tensor):
    """A tensor on ``FAR``; its numbers lie in the memory of the CPU."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Where no mode is on, as in hooks of a backward pass."""
        return _call(func, args, dict(kwargs or {}), Counter())


def far(x: torch.Tensor) -> torch.Tensor:
    """The same memory, as a far tensor."""
    if isinstance(x, Far):
        return x
    if x.is_leaf and x.requires_grad:
        return x.detach().as_subclass(Far).requires_grad_()
    return x.as_subclass(Far)


def near(x: Any) -> Any:
    """The numbers of a far tensor, by an ordinary one; anything else as it is."""
    return x.as_subclass(torch.Tensor) if isinstance(x, Far) else x


class _Device(TorchFunctionMode):
    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, dict(kwargs or {}), self._waits)


def _call(func: Any, args: Any, keywords: dict[str, Any], waits: Counter[str]) -> Any:
    """A call of torch, as the far device answers it."""
    with torch._C.DisableTorchFunctionSubclass():
        return _answer(func, args, keywords, waits)


def _answer(func: Any, args: Any, keywords: dict[str, Any], waits: Counter[str]) -> Any:
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
        found = func(*args)
        return far(found) if isinstance(found, torch.Tensor) else found
    if name in ("__get__", "__set__") or name in OF_ITSELF:
        return func(*args, **keywords)  # of the tensor itself, not of a view: its gradient is its own
    if there and name in ("numpy", "__array__", "data_ptr"):
        raise TypeError(f"can't convert a tensor of {FAR} to numpy: .cpu() copies it")
    asked = [one for one in (*args, *keywords.values()) if _is_device(one)]
    if there:
        _check(name, args, tensors)
    moved = [_is_far(one) for one in asked]
    if any(moved):  # made or moved there
        args = tuple("cpu" if _is_far(one) else one for one in args)
        keywords = {key: "cpu" if _is_far(one) else one for key, one in keywords.items()}
    if name == "pin_memory":
        return args[0]
    keywords.pop("pin_memory", None)
    if there and name in DIVIDES and not keywords and _is_number(args[1]) and args[0].is_floating_point():
        result = near(args[0]).mul(1 / torch.tensor(args[1], dtype=args[0].dtype))
        if name in ("div_", "__itruediv__"):
            near(args[0]).copy_(result)
    else:
        result = func(*tree_map(near, args), **tree_map(near, keywords))
    if name in ("to", "type_as") and not asked and len(tensors) > 1:
        moved = [isinstance(tensors[1], Far)]
    stays = bool(there) and name != "cpu" and not (asked and not any(moved))
    _count(name, args, keywords, tensors, stays or any(moved), waits)
    if name == "copy_" or (name.endswith("_") and not name.endswith("__")) or name == "__setitem__":
        return (args or tensors)[0] if name != "__setitem__" else None
    if keywords.get("out") is not None:
        return keywords["out"]
    if not stays and not any(moved):
        return result
    return tree_map(lambda one: far(one) if isinstance(one, torch.Tensor) else one, result)


def _is_number(one: Any) -> bool:
    return isinstance(one, int | float)


def _count(name: str, args: Any, keywords: Any, tensors: list[torch.Tensor], stays: bool, waits: Counter[str]) -> None:
    """Note what the host waits for: values that come to it, and sizes that depend on values. A copy to the device that
    blocks is one too, in name ``up``."""
    first = tensors[0] if tensors else None
    was_far, found = isinstance(first, Far), ""
    if was_far and name in READS:
        found = name
    elif was_far and name in ("__getitem__", "__setitem__") and any(_is_mask(one) for one in tensors[1:]):
        found = "mask"
    elif name in ("to", "type_as") and first is not None and was_far != stays:
        found = "to" if not stays else "" if keywords.get("non_blocking") else "up"
    elif name == "copy_" and keywords.get("non_blocking"):
        found = ""  # from or to pinned memory; whoever needs it waits for the device's own mark
    elif name in ("copy_", "__setitem__") and isinstance(args[-1], torch.Tensor):
        found = "" if was_far == isinstance(args[-1], Far) else "up" if was_far else "copy_"
    elif name in ("tensor", "as_tensor") and stays:
        found = "up"
    if found:
        with _COUNTING:
            waits[found] += 1
            if _waited is not None and found != "up":
                _waited.append(name)


def _is_mask(one: torch.Tensor) -> bool:
    return one.dtype == torch.bool and one.dim() > 0


def _check(name: str, args: Any, tensors: list[torch.Tensor]) -> None:
    """RuntimeError for tensors of both places in one call, but for those that CUDA takes."""
    if name in ("copy_", "to", "type_as", "__get__", "__set__"):
        return
    first = args[0] if args else None
    if name == "__setitem__" and not any(isinstance(one, torch.Tensor) for one in tree_flatten(args[1])[0]):
        return  # into a slice: a copy
    if name in ("__getitem__", "__setitem__") and isinstance(first, Far):
        tensors = [first, *(one for one in args[2:] if isinstance(one, torch.Tensor))]
    if any(not isinstance(one, Far) and one.dim() > 0 for one in tensors):
        raise RuntimeError(f"tensors of {FAR} and of the CPU in one call of torch.{name}")


def _is_device(one: Any) -> bool:
    return isinstance(one, torch.device) or (isinstance(one, str) and one.partition(":")[0] in ("cpu", "cuda", "meta"))


def _is_far(one: Any) -> bool:
    return _is_device(one) and torch.device(one) == FAR


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
def far_device(waits: Counter[str] | None = None) -> Iterator[torch.device]:
    """While it lasts, ``FAR`` is a device of torch in this thread."""
    with _Device(Counter() if waits is None else waits):
        yield FAR
