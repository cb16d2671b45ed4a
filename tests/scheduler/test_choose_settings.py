"""What a plan chooses of a job that says "auto": each choice is the best of those planned, and its sentence is true."""

import random
import re

import pytest

from farflung.job.schema import EVERY as EVERY_OF_JOBS
from farflung.scheduler import Device, Network, Plan, PlanError, plan, predict
from farflung.scheduler.planning.choose_settings import ENOUGH
from farflung.scheduler.workloads import jobs
from farflung.scheduler.workloads.ladder import intervals
from farflung.scheduler.workloads.settled import as_settled, is_open, settled
from farflung.scheduler.workloads.workload import EVERY

JOB = {
    "model": {"family": "llama", "layers": 2, "width": 512, "heads": 8, "context": 256},
    "train": {"batch": 16, "microbatch": 2},
    "parallel": {"stages": 1},
    "updates": {"mode": "delta", "codec": "int8", "every": "auto", "overlap": 0},
}
TIME = 20.0


def network(mbit, count=4, memory=None, tflops=1.0):
    names = [f"n{at}" for at in range(count)]
    pairs = [(one, other) for one in names for other in names if one != other]
    devices = [Device(name, tflops=tflops, memory_bytes=memory) for name in names]
    return Network.measured(devices, dict.fromkeys(pairs, 0.01), dict.fromkeys(pairs, mbit * 1e6))


def workload(**tables):
    return jobs.workload_of({**JOB, **{name: {**JOB.get(name, {}), **table} for name, table in tables.items()}})


def seconds(net, work, made):
    return predict(net, work, made).step_s


def test_jobs_and_plans_choose_among_the_same_numbers():
    assert EVERY == EVERY_OF_JOBS
    assert [one.every for one in intervals("delta", "int8", 3)] == [one for one in EVERY if one >= 3]
    with pytest.raises(PlanError, match="overlap 101 is more than the 100 steps"):
        intervals("delta", "int8", 101)


@pytest.mark.parametrize("mbit", [2, 20, 200])
def test_rounds_are_as_frequent_as_the_links_allow(mbit):
    net, work = network(mbit), workload()
    made = plan(net, work, time_limit=TIME)
    every = made.chosen["updates.every"]
    took = {one: seconds(net, settled(work, one), plan(net, settled(work, one), time_limit=TIME)) for one in EVERY}
    enough = [one for one in EVERY if took[one] * ENOUGH <= took[EVERY[-1]] * 1.0001]
    assert every == min(enough), took
    said = re.search(r"a round every (\d+ steps|step): a step takes ([\d.e-]+) s(.*)", made.why)
    assert said and float(said[2]) == pytest.approx(took[every], rel=0.01)
    for other, value in re.findall(r"with one every (\d+ steps|step) ([\d.e+-]+) s", said[3]):
        number = 1 if other == "step" else int(other.split()[0])
        assert float(value) == pytest.approx(took[number], rel=0.01)


def test_slow_links_make_rounds_rare_and_fast_ones_frequent():
    chosen = [plan(network(mbit), workload(), time_limit=TIME).chosen["updates.every"] for mbit in (20, 200, 20_000)]
    assert chosen == sorted(chosen, reverse=True) and chosen[0] > chosen[-1]


def test_every_with_a_codec_and_an_overlap_that_the_plan_chooses_too():
    work = workload(updates={"codec": "auto", "overlap": "auto"})
    made = plan(network(20), work, time_limit=TIME)
    assert made.overlap is not None and 0 <= made.overlap <= made.chosen["updates.every"]
    assert made.update_codec(0) in dict(as_settled(work, made).update_ladder)


def test_forwards_are_computed_again_only_where_memory_is_short():
    tables = {"updates": {"every": 1}, "train": {"recompute": "auto"}, "parallel": {"stages": 1}}
    work = workload(**tables)
    assert is_open(work) and not work.recompute
    roomy = plan(network(1000), work, time_limit=TIME)
    assert roomy.chosen == {"train.recompute": False}
    assert re.search(r"nothing is computed again: a step takes [\d.e-]+ s, with forwards computed again ", roomy.why)
    short = next(
        gigabytes for gigabytes in range(1, 200) if fits(gigabytes, work, True) != fits(gigabytes, work, False)
    )
    made = plan(network(1000, memory=short * 1e7), work, time_limit=TIME)
    assert made.chosen == {"train.recompute": True}
    assert "forwards are computed again: a step takes" in made.why
    assert "with nothing computed again there is no plan" in made.why


def fits(units, work, recompute):
    try:
        plan(network(1000, memory=units * 1e7), settled(work, recompute=recompute), time_limit=TIME)
    except PlanError:
        return False
    return True


