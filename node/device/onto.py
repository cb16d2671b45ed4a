"""Tensors from main memory to a node's device."""

from __future__ import annotations

import torch
from torch import Tensor


def onto(values: Tensor, device: torch.device) -> Tensor:
    """The same values on ``device``, in the dtype they have.

    From pinned memory they follow what the device was told before; from any other the host would wait until it has done
    all of that.
    """
    if device.type != "cuda" or values.device.type != "cpu":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
