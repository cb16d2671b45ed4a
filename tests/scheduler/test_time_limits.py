"""A time limit holds whatever is asked: what may be done in it is divided; time is counted by a clock of the test."""

import os
from dataclasses import replace
from functools import lru_cache
from itertools import count
from pathlib import Path

import numpy
import pytest

from farflung.scheduler import Device, Layer, Network, Plan, Workload, plan
from farflung.scheduler.planning.choose_settings import plan_settings
from farflung.scheduler.planning.replan import placement_of
from farflung.scheduler.search import candidates
from farflung.scheduler.search.candidates import best_candidate
from farflung.scheduler.timing import compiled
from farflung.scheduler.timing.candidate import Candidate
from farflung.scheduler.timing.estimate import Estimator
from farflung.scheduler.timing.seconds import candidate_seconds
from farflung.scheduler.workloads.ladder import intervals

LAYERS = tuple(Layer(f"l{at}", 4_000_000, 5e11, 200_000) for at in range(4))


def network(size: int = 6) -> Network:
    """Unequal devices on unequal links."""
    random = numpy.random.default_rng(0)
    devices = [Device(f"d{at}", tflops=float(random.choice([5, 10, 20, 40]))) for at in range(size)]
    return Network(devices, random.uniform(0.001, 0.05, (size, size)), 10 ** random.uniform(7.3, 9.3, (size, size)))


def simulations(workload: Workload, near: Plan | None, ticks: int) -> tuple[int, Candidate]:
    """How many candidates are measured where the clock may be looked at so many times, and the best."""
    wan, clock, measured = network(), count(), count()
    estimator = Estimator(wan, workload)

    def score(found: Candidate) -> float:
        next(measured)
        return candidate_seconds(estimator, found)

    begin = placement_of(wan, near)
    best = best_candidate(wan, workload, ticks, 0, score=score, clock=lambda: float(next(clock)), near=begin)
    return next(measured), best


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_where_no_time_is_left_a_plan_before_is_all_that_is_timed(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "ready", lambda seconds, loops: False)  # ticks are no seconds to compile in
    workload = Workload(LAYERS, 8, update_bits=8.0, overlap=1)
    made = plan(network(), workload, time_limit=0.1)
    asked = replace(workload, schedule=schedule, every=5)
    cold, _ = simulations(asked, None, 0)
    measured, best = simulations(asked, made, 0)
    assert measured <= 4 < cold / 5  # 1 to 4 stages a node; without one before it several shapes are refined
    names = [tuple(network().names[device] for device in row) for row in best.places]
    assert names == [row[: len(names[0])] for row in made.pipelines]
    more, better = simulations(asked, made, 60)
    assert measured < more and better.seconds <= best.seconds * 1.02


def open_job() -> Workload:
    """A job that leaves open how often rounds are, the schedule and recompute."""
    workload = Workload(LAYERS, 8, schedules=("1f1b", "interleaved"), auto_recompute=True)
    return replace(workload, intervals=intervals("delta", "int8", 0))


@pytest.mark.parametrize("takes", [1.0, 30.0])
@pytest.mark.parametrize("in_force", [False, True])
def test_the_time_is_divided_among_the_plans_that_are_compared(takes: float, in_force: bool) -> None:
    """takes: how many times as long as it may each plan takes. All but the first begin with one that was made."""
    wan, workload, now = network(4), open_job(), [0.0]
    given: list[tuple[float, bool]] = []

    def planned(one: Workload, seconds: float, before: Plan | None) -> Plan:
        given.append((seconds, before is not None))
        now[0] += seconds * takes
        return plan(wan, one, time_limit=1e-3, near=before)

    current = plan_settings(wan, workload, planned, 10.0, clock=lambda: now[0]) if in_force else None
    given.clear()
    now[0] = 0.0
    plan_settings(wan, workload, planned, 10.0, current, clock=lambda: now[0])
    assert 4 <= len(given) <= 9
    assert [before for _, before in given] == [in_force, *[True] * (len(given) - 1)]
    assert sum(seconds for seconds, _ in given) <= 10.0 + 0.01
    assert takes > 1 or min(seconds for seconds, _ in given) > 0.8


def test_loops_that_were_compiled_before_are_used_sooner(tmp_path: Path) -> None:
    (tmp_path / "room" / "__pycache__").mkdir(parents=True)
    source, kept = tmp_path / "room" / "loop.py", tmp_path / "room" / "__pycache__" / "loop.run-7.py311.nbi"
    source.write_text("")
    loops = (("room/loop", "run"),)
    assert not compiled.is_kept(loops, tmp_path)
    kept.write_text("")
    assert compiled.is_kept(loops, tmp_path) and not compiled.is_kept((("room/loop", "other"),), tmp_path)
    os.utime(kept, (1.0, 1.0))  # the source was changed after it
    assert not compiled.is_kept(loops, tmp_path)


@pytest.mark.parametrize("kept", [False, True])
def test_a_short_search_loads_what_was_compiled(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_used", lru_cache(1)(lambda: object()))
    monkeypatch.setattr(compiled, "is_kept", lambda loops: kept)
    assert not compiled.ready(0.1, compiled.STEP) and not compiled.is_loaded()
    assert compiled.ready(2.0, compiled.STEP) is kept is compiled.is_loaded()
    assert compiled.ready(compiled.COMPILING_S, compiled.STEP) and compiled.is_loaded()
