"""Which samples a step trains, and which pipeline trains which of them: pure functions of data that every node has.

The training stream is endless: position q belongs to epoch q // samples and holds sample
``shuffled(q % samples, seed, epoch, samples)``. The order depends on (seed, epoch) alone, never on the cluster.

A view starts after step ``Position.step``. It first trains the positions of ``redo`` (those that an interrupted view
took from the stream and did not finish), then continues at ``cursor``. Each step takes ``batch`` positions, so the
batch is the same whichever nodes join or leave, and no node has to ask for sample ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Position:
    """The position in the stream from which a view continues."""

    step: int = 0
    """Last finished step; the view's first step is ``step + 1``."""
    cursor: int = 0
    """Positions below this one are trained, or in ``redo``."""
    redo: tuple[int, ...] = field(default=())
    """Positions to train again, before the stream continues."""

    def positions(self, step: int, batch: int) -> list[int]:
        """The ``batch`` stream positions of a step of this view."""
        start = (step - self.step - 1) * batch
        if start < 0:
            raise ValueError(f"step {step} is before this view, which begins with step {self.step + 1}")
        again = list(self.redo[start : start + batch])
        fresh = self.cursor + max(0, start - len(self.redo))
        return again + list(range(fresh, fresh + batch - len(again)))

    def after(self, step: int, batch: int, unfinished: Sequence[int] = ()) -> "Position":
        """The next view's Position, if this view ends after ``step`` with some positions not finished."""
        taken = (step - self.step) * batch
        rest = self.redo[taken:]
        cursor = self.cursor + max(0, taken - len(self.redo))
        return Position(step, cursor, tuple(unfinished) + tuple(rest))

    def last_step(self, total: int, batch: int) -> int:
        """The step with which ``total`` positions of the stream are trained and nothing is left to redo."""
        left = len(self.redo) + max(0, total - self.cursor)
        return self.step + -(-left // batch)


def runs_of(positions: Sequence[int]) -> list[int]:
    """Positions, in their order, as runs of consecutive numbers: for each run its distance from the end of the one
    before, and its length. A run takes a few bytes, where a list of all positions would take megabytes."""
    values = np.array(positions, dtype=np.int64)
    if not values.size:
        return []
    begins = np.flatnonzero(np.diff(values, prepend=values[0] - 2) != 1)
    lengths = np.diff(np.append(begins, values.size))
    starts = values[begins]
    gaps = starts - np.append(0, (starts + lengths)[:-1])
    found: list[int] = np.stack([gaps, lengths], axis=1).reshape(-1).tolist()
    return found


def of_runs(runs: Sequence[int], most: int) -> tuple[int, ...]:
    """The inverse of ``runs_of``. ValueError: the list is malformed, or has more than ``most`` positions."""
    gaps, lengths = np.array(runs[::2], dtype=np.int64), np.array(runs[1::2], dtype=np.int64)
    if len(gaps) != len(lengths) or (lengths.size and (lengths.min() < 1 or lengths.max() > most)):
        raise ValueError("positions to train again that are no runs")
    if int(lengths.sum()) > most:
        raise ValueError(f"{int(lengths.sum())} positions to train again, of {most}")
    if not gaps.size:
        return ()
    before = np.append(0, np.cumsum(lengths)[:-1])
    starts = np.cumsum(gaps) + before
    within = np.arange(int(lengths.sum())) - np.repeat(before, lengths)
    found: list[int] = (np.repeat(starts, lengths) + within).tolist()
    return tuple(found)


ORDER = 2
"""Version of the order of samples. A run continues only in the order with which it began: with another one, some
samples would come twice and others not at all. Version 1 sorted random words, one epoch at a time."""

_ROUNDS = 8
_FEWEST_BITS = 3  # bits of a half: a Feistel network over fewer numbers mixes badly


def shuffled(positions: npt.ArrayLike, seed: int, epoch: int, samples: int) -> npt.NDArray[np.int64]:
    """The samples at ``positions`` (0 <= position < samples, any shape) of an epoch, int64 of the same shape.

    A keyed bijection of range(samples), computed for each position alone, so that an epoch of any size takes no memory:
    a balanced Feistel network (Luby and Rackoff 1988) of 8 rounds over the smallest even number of bits that holds
    ``samples``. It is applied again to a result that is too large until the result is below ``samples`` (cycle walking:
    Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002), on average at most four times from 17
    samples on. A round mixes one half with its key by the finaliser of SplitMix64 (Steele, Lea and Flood 2014). It uses
    only integers, so the result is the same on every machine and with every numpy.
    """
    values = np.array(positions, dtype=np.uint64)
    if values.size and int(values.max()) >= samples:
        raise ValueError(f"position {int(values.max())} is not in an epoch of {samples} samples")
    bits = max(_FEWEST_BITS, -(-(samples - 1).bit_length() // 2))
    keys = _round_keys(seed, epoch)
    flat = values.reshape(-1)
    outside = np.arange(flat.size)
    while outside.size:
        flat[outside] = _feistel(flat[outside], keys, bits)
        outside = outside[flat[outside] >= samples]
    return flat.reshape(values.shape).astype(np.int64)


def _feistel(values: npt.NDArray[np.uint64], keys: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    """A bijection of the numbers below ``2**(2 * bits)``."""
    half, mask = np.uint64(bits), np.uint64(2**bits - 1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & mask)
    return (left << half) | right


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser; arrays of uint64 wrap around."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@lru_cache(maxsize=16)
def _round_keys(seed: int, epoch: int) -> npt.NDArray[np.uint64]:
    """Keys of the rounds, uint64 of shape [8]."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    state = np.array([seed & (2**64 - 1)], dtype=np.uint64)
    state = _mix(_mix(state + golden) ^ np.uint64(epoch))
    return _mix(state + golden * np.arange(1, _ROUNDS + 1, dtype=np.uint64))


@dataclass(frozen=True)
class Mixture:
    """Sources of samples, numbered one after the other, that are drawn by weight. In every ``block`` of positions each
    source is drawn exactly as often as its weight says, in an order that the seed decides. Each source has epochs of
    its own, so none of its samples comes twice before all have come once. All this is a function of the position, so a
    resumed run draws the same samples as an uninterrupted one.

    ``parts``: for each source (samples, positions of a block).
    """

    parts: tuple[tuple[int, int], ...]
    block = 1000

    @staticmethod
    def of(samples: Sequence[int], weights: Sequence[float]) -> "Mixture":
        """The mixture for weights, which are rounded to thousandths, at least one each; the remaining thousandths go to
        the largest remainders."""
        wanted = np.array(weights, dtype=np.float64) / sum(weights) * Mixture.block
        draws = np.maximum(np.floor(wanted), 1).astype(np.int64)
        while (missing := Mixture.block - int(draws.sum())) != 0:
            draws[int(np.argmax(wanted - draws)) if missing > 0 else int(np.argmax(draws))] += np.sign(missing)
        return Mixture(tuple(zip(map(int, samples), draws.tolist(), strict=True)))

    @property
    def samples(self) -> int:
        """The number of samples of all sources."""
        return sum(samples for samples, _ in self.parts)


def sample_ids(positions: Sequence[int], seed: int, samples: "int | Mixture") -> list[int]:
    """The sample at each position of the stream."""
    return [int(one) for one in _sample_ids(np.array(positions, dtype=np.int64), seed, samples)]


def _mixed(positions: npt.NDArray[np.int64], seed: int, mixture: Mixture) -> npt.NDArray[np.int64]:
    slots = _sample_ids(positions, seed, mixture.block)
    blocks = positions // mixture.block
    ids = np.empty_like(positions)
    slot = first = 0
    for number, (samples, draws) in enumerate(mixture.parts, 1):
        here = (slots >= slot) & (slots < slot + draws)
        own = (seed + number * 0x9E3779B97F4A7C15) % 2**63
        ids[here] = first + _sample_ids(blocks[here] * draws + slots[here] - slot, own, samples)
        slot, first = slot + draws, first + samples
    return ids


def _sample_ids(positions: npt.NDArray[np.int64], seed: int, samples: "int | Mixture") -> npt.NDArray[np.int64]:
    if isinstance(samples, Mixture):
        return _mixed(positions, seed, samples)
    epochs, within = np.divmod(positions, samples)
    ids = np.empty_like(within)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        ids[here] = shuffled(within[here], seed, int(epoch), samples)
    return ids


def assign(samples: Sequence[int], microbatches: Sequence[int], microbatch: int) -> list[list[int]]:
    """Indices into ``samples`` that each pipeline trains, ``microbatches[d] * microbatch`` for pipeline d.

    A sample goes preferably to the pipeline that its own hash selects, so that it meets the same AQ-SGD buffers in
    every epoch; samples that do not fit there fill the other pipelines in order. The sizes are exactly the plan's
    shares.
    """
    found = _assigned(np.array(samples, dtype=np.int64), microbatches, microbatch)
    return [[int(one) for one in own] for own in found]


def _assigned(
    samples: npt.NDArray[np.int64], microbatches: Sequence[int], microbatch: int
) -> list[npt.NDArray[np.int64]]:
    room = [count * microbatch for count in microbatches]
    if sum(room) != len(samples):
        raise ValueError(f"{len(samples)} samples, but the plan's shares add up to {sum(room)}")
    edges = np.cumsum(room) / max(1, sum(room))
    keys = (samples.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    hashed = keys.astype(np.float64) * 2.0**-64
    homes = np.minimum(np.searchsorted(edges, hashed, side="right"), len(room) - 1)
    order = np.argsort(homes, kind="stable")
    starts = np.searchsorted(homes[order], np.arange(len(room) + 1))
    mine = [order[starts[home] : starts[home + 1]] for home in range(len(room))]
    homeless = np.sort(np.concatenate([own[size:] for own, size in zip(mine, room, strict=True)]))
    taken, found = 0, []
    for own, size in zip(mine, room, strict=True):
        lacks = size - min(len(own), size)
        found.append(np.sort(np.append(own[:size], homeless[taken : taken + lacks])))
        taken += lacks
    return found


def unfinished(
    position: Position,
    finished: Sequence[int],
    step: int,
    microbatches: Sequence[int],
    microbatch: int,
    seed: int,
    *,
    samples: "int | Mixture",
) -> list[int]:
    """Positions that steps up to ``step`` took and that their pipeline did not finish.

    Pipeline d has finished everything up to step ``finished[d]``; the list is what a new view has to redo.
    """
    found = unfinished_of_each(position, finished, step, microbatches, microbatch, seed, samples=samples)
    return sorted(one for own in found for one in own)


def unfinished_of_each(
    position: Position,
    finished: Sequence[int],
    step: int,
    microbatches: Sequence[int],
    microbatch: int,
    seed: int,
    *,
    samples: "int | Mixture",
) -> list[list[int]]:
    """``unfinished``, pipeline by pipeline."""
    batch = sum(microbatches) * microbatch
    first = max(min(finished, default=step), position.step) + 1
    again: list[list[npt.NDArray[np.int64]]] = [[] for _ in microbatches]
    if first > step:
        return [[] for _ in microbatches]
    # All steps at once, so that a million samples do not block the coordinator's event loop.
    taken, before = (step - first + 1) * batch, (first - position.step - 1) * batch
    redone = np.array(position.redo[before : before + taken], dtype=np.int64)
    fresh = position.cursor + max(0, before - len(position.redo))
    positions = np.concatenate([redone, np.arange(fresh, fresh + taken - len(redone), dtype=np.int64)])
    ids = _sample_ids(positions, seed, samples)
    for number in range(first, step + 1):
        here = slice((number - first) * batch, (number - first + 1) * batch)
        shares = _assigned(ids[here], microbatches, microbatch)
        for own, done, share in zip(again, finished, shares, strict=True):
            if done < number:
                own.append(positions[here][share])
    return [np.concatenate(own).tolist() if own else [] for own in again]
