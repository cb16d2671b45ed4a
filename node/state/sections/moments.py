"""How an optimiser's moments are kept: in fp32 or bf16, beside the weights, in main memory or in a file.

The arithmetic is always fp32 on the device of the weights; moments in another dtype or place are read and written piece
by piece. The place changes no bit. In bf16 they are rounded stochastically: rounded to nearest, a second moment that
changes by a thousandth per step would never change (Gupta et al., 2015). The dither is a function of the step and the
element's index alone, so all members of a group round alike on every device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import xxhash
from torch import Tensor

from .mapped import zeros_in
from .vectors import zeros

STRETCH = 1 << 16
"""Elementwise arithmetic on a CPU takes so many elements at a time: they and the intermediate results stay in the
cache, and no temporary of the vector's length is allocated."""


@dataclass(frozen=True)
class Kept:
    """Names of the moments, the dtype that they are kept in, and whether they lie in main memory. ``factored``: they
    have the shapes of proto/words/moments.py, not the parameters'. ``folder``: where main memory is a file (mapped.py);
    None: it is not."""

    names: tuple[str, ...] = ()
    dtype: torch.dtype = torch.float32
    offload: bool = False
    factored: bool = False
    folder: Path | None = None

    def zeros(self, count: int, device: torch.device) -> dict[str, Tensor]:
        """Moments of ``count`` elements on ``device``, each [count]. FarflungError: the folder's disk is full."""
        if self.offload and self.folder is not None:
            return {name: zeros_in(self.folder, count, self.dtype) for name in self.names}
        where = torch.device("cpu") if self.offload else device
        if self.offload and device.type == "cuda":
            return {name: torch.zeros(count, dtype=self.dtype, pin_memory=True) for name in self.names}
        return {name: zeros(count, where, self.dtype) for name in self.names}


def opened(moments: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Pieces of moments for arithmetic, fp32 on ``device``; the same tensors if they are kept like that."""
    return {name: values.to(device, torch.float32) for name, values in moments.items()}


def closed(
    moments: Mapping[str, Tensor], values: Mapping[str, Tensor], place: int, step: int, later: bool = False
) -> None:
    """Write changed pieces from ``opened`` back into ``moments``. ``place``: the index of the piece's first element in
    the vector; ``step``: the number of steps, for the dither; ``later``: the caller waits for copies to main memory."""
    for name, kept in moments.items():
        if kept is values[name]:
            continue
        new = values[name]
        if kept.dtype == torch.bfloat16:
            new = rounded(new, dither(name, place, new.numel(), step, new.device))
        kept.copy_(new, non_blocking=later)


def rounded(values: Tensor, noise: Tensor) -> Tensor:
    """fp32 values rounded stochastically to bf16 by ``noise`` (int32, uniform below 2^16): unbiased, and the same bits
    on every device."""
    bits = values.view(torch.int32) + noise
    return (bits >> 16).to(torch.int16).view(torch.bfloat16)


def dither(name: str, place: int, count: int, step: int, device: torch.device) -> Tensor:
    """int32 [count], uniform below 2^16 over the steps: a fixed table plus an offset (modulo 2^16) that differs for
    each step and stretch."""
    starts = range(place, place + count, STRETCH)
    turns = [xxhash.xxh3_64_intdigest(f"{name}/{start}/{step}".encode()) & 0xFFFF for start in starts]
    table = noise_table(device)[: min(count, STRETCH)]
    noise = (table + column(turns, device)).bitwise_and_(0xFFFF)
    return noise.view(-1)[:count]


def column(turns: Sequence[int], device: torch.device) -> Tensor:
    """int32 [turns, 1] on the device."""
    offsets = torch.tensor(turns, dtype=torch.int32)
    if device.type == "cuda":  # the host does not wait for what the device does before
        offsets = offsets.pin_memory()
    return offsets.to(device, non_blocking=device.type == "cuda")[:, None]


@lru_cache(maxsize=8)
def noise_table(device: torch.device) -> Tensor:
    """int32 [STRETCH], uniform below 2^16: always the same."""
    random: Sequence[int] = np.random.Generator(np.random.Philox(1)).integers(0, 1 << 16, STRETCH).tolist()
    return torch.tensor(random, dtype=torch.int32, device=device)
