"""Counts the large tensors that torch allocates."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

LARGE = 1 << 20
"""Bytes."""


class Allocations(TorchDispatchMode):
    """While it is on in a thread: the calls whose result lies in new memory of at least LARGE bytes, by name, in
    ``found``. What is written into memory that was there (in place, ``out=``, a view) is none."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [one for one in tree_flatten(result)[0] if isinstance(one, torch.Tensor) and _size(one) >= LARGE]
        if made:
            given = {_place(one) for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)}
            for one in made:
                if _place(one) not in given:
                    self._found[str(func)] += 1
        return result


def _size(one: torch.Tensor) -> int:
    return one.untyped_storage().nbytes() if one.layout == torch.strided and one.device.type != "meta" else 0


def _place(one: torch.Tensor) -> int:
    return one.untyped_storage().data_ptr() if one.layout == torch.strided and one.device.type != "meta" else 0
