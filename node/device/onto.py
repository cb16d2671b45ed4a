"""Tensors from main memory to a node's device."""

from __future__ import annotations

import torch
from torch import Tensor


def onto(values: Tensor, device: torch.device) -> Tensor:
    """The same values on ``device``, in the same dtype.

    A copy from pinned memory is queued behind the device's earlier work; a copy from pageable memory would block the
    host until the device has finished that work.
    """
    if device.type != "cuda" or values.device.type != "cpu":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
