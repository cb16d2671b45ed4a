"""What each device of an island holds of a stage, by the way in which they share it (``parallel.inside``).

A grid of rows x columns devices: rows share samples and parameters, columns share the blocks' matrices. ``ddp`` is rows
that share only samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .layers import stage_memory, state_memory, trained
from .offload import APART
from .workload import Layer, Workload

KINDS = ("ddp", "fsdp", "tp", "fsdp+tp")
"""The cheapest first: what all devices hold whole need not be gathered."""
PIECES = 8.0
"""Bytes of a parameter's weight and gradient in pieces, over all devices. The sections of such a stage (weights,
reference, gradient and moments as vectors) lie in main memory."""
WIDTHS = {False: 8.0, True: 7.75}
"""Values of the hidden state's width, in fp32 elements, that a block of which devices share the matrices keeps of each
token for its backward pass; True: under autocast in bf16."""


@dataclass(frozen=True, slots=True)
class RankNeed:
    """Bytes on one device of an island.

    parameters: weights and gradients, or its pieces of them. gathered: of the largest layer, while it is whole.
    sections: all else that rounds and the optimiser keep there. main: of the node's main memory, beside messages and
    what ``train.offload`` has there with one device; all of it is counted for the first device, although each one's
    process touches the sections that it keeps.
    """

    parameters: float
    gathered: float
    sections: float
    activations: float
    main: float = 0.0

    @property
    def device(self) -> float:
        """All bytes on the device."""
        return self.parameters + self.gathered + self.sections + self.activations

    def record(self) -> dict[str, int]:
        """Field name -> whole bytes, with the sum as "device"."""
        return {name: round(value) for name, value in {**asdict(self), "device": self.device}.items()}


def grid_of(kind: str, ranks: int, shares: int) -> tuple[int, int] | None:
    """(rows, columns) of an island of so many devices; None if its devices can't be arranged so. ``shares``: the
    matrices can be shared by each divisor of this number; 0: not at all.

    Of both, the columns are as few as possible: a column sums activations twice a block, and a row gathers parameters
    once a block.
    """
    if kind in ("ddp", "fsdp"):
        return ranks, 1
    if kind == "tp":
        return (1, ranks) if shares and shares % ranks == 0 else None
    fit = [count for count in range(2, ranks) if ranks % count == 0 and shares and shares % count == 0]
    return (ranks // fit[0], fit[0]) if fit else None


def kinds_of(job: Mapping[str, Any], shares: int) -> tuple[str, ...]:
    """The kinds among which a plan chooses with these tables of a job: its own, or what goes with its other keys."""
    model, train, updates = (job.get(name) or {} for name in ("model", "train", "updates"))
    inside = str((job.get("parallel") or {}).get("inside", "ddp"))
    if inside != "auto":
        return (inside,)
    whole = any(model.get(key) is not None for key in ("lora", "build", "parameters", "subspace"))
    whole = whole or train.get("task") == "classification" or bool(train.get("compile")) or bool(updates.get("judge"))
    if whole:
        return KINDS[:1]
    return KINDS[:2] if shares < 2 or model.get("dropout") else KINDS


def rank_needs(workload: Workload, layers: tuple[int, int], held: int, kind: str, ranks: int) -> tuple[RankNeed, ...]:
    """What each of ``ranks`` devices holds of layers [first, last] with ``held`` microbatches in flight. ValueError: so
    many can't be arranged so."""
    grid = grid_of(kind, ranks, workload.shares)
    if grid is None:
        raise ValueError(f"{ranks} devices can't share the matrices of this model")
    (rows, columns), here = grid, workload.layers[layers[0] : layers[1] + 1]
    count, frozen = trained(workload, *layers), 4.0 * sum(layer.frozen for layer in here)
    each = workload.optimizer_bytes + workload.round_bytes
    if ranks == 1 or kind == "ddp":
        small = _share(workload, ranks, 1)
        kept = stage_memory(replace(small, optimizer_bytes=0.0, round_bytes=0.0), *layers, held) - frozen
        if workload.offload in APART:  # each has a gradient and the weights to which it is added in main memory
            copies, main = state_memory(workload, *layers) + frozen, (ranks - 1) * PIECES * count
            return tuple(RankNeed(copies, 0.0, 0.0, kept, 0.0 if rank else main) for rank in range(ranks))
        beside = (each - PIECES) * count
        return tuple(RankNeed(PIECES * count + frozen, 0.0, 0.0 if rank else beside, kept) for rank in range(ranks))
    fullest = max(_moments(workload, layers, held, rows, columns), key=lambda need: need.device)
    main = 0.0 if workload.offload in APART else each * count  # there it lies in main memory without the island too
    return tuple(replace(fullest, main=0.0 if rank else main) for rank in range(ranks))


