"""Tensors between the ranks of an island, by torch.distributed.

Gloo sends no tensor of a card (it ends the process), so there each goes through main memory. Only tests have gloo
between cards: NCCL refuses two ranks of one card. NCCL sends only tensors of cards, so what lies in main memory
(``train.offload``) goes through the rank's card, piece by piece.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ...state.sections import vectors


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
    for piece in _pieces(tensor):
        came = _here(piece)
        dist.broadcast(came, 0)
        _put(came, piece)


def reduce(tensor: Tensor) -> None:
    """Overwrite rank 0's tensor with the sum over all ranks; on the others its values are undefined afterwards."""
    for piece in _pieces(tensor):
        came = _here(piece)
        dist.reduce(came, 0)
        _put(came, piece)


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    """Views of a long vector, alike on all ranks; anything else whole."""
    return torch.split(tensor, vectors.PIECE) if tensor.dim() == 1 and len(tensor) > vectors.PIECE else (tensor,)


def _by_card(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and dist.get_backend() == "nccl"


def _by_host(tensor: Tensor) -> bool:
    return tensor.device.type != "cpu" and dist.get_backend() == "gloo"


def _here(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where the backend can send it."""
    if _by_card(tensor):
        return tensor.to("cuda")
    return tensor.cpu() if _by_host(tensor) else tensor


def _room(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype) if _by_host(tensor) else tensor


def _put(came: Tensor, into: Tensor) -> None:
    if came is not into:
        into.copy_(came)
