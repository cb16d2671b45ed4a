"""``avq``: the best levels for each vector (QUIVER, Ben Basat et al., NeurIPS 2024).

It is unbiased: each value is rounded at random to one of the two levels around it. The levels are values of the vector,
including its least and its largest, chosen by dynamic programming over prefix sums. The fast variant chooses among the
edges of a histogram's bins, with each bin's true moments; its error is larger by a fraction of a percent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..blobs.pieces import Piece
from ..blobs.wire import Header, Reader
from ..codec import bytes_tensor, piece
from ..cpu import dispatch as fast
from ..cpu.calls import fitted as loops
from ..cpu.calls import tables as tabled
from ..errors import CodecError
from ..primitives import philox, rotation
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, unpack
from ..primitives.scales import divided
from ..quantizers.dithered import LARGEST
from ..quantizers.looped import Looped, Put
from ..specs.spec import Spec

_BINS = 2048
_SAMPLED = 18
"""For vectors longer than 2^19 values, the levels are chosen from about 2^18 of them."""
_NO_LEVEL = "the blob has a level that is not there"


def optimal_levels(
    values: np.ndarray, counts: np.ndarray, first: np.ndarray, second: np.ndarray, levels: int, quick: bool = False
) -> np.ndarray:
    """The indices (rising, into ``values``) of at most ``levels`` levels of least total variance.

    values: rising candidates ``[m]``; counts, first, second: prefix sums ``[m]`` of how many inputs are at most each
    candidate, of their sum and of their squares. The cost obeys the quadrangle inequality, so each layer is solved by
    divide and conquer, all intervals of a depth at once: O(levels * m log m). quick: use the compiled loops (the same
    result).
    """
    m = len(values)
    if m <= levels:
        return np.arange(m)

    def cost(k: np.ndarray, j: np.ndarray) -> np.ndarray:
        total: np.ndarray = (
            -values[j] * values[k] * (counts[j] - counts[k])
            + (values[j] + values[k]) * (first[j] - first[k])
            - (second[j] - second[k])
        )
        return total

    choices = []
    if quick:
        choices = loops.layers(values, counts, first, second, levels)
    else:
        best = cost(np.zeros(m, np.int64), np.arange(m))
        for _ in range(levels - 2):
            best, choice = _layer(best, cost, m)
            choices.append(choice)
    path = [m - 1]
    for choice in reversed(choices):
        path.append(int(choice[path[-1]]))
    return np.unique([0, *path])


def _layer(best: np.ndarray, cost, m: int) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[no-untyped-def]
    out, choice = np.full(m, np.inf), np.zeros(m, np.int64)
    low, high = np.array([0]), np.array([m - 1])
    left, right = np.array([0]), np.array([m - 1])
    while len(low):
        middle = (low + high) // 2
        stop = np.minimum(right, middle)
        width = stop - left + 1
        starts = np.concatenate([[0], np.cumsum(width)[:-1]])
        k = np.arange(int(width.sum())) - np.repeat(starts - left, width)
        value = best[k] + cost(k, np.repeat(middle, width))
        least = np.minimum.reduceat(value, starts)
        at = np.flatnonzero(value == np.repeat(least, width))
        owner = np.searchsorted(starts, at, side="right") - 1
        _, unique = np.unique(owner, return_index=True)
        pick = k[at[unique]]
        out[middle], choice[middle] = least, pick
        go_left, go_right = low < middle, middle < high
        low, high, left, right = (
            np.concatenate([low[go_left], middle[go_right] + 1]),
            np.concatenate([middle[go_left] - 1, high[go_right]]),
            np.concatenate([left[go_left], pick[go_right]]),
            np.concatenate([pick[go_left], right[go_right]]),
        )
    return out, choice


class Adaptive(Looped):
    """bits; method exact or fast; rotate=true puts a random rotation before (blocks of the whole vector)."""

    keyed = True

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.bits, self.exact, self.rotate = spec.number("bits"), spec.word("method") == "exact", spec.flag("rotate")

    def levels(self, x: torch.Tensor) -> torch.Tensor:
        """At most 2^bits rising fp32 levels for a finite fp32 vector; for a long vector the inner levels come from an
        evenly spaced sample."""
        count, quick = 1 << self.bits, x.device.type == "cpu" and fast.worth(x.numel())
        ends = torch.stack(torch.aminmax(x)).cpu()
        low, high = np.float64(ends[0]), np.float64(ends[1])
        if low == high:
            return ends[:1]
        span = high - low
        if self.exact or x.numel() <= _BINS:
            ordered, times = np.unique(x.cpu().numpy(), return_counts=True)
            scaled = (ordered.astype(np.float64) - low) / span
            sums = np.cumsum(scaled * times), np.cumsum(scaled**2 * times)
            chosen = optimal_levels(scaled, np.cumsum(times), *sums, count, quick)
            return torch.from_numpy(np.asarray(ordered[chosen], np.float32))
        sample = x[:: max(1, x.numel() >> _SAMPLED)].cpu().numpy()
        scaled = (sample.astype(np.float64) - low) / span
        index = np.minimum(np.ceil(scaled * _BINS).astype(np.int64), _BINS)
        times = np.bincount(index, minlength=_BINS + 1)
        moments = np.bincount(index, scaled, _BINS + 1), np.bincount(index, scaled**2, _BINS + 1)
        places = np.arange(_BINS + 1) / _BINS
        keep = times > 0
        keep[0] = keep[-1] = True
        total = np.cumsum(times), np.cumsum(moments[0]), np.cumsum(moments[1])
        prefix = total[0][keep], total[1][keep], total[2][keep]
        chosen = optimal_levels(places[keep], *prefix, count, quick)
        levels = (low + places[keep][chosen] * span).astype(np.float32)
        levels[0], levels[-1] = ends.numpy()
        return torch.from_numpy(np.unique(levels))

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        y = x
        if self.rotate:
            parts = [
                divided(rotation.forward(rotation.rows_of(x, s), s, Key(key.seed, key.step)).view(-1), s.size**0.5)
                for s in rotation.layout(x.numel(), 0)
            ]
            y = torch.cat(parts).clamp(-LARGEST, LARGEST)
        table = self.levels(y).to(x.device)
        if len(table) > 1 and x.device.type == "cpu" and fast.worth(y.numel()):
            return [bytes([len(table) - 1]), piece(table), piece(loops.rounded(y, table, self.bits, key.dither))]
        if len(table) > 1:
            index = (torch.searchsorted(table, y, right=True) - 1).clamp(0, len(table) - 2)
            low, high = table[index].double(), table[index + 1].double()
            chance = (y.double() - low) / (high - low)
            codes = (index + (philox.uniform(y.numel(), key.dither, 0, 0, x.device) < chance)).to(torch.uint8)
        else:
            codes = torch.zeros(y.numel(), dtype=torch.uint8, device=x.device)
        return [bytes([len(table) - 1]), piece(table), piece(pack(codes, self.bits))]

    def opened(self, reader: Reader, header: Header) -> Put:
        n = header.elements
        size = reader.byte() + 1
        table_bytes, packed = reader.take(4 * size), reader.take(packed_size(n, self.bits))
        table = bytes_tensor(table_bytes, torch.float32)
        fine = size == 1 << self.bits or int(unpack(bytes_tensor(packed, torch.uint8), n, self.bits).max()) < size
        if not fine or not bool(torch.isfinite(table).all()):
            raise CodecError(_NO_LEVEL)
        table = torch.nn.functional.pad(table, (0, (1 << self.bits) - size))
        return lambda out, weight: tabled.add_table(out, packed, table, torch.ones(1), n, self.bits, weight)

    def quick(self, count: int, device: torch.device) -> bool:
        return not self.rotate and super().quick(count, device)

    def plain(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        n = header.elements
        count = rotation.coordinates(n, 0) if self.rotate else n
        size = reader.byte() + 1
        table_bytes, packed = reader.take(4 * size), reader.take(packed_size(count, self.bits))
        table = bytes_tensor(table_bytes, torch.float32, device)
        codes = unpack(bytes_tensor(packed, torch.uint8, device), count, self.bits).to(torch.int64)
        if not bool(torch.isfinite(table).all()) or int(codes.max()) >= size:
            raise CodecError(_NO_LEVEL)
        y = table[codes]
        if not self.rotate:
            return y
        out = torch.empty(n, device=device)
        for segment in rotation.layout(n, 0):
            rows = y[segment.code : segment.code + segment.rows * segment.size].view(segment.rows, segment.size)
            rows = divided(rotation.backward(rows, segment, self._key(header)), segment.size**0.5)
            rotation.put_rows(out, segment, rows.clamp(-LARGEST, LARGEST))
        return out
