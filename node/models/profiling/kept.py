"""What torch keeps of a computation for its backward pass, seen by the hooks through which it keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Kept:
    """Bytes that were kept, each storage once."""

    def __init__(self, own: Iterable[Tensor]) -> None:
        """``own``: what is there anyway, parameters and buffers."""
        self._seen = {_identity(tensor) for tensor in own}
        self._held: list[Tensor] = []  # or another tensor would get the storage's address
        self.bytes = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """What is computed in here counts."""
        with torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor):
            yield

    def _keep(self, tensor: Tensor) -> Tensor:
        if (identity := _identity(tensor)) not in self._seen:
            self._seen.add(identity)
            self._held.append(tensor)
            self.bytes += tensor.untyped_storage().nbytes()
        return tensor


def _identity(tensor: Tensor) -> int:
    """Of a tensor's storage; one on the meta device has no address."""
    storage = tensor.untyped_storage()
    return storage._cdata if tensor.is_meta else storage.data_ptr()
