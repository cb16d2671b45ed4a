"""Trials: a view's first steps compute with other microbatches, recompute or offload, and the fastest stays.

A plan chooses these by arithmetic. Where the job says "auto", the view's first steps try that choice and its neighbours
in turn, so that whatever slows the machine for a moment slows all of them, and each trial's last step is followed by
its own next one. The first cycle is not counted: it compiles, and takes memory that later steps use again. All nodes
know each step's trial from the plan, so nobody is asked. A trial changes only how a pipeline cuts its share of a step,
and where the optimiser's moments lie: the samples of the step, of the pipeline, and the weights of the contributions
stay. Nodes move moments at the same time and wait for one another, so the first step after a move is not counted
either: the trial is computed once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

CYCLES, UNCOUNTED = 4, 1
"""How often each trial is computed, and how many of these times are not counted."""


@dataclass(frozen=True)
class Trial:
    """microbatch: samples. recompute: None where the job says it. in_flight, pieces: as in a plan. offload: the kind of
    ``train.offload``; None where all trials have the plan's."""

    microbatch: int
    recompute: bool | None = None
    in_flight: tuple[tuple[int, ...], ...] = ()
    offload: str | None = None
    pieces: tuple[int, ...] = ()

    def samples(self, pipeline: int) -> int:
        """Samples that a pipeline computes at once."""
        return self.microbatch // (self.pieces[pipeline] if self.pieces else 1)

    @property
    def name(self) -> str:
        """In words."""
        again = {None: "", True: " and forwards computed again", False: " and nothing computed again"}[self.recompute]
        lies = " (moments in main memory)" if self.offload == "moments" else ""
        return f"microbatch {self.microbatch}{' in pieces' if self.pieces else ''}{lies}{again}"


@dataclass(frozen=True)
class Tuning:
    """trials: what a view's first steps try, the plan's own choice first; empty: nothing, or no longer. why: what was
    measured, and why other choices are not tried. broken: how often nodes were lost while a trial was computed.
    measured: the plan's choice was compared with others, in this shape or in one before, and stays in later plans of
    the run. offload: the kind of ``train.offload`` that was compared with less in main memory, in this shape or in one
    before, and stays too; empty: none was."""

    trials: tuple[Trial, ...] = ()
    why: str = ""
    broken: int = 0
    measured: bool = False
    offload: str = ""

    @property
    def steps(self) -> int:
        """The number of steps that the trials take."""
        return len(self._order)

    def at(self, step: int) -> int | None:
        """The index of the trial of a view's step, counted from 1; None: the plan's own choice, no trial."""
        return self._order[step - 1][0] if 0 < step <= self.steps else None

    def counts(self, step: int) -> bool:
        """Whether what a view's step takes is counted."""
        return 0 < step <= self.steps and self._order[step - 1][1]

    @cached_property
    def _order(self) -> tuple[tuple[int, bool], ...]:
        """(the trial's index, whether it counts) of each step."""
        found: list[tuple[int, bool]] = []
        for cycle in range(CYCLES):
            places = range(len(self.trials))
            for at in reversed(places) if cycle % 2 else places:
                if found and self.trials[found[-1][0]].offload != self.trials[at].offload:
                    found.append((at, False))
                found.append((at, cycle >= UNCOUNTED))
        return tuple(found)
