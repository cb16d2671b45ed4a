"""Trials: a view's first steps compute with other microbatches or recompute, and the fastest stays.

A plan chooses both by arithmetic. Where the job says "auto", the view's first steps try that choice and its neighbours
in turn, so that whatever slows the machine for a moment slows all of them, and each trial's last step is followed by
its own next one. The first cycle is not counted: it compiles, and takes memory that later steps use again. All nodes
know each step's trial from the plan, so nobody is asked. A trial changes only how a pipeline cuts its share of a step:
the samples of the step, of the pipeline, and the weights of the contributions stay.
"""

from __future__ import annotations

from dataclasses import dataclass

CYCLES, UNCOUNTED = 4, 1
"""How often each trial is computed, and how many of these times are not counted."""


@dataclass(frozen=True)
class Trial:
    """microbatch: samples. recompute: None where the job says it. in_flight: as in a plan."""

    microbatch: int
    recompute: bool | None = None
    in_flight: tuple[tuple[int, ...], ...] = ()

    @property
    def name(self) -> str:
        """In words."""
        again = {None: "", True: " and forwards computed again", False: " and nothing computed again"}[self.recompute]
        return f"microbatch {self.microbatch}{again}"


@dataclass(frozen=True)
class Tuning:
    """trials: what a view's first steps try, the plan's own choice first; empty: nothing, or no longer. why: what was
    measured, and why other choices are not tried. broken: how often nodes were lost while a trial was computed.
    measured: the plan's choice was compared with others, and stays in later plans of the run."""

    trials: tuple[Trial, ...] = ()
    why: str = ""
    broken: int = 0
    measured: bool = False

    @property
    def steps(self) -> int:
        """The number of steps that the trials take."""
        return CYCLES * len(self.trials)

    def at(self, step: int) -> int | None:
        """The index of the trial of a view's step, counted from 1; None: the plan's own choice, no trial."""
        if not 0 < step <= self.steps:
            return None
        cycle, place = divmod(step - 1, len(self.trials))
        return len(self.trials) - 1 - place if cycle % 2 else place
