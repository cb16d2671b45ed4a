"""Distributes a budget of bits over blocks."""

from __future__ import annotations

import numpy as np
import torch


def spend(energy: torch.Tensor, errors: tuple[float, ...], widths: tuple[int, ...], budget: float) -> torch.Tensor:
    """uint8 on the CPU: for each block an index in the rising ``widths``, so that the mean width is at most ``budget``
    and the sum of energy * errors[index] is least. If the rest of the budget is not enough for all blocks that are
    next, the first ones get it.

    energy: fp64, not negative. The gain of a bit must fall from width to width. The choice depends only on comparisons
    and single products, so it is the same on all devices.
    """
    values = energy.cpu().numpy()
    count, width = len(values), np.array(widths)
    step = np.diff(width) / -np.diff(np.array(errors))  # the next width where a block's energy is over step * price
    ordered = np.sort(values)

    def total(price: float) -> int:
        above = count - np.searchsorted(ordered, price * step, side="right")
        return int(widths[0] * count + (above * np.diff(width)).sum())

    def at(price: float) -> np.ndarray:
        chosen: np.ndarray = (values[:, None] > price * step).sum(1).astype(np.uint8)
        return chosen

    left = int(budget * count)
    low, high = -1, int(np.float64(1e300).view(np.int64))  # of bits of prices: their order is that of the numbers
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if total(float(np.int64(middle).view(np.float64))) <= left else (middle, high)
    price = float(np.int64(high).view(np.float64))
    choice = at(price)
    if low >= 0:
        more = at(float(np.int64(low).view(np.float64)))
        extra = np.cumsum(width[more] - width[choice])
        choice = np.where(extra <= left - total(price), more, choice)
    return torch.from_numpy(choice)
