"""`codec = "auto"` and `overlap = "auto"` of updates: the least lossy codec whose round hides behind compute.

The choice is made for each group by its slowest link, because all members need the same result and wait for its last
byte. So the members of a group share one codec, and all groups share one overlap.

How much of the compute a round may fill is in room.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy

from ..networks.devices import Matrix
from ..plans import Plan
from ..timing.candidate import Candidate
from ..timing.estimate import Cut, Estimator
from ..timing.exchange import waits_of
from ..timing.lines import busy_seconds
from ..timing.seconds import FEW_LINES
from ..workloads.losses import loss_of
from ..workloads.workload import Workload
from .room import Room


@dataclass(frozen=True)
class UpdateChoice:
    """The codecs and the overlap that the plan chooses. For each position's group: codecs, its codec; bits, on the wire
    for each parameter; seconds, of its round; waits, those that are left of it after the last backward pass; hidden,
    seconds of compute between its beginning and its end in which its lines carry no activations. mode: of the workload.
    every: steps between two rounds of a weight. busy: activations take lines that rounds take, too."""

    codecs: tuple[str, ...]
    bits: tuple[float, ...]
    overlap: int
    seconds: tuple[float, ...]
    waits: tuple[float, ...]
    hidden: tuple[float, ...]
    mode: str
    every: int
    busy: bool = False

    @property
    def why(self) -> str:
        """One sentence; empty where there is no round."""
        if not any(self.seconds):
            return ""
        worst = max(range(len(self.seconds)), key=lambda at: (self.waits[at], self.seconds[at]))
        words = f"updates go as {self.codecs[worst]} with overlap {self.overlap}: a round of stage {worst} is expected "
        if not self.overlap:
            left, took = self.waits[worst], self.seconds[worst]
            hides = f"all but {left:.3g} s hidden by the backward pass" if left < took else "and nothing hides it"
            return words + f"to take {took:.3g} s, {hides}{self._cost(worst)}"
        short = ", more than it may with any codec of the ladder" if self.seconds[worst] > self.hidden[worst] else ""
        free = " while no activations take its lines" if self.busy else ""
        of = f"of the {self.hidden[worst]:.3g} s of compute that hide it{free}{short}"
        hidden = f"to take {self.seconds[worst]:.3g} s {of}"
        return words + hidden + self._cost(worst)

    def _cost(self, place: int) -> str:
        """What the codec costs in loss, where that was measured."""
        loss = loss_of(self.mode, self.every, self.codecs[place])
        if loss is None or loss.baseline:
            return ""
        return f"; in loss it cost {loss.words} where it was measured ({loss.source})"


def choose_updates(estimator: Estimator, found: Candidate, compute: float, current: Plan | None = None) -> UpdateChoice:
    """The codec of each position's group and the overlap of all, for a workload with an `update_ladder`.

    estimator: with the codecs that links between stages have. compute: seconds of a step's forwards and backwards.
    current: the plan in force. Its choice stays while it hides its rounds and no less lossy codec does, so that noise
    in measurements changes nothing.
    """
    workload = estimator.workload
    compute = compute / workload.reached
    names = [name for name, _ in workload.update_ladder]
    timed = [_rounds(estimator, found, bits) for _, bits in workload.update_ladder]
    rounds, waits = (numpy.array(column) for column in zip(*timed, strict=True))
    room = Room(workload.mode, workload.every, compute, _busy(estimator, found))
    overlap = room.overlap(waits) if workload.auto_overlap else workload.overlap
    chosen = room.rungs(waits, overlap)
    kept = _in_force(workload, names, current, found.cut.nodes)
    if kept is not None and kept[0] <= overlap and all(old <= new for old, new in zip(kept[1], chosen, strict=True)):
        took = (float(waits[at, place]) for place, at in enumerate(kept[1]))
        overlap, chosen = (
            kept if all(room.fits(each, kept[0], place, 1.0) for place, each in enumerate(took)) else (overlap, chosen)
        )
    seconds, left = (tuple(float(one[at, place]) for place, at in enumerate(chosen)) for one in (rounds, waits))
    picked = [workload.update_ladder[at] for at in chosen]
    codecs, bits = tuple(name for name, _ in picked), tuple(bits for _, bits in picked)
    every = workload.every * workload.fragments
    hidden = tuple(room.hidden(overlap, place) for place in range(len(chosen)))
    return UpdateChoice(codecs, bits, overlap, seconds, left, hidden, workload.mode, every, any(room.busy))


def _busy(estimator: Estimator, found: Candidate) -> tuple[float, ...]:
    """What activations take of the lines of each position's round; empty where the network is too large to count it."""
    if len(estimator.network) > FEW_LINES:
        return ()
    return tuple(busy_seconds(estimator, found.places, found.cut, found.microbatches).tolist())


def _rounds(estimator: Estimator, found: Candidate, bits: float) -> tuple[Matrix, Matrix]:
    """Of each position's round with so many bits for each parameter, float64 [nodes] each: its seconds, and those that
    a step waits for it after its last backward pass (with an overlap, or in mode delta, the same)."""
    cut = Cut(replace(estimator.workload, update_bits=bits), found.cut.stages, found.cut.chunks)
    return waits_of(estimator, replace(found, cut=cut))


def _in_force(
    workload: Workload, names: Sequence[str], current: Plan | None, nodes: int
) -> tuple[int, list[int]] | None:
    """The overlap in the plan in force, and for each position the index of its codec in the ladder; None where the
    job's ladder lacks one of these codecs."""
    if current is None or current.overlap is None or len(current.stages) < nodes:
        return None
    if not workload.auto_overlap and current.overlap != workload.overlap:
        return None
    found = [current.update_codec(place) for place in range(nodes)]
    if any(name not in names for name in found):
        return None
    return min(current.overlap, workload.every), [names.index(str(name)) for name in found]


def recorded(choice: UpdateChoice, chunks: int) -> dict[str, str]:
    """The codecs in the form of Plan.codecs: one key for all groups where their codecs are the same."""
    if len(set(choice.codecs)) == 1:
        return {"updates": choice.codecs[0]}
    return {f"updates of stage {stage}": name for stage, name in enumerate(choice.codecs * chunks)}
