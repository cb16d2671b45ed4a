"""How much memory torch keeps of a computation for its backward pass, counted by saved-tensor hooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Kept:
    """Counts the bytes that are kept, each storage once."""

    def __init__(self, own: Iterable[Tensor]) -> None:
        """``own``: tensors that do not count, because they exist in any case (parameters and buffers)."""
        self._seen = {_identity(tensor) for tensor in own}
        self._held: list[Tensor] = []  # kept alive, so that no other tensor gets the same storage address
        self.bytes = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count the tensors that computations in this context keep."""
        with torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor):
            yield

    def _keep(self, tensor: Tensor) -> Tensor:
        if (identity := _identity(tensor)) not in self._seen:
            self._seen.add(identity)
            self._held.append(tensor)
            self.bytes += tensor.untyped_storage().nbytes()
        return tensor


def _identity(tensor: Tensor) -> int:
    """A number that identifies a tensor's storage; a storage on the meta device has no address."""
    storage = tensor.untyped_storage()
    return storage._cdata if tensor.is_meta else storage.data_ptr()