def _moments(workload: Workload, layers: tuple[int, int], held: int, rows: int, columns: int) -> Iterator[RankNeed]:
    """What a device that holds pieces has at each layer of the backward passes of a step's first two microbatches:
    while it computes the layer, and while it sums the layer's gradient.

    FSDP2 holds a layer's weights twice (as they came, and by parameter), already gathers the layer under it, and keeps
    the buffer of the sum of the layer above it.
    """
    first, last = layers
    small = _share(workload, rows, columns)
    own = [_pieces(workload, workload.layers[at], rows, columns) for at in range(first, last + 1)]
    if trained(workload, first, last) < sum(layer.parameters for layer in workload.layers[first : last + 1]):
        own[-1] = 0.0  # tied: the first layer has it
    micro, unit = small.microbatch, workload.activation_bytes
    insides = [(one.stored or 8 * one.activation) * micro + one.copies for one in small.layers[first : last + 1]]
    inputs = [small.layers[at - 1].activation * micro if at else 0 for at in range(first, last + 1)]
    boundary = max(inputs[0], small.layers[last].activation * micro)
    kept = inputs if workload.recompute else insides
    for in_flight in range(held, max(held - 2, 0), -1):
        for at in range(last - first, -1, -1):
            layer, present = small.layers[first + at], sum(own) if in_flight < held else sum(own[at + 1 :])
            stored = (in_flight - 1) * sum(kept) + sum(kept[:at]) + 2 * boundary
            busy = (stored + insides[at] + layer.working * micro) * unit
            weights = 4.0 * (sum(own) + present)
            if rows == 1:
                yield RankNeed(weights, 4.0 * own[at] * _is_block(workload, workload.layers[first + at]), 0.0, busy)
                continue
            mine, under, above = (
                _whole(workload, place, columns) if first <= place <= last else 0.0
                for place in (first + at, first + at - 1, first + at + 1)
            )
            half = 2.0 if layer.copies > 0 else 4.0  # gathered in bf16
            if first + at == len(workload.layers) - 1:  # the loss is computed before the head is gathered again
                yield RankNeed(weights, 0.0, 0.0, busy)
                busy -= layer.working * micro * unit
            yield RankNeed(weights, half * (3 * mine + under) + 4.0 * above, 0.0, busy)
            yield RankNeed(weights, half * (mine + under) + 4.0 * (mine + above), 0.0, stored * unit)


def _pieces(workload: Workload, layer: Layer, rows: int, columns: int) -> float:
    """The parameters of a layer of which one device has the pieces."""
    return layer.parameters / rows / (columns if _is_block(workload, layer) else 1)


def _whole(workload: Workload, at: int, columns: int) -> float:
    """The parameters of layer ``at`` while it is whole over the rows."""
    return _pieces(workload, workload.layers[at], 1, columns)


def _is_block(workload: Workload, layer: Layer) -> bool:
    return layer is not workload.layers[0] and layer is not workload.layers[-1]


def _share(workload: Workload, rows: int, columns: int) -> Workload:
    """The workload with the activations of one device."""
    share = -(-workload.microbatch // rows)

    def cut(layer: Layer) -> Layer:
        block = _is_block(workload, layer)
        if columns == 1:
            return replace(layer, copies=0) if rows > 1 and block else layer
        if not block:
            return layer
        stored = layer.stored or 8 * layer.activation
        whole = min(stored, round(WIDTHS[layer.copies > 0] * layer.activation))
        less = whole + math.ceil((stored - whole) / columns)
        stored = (stored + less) // 2 if workload.recompute else less  # computed again, more of it at once: measured
        copies = 0 if rows > 1 else layer.copies // columns
        return replace(layer, copies=copies, stored=stored, working=layer.working // columns)

    layers = tuple(cut(layer) for layer in workload.layers)
    return replace(workload, layers=layers, batch=share, microbatch=share, pipelines=None)
