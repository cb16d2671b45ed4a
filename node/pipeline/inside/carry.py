"""Tensors between the ranks of an island, by torch.distributed.

Gloo sends no tensor of a card (it ends the process), so there each goes through main memory. Only tests have gloo
between cards: NCCL refuses two ranks of one card.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def send(tensor: Tensor, rank: int) -> None:
    """Send a tensor to ``rank``, which receives one of the same shape and dtype."""
    dist.send(_here(tensor).contiguous(), rank)


def receive(into: Tensor, rank: int) -> None:
    """Overwrite the contiguous ``into`` with the tensor that ``rank`` sends."""
    came = _room(into)
    dist.recv(came, rank)
    _put(came, into)


def broadcast(tensor: Tensor) -> None:
    """Overwrite the tensor with rank 0's, in all ranks. All of them must call it."""
    came = _here(tensor)
    dist.broadcast(came, 0)
    _put(came, tensor)


def reduce(tensor: Tensor) -> None:
    """Overwrite rank 0's tensor with the sum over all ranks; on the others its values are undefined afterwards."""
    came = _here(tensor)
    dist.reduce(came, 0)
    _put(came, tensor)


def _by_host(tensor: Tensor) -> bool:
    return tensor.device.type != "cpu" and dist.get_backend() == "gloo"


def _here(tensor: Tensor) -> Tensor:
    """The tensor, or a copy in main memory."""
    return tensor.cpu() if _by_host(tensor) else tensor


def _room(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype) if _by_host(tensor) else tensor


def _put(came: Tensor, into: Tensor) -> None:
    if came is not into:
        into.copy_(came)