def test_the_schedule_is_the_faster_one():
    work = workload(updates={"every": 1}, parallel={"schedule": "auto", "stages": 4, "pipelines": 1})
    for mbit in (10, 10_000):
        net = network(mbit)
        made = plan(net, work, time_limit=TIME)
        took = {
            one: seconds(net, settled(work, schedule=one), plan(net, settled(work, schedule=one), time_limit=TIME))
            for one in ("1f1b", "interleaved")
        }
        assert seconds(net, work, made) <= min(took.values()) * 1.021
        assert re.search(r"(1f1b|interleaved): a step takes [\d.e-]+ s, with (1f1b|interleaved) [\d.e-]+ s", made.why)


SIZES = {"updates": {"every": 1}, "train": {"batch": 48, "microbatch": "auto"}}


@pytest.mark.parametrize(("context", "larger"), [(32, True), (4096, False)])
def test_microbatches_are_those_with_which_a_step_is_shortest(context, larger):
    work = workload(**SIZES, parallel={"stages": 2, "pipelines": 1}, model={"context": context})
    assert [one.microbatch for one in work.sizes] == [1, 2, 4, 8, 16, 48] and work.microbatch == 4
    net = network(10_000, tflops=0.01)
    made = plan(net, work, time_limit=TIME)
    size = made.chosen["train.microbatch"]
    assert sum(made.microbatches) * size == 48 and (size > 4) == larger
    each = [settled(work, microbatch=one.microbatch) for one in work.sizes]
    took = {one.microbatch: seconds(net, one, plan(net, one, time_limit=TIME)) for one in each}
    at = list(took).index(size)
    assert took[size] <= min(list(took.values())[max(0, at - 1) : at + 2]) * 1.021
    said = re.search(r"microbatches of (\d+) samples?: a step takes ([\d.e-]+) s(.*)", made.why)
    assert said and int(said[1]) == size and float(said[2]) == pytest.approx(took[size], rel=0.01)
    for other, value in re.findall(r"with (\d+) ([\d.e+-]+) s", said[3]):
        assert float(value) == pytest.approx(took[int(other)], rel=0.01)


def test_there_is_a_microbatch_for_each_pipeline_that_is_wished_for():
    assert jobs.microbatch_sizes(48, 12) == (1, 2, 4) and jobs.microbatch_sizes(7, None) == (1, 7)
    assert jobs.worth(4, 4, 128) == 1 and jobs.worth(1, 4, 128) == pytest.approx(0.5)
    with pytest.raises(PlanError, match="9 pipelines can't be: a batch has 8 samples"):
        jobs.microbatch_sizes(8, 9)


def test_a_plan_in_force_keeps_its_choice_until_another_pays():
    work, names = workload(), [f"n{at}" for at in range(4)]
    made = plan(network(2000), work, time_limit=TIME)
    assert plan(network(2000), work, time_limit=TIME, current=made) is made
    assert plan(network(2000 * 1.02), work, time_limit=TIME, current=made) is made
    slower = plan(network(20), work, time_limit=TIME, current=made)
    assert slower.chosen["updates.every"] > made.chosen["updates.every"]
    faster = plan(network(200_000), work, time_limit=TIME, current=made)
    assert faster.chosen["updates.every"] < made.chosen["updates.every"] and set(faster.nodes) == set(names)


def test_what_a_plan_chose_travels_with_it():
    made = plan(network(20), workload(), time_limit=TIME)
    assert Plan.from_json(made.to_json()) == made and made.chosen
    other = Plan.from_json(made.to_json().replace(str(made.chosen["updates.every"]), "7"))
    assert not other.same_placement(made)


def test_drawn_jobs_and_networks_get_a_plan_that_is_no_slower_than_any_choice():
    dice = random.Random(7)
    for _ in range(6):
        net = network(dice.choice([5, 50, 500]), count=dice.randint(2, 4), tflops=dice.choice([0.5, 4.0]))
        tables = {
            "updates": {"every": dice.choice([1, "auto"]), "overlap": dice.choice([0, 1])},
            "train": {"recompute": dice.choice(["auto", False]), "microbatch": dice.choice(["auto", 2])},
            "parallel": {"schedule": dice.choice(["auto", "1f1b"]), "stages": dice.choice(["auto", 2])},
        }
        work = workload(**tables)
        made = plan(net, work, time_limit=TIME)
        took = seconds(net, work, made)
        for every in [one.every for one in work.intervals] or [None]:
            for schedule in work.schedules or [None]:
                for again in [False, True] if work.auto_recompute else [None]:
                    one = settled(work, every, schedule, again, made.chosen.get("train.microbatch"))
                    best = seconds(net, one, plan(net, one, time_limit=TIME))
                    assert took * ENOUGH <= best * 1.03, (tables, made.chosen, one.chosen)
