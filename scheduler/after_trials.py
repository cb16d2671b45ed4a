"""The plan that follows from what the trials of a view have shown. Pure: from a plan and measured seconds to a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from .plans import Plan
from .trials import Trial
from .workloads.offload import NONE
from .workloads.settled import MICROBATCH_KEY, OFFLOAD_KEY, RECOMPUTE_KEY

FASTER = 0.05
"""Another trial replaces the plan's own choice if its steps take less time by this part, and by more than NOISE."""
NOISE = 2.0
"""How many times the deviation of a trial's steps from their median counts as noise. Of three equal choices, drawn with
three steps each that vary by 10 %, the plan's own is replaced in 9 of 100 views, and in 44 without this."""
CHANGE_STEPS = 2
"""A view change in which every node keeps its place costs at least so many steps: the one that its flush cuts off, and
the next view's first, which compiles or takes memory."""


@dataclass(frozen=True)
class Found:
    """What was measured of a trial: seconds of a step, and the most bytes that a device had allocated, 0 for not
    known. deviation: the median of how far its steps' seconds are from their median."""

    seconds: float
    peak: int = 0
    deviation: float = 0.0

    def words(self, trial: Trial) -> str:
        """In words."""
        peak = f" (up to {self.peak / 1e9:.3g} GB)" if self.peak else ""
        return f"{self.seconds:.3g} s with {trial.name}{peak}"


def found_of(steps: Sequence[tuple[float, int]]) -> Found:
    """What (seconds, bytes) of a trial's counted steps say: medians, because a round may fall on one of them."""
    usual = median(seconds for seconds, _ in steps)
    return Found(usual, max(peak for _, peak in steps), median(abs(seconds - usual) for seconds, _ in steps))


def decided(plan: Plan, found: Mapping[int, Found]) -> Plan:
    """The plan with the fastest of its trials, and without trials. found: of every trial, by its index. The plan's own
    choice stays unless another one is clearly faster."""
    tuning = plan.tuning
    assert tuning is not None
    best = fastest(found)
    return chosen(plan, best, shown(plan, found) + (f"; {tuning.why}" if tuning.why else ""))


def fastest(found: Mapping[int, Found]) -> int:
    """The index of the trial that is chosen: the one with the least seconds if it is faster than the plan's own choice,
    0, by more than FASTER and the noise of these two and of all trials."""
    best = min(found, key=lambda at: (found[at].seconds, at))
    deviations = [fmean(one.deviation for one in found.values()), found[0].deviation, found[best].deviation]
    clearly = FASTER * found[0].seconds + NOISE * max(deviations)
    return best if found[0].seconds - found[best].seconds > clearly else 0


def pays(found: Mapping[int, Found], left: float) -> bool:
    """Whether a view change to the fastest trial wins more time in the ``left`` steps of the run than it costs."""
    usual = found[0].seconds
    return (usual - found[fastest(found)].seconds) * left > CHANGE_STEPS * usual


def shown(plan: Plan, found: Mapping[int, Found]) -> str:
    """What was measured, in words, the chosen trial first."""
    tuning, best = plan.tuning, fastest(found)
    assert tuning is not None
    named = [best, *(at for at in sorted(found) if at != best)]
    noise = max(one.deviation for one in found.values())
    busy = f" (steps of one trial differ by {noise:.2g} s)" if noise > FASTER * found[0].seconds else ""
    return f"measured: a step takes {', '.join(found[at].words(tuning.trials[at]) for at in named)}{busy}"


def without(plan: Plan, failed: int, why: str) -> Plan:
    """The plan without a trial that could not be computed; without any where none but its own choice is left."""
    tuning = plan.tuning
    assert tuning is not None
    trials = tuple(one for at, one in enumerate(tuning.trials) if at != failed)
    said = f"{tuning.trials[failed].name} is given up: {why}" + (f"; {tuning.why}" if tuning.why else "")
    if len(trials) == 1:
        return replace(plan, tuning=replace(tuning, trials=(), why=said, measured=True))
    return replace(plan, tuning=replace(tuning, trials=trials, why=said))


def chosen(plan: Plan, index: int, why: str) -> Plan:
    """The plan with the choice of one of its trials, and without trials."""
    tuning = plan.tuning
    assert tuning is not None
    trial, offload = tuning.trials[index], tuning.offload
    if trial.offload is not None:
        offload = "" if trial.offload == NONE else trial.offload
    ended = replace(tuning, trials=(), why=why, measured=True, offload=offload)
    if index == 0:
        return replace(plan, tuning=ended)
    if trial.offload not in (None, plan.chosen.get(OFFLOAD_KEY)):  # the plan says why it had chosen another kind
        plan = replace(plan, why="; ".join(one for one in plan.why.split("; ") if not one.startswith(OFFLOAD_KEY)))
    return replace(with_trial(plan, trial), tuning=ended)


def with_trial(plan: Plan, trial: Trial) -> Plan:
    """The plan with the choice of a trial: each pipeline's samples stay. MICROBATCH_KEY must be in the plan's choices
    where the trial has other microbatches, and OFFLOAD_KEY where it has another offload."""
    choices = dict(plan.chosen)
    microbatches = plan.microbatches
    if MICROBATCH_KEY in choices:
        size = int(choices[MICROBATCH_KEY])
        microbatches = tuple(count * size // trial.microbatch for count in microbatches)
        choices[MICROBATCH_KEY] = trial.microbatch
    if trial.recompute is not None:
        choices[RECOMPUTE_KEY] = trial.recompute
    if trial.offload is not None:
        choices[OFFLOAD_KEY] = trial.offload
    return replace(plan, microbatches=microbatches, chosen=choices, in_flight=trial.in_flight, pieces=trial.pieces)
