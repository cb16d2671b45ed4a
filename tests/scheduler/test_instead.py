"""What one change of the job does for spares: the promise is what a plan of the changed job is predicted to reach."""

import re
from dataclasses import replace

import numpy
import pytest

from farflung.scheduler import Device, Layer, Network, Workload, plan, predict
from farflung.scheduler.explaining.instead import changes, instead
from farflung.scheduler.workloads.jobs import workload_of

MODEL = {"family": "gpt2", "layers": 2, "width": 64, "heads": 2, "context": 64}
LAYERS = tuple(Layer(f"l{at}", 2_000_000, 4e11, 200_000) for at in range(4))


def network(count: int = 4, rate: float = 1e9, memory: float | None = None) -> Network:
    devices = [Device(f"n{at}", tflops=10.0, memory_bytes=memory) for at in range(count)]
    return Network(devices, numpy.full((count, count), 0.005), numpy.full((count, count), rate))


CASES = [
    (network(rate=2e7), Workload(LAYERS, 8, stages=1, update_bits=32.0, mode="gradient"), "every = 20"),
    (network(rate=1e6), Workload(LAYERS, 8, stages=1, update_bits=32.0, every=20), "codec = "),
    (network(), Workload(LAYERS, 2, stages=1, update_bits=0.1), "train.batch = 8"),
]


@pytest.mark.parametrize(("wan", "job", "names"), CASES)
def test_the_change_that_is_named_gives_the_tokens_that_are_promised(wan: Network, job: Workload, names: str) -> None:
    made = plan(wan, job, time_limit=20)
    assert made.spares
    told = instead(wan, job, made, 60.0)
    found = re.fullmatch(r"with (.+) (all|\d+) of 4 train: ([\d.e+]+) times the tokens", told)
    assert found is not None and names in found[1]
    changed = dict(changes(wan, job))[found[1]]
    other = plan(wan, changed, time_limit=20)
    assert (not other.spares) == (found[2] == "all")
    times = predict(wan, changed, other).tokens_per_second / predict(wan, job, made).tokens_per_second
    assert float(found[3]) == pytest.approx(times, rel=0.1)


def test_a_larger_batch_gains_the_tokens_that_count_by_the_critical_batch() -> None:
    wan, job = network(), Workload(LAYERS, 2, stages=1, update_bits=0.1, critical_batch=4)
    told = instead(wan, job, plan(wan, job, time_limit=20), 60.0)
    found = re.fullmatch(r"with train.batch = (4|8|16|32) all of 4 train: ([\d.e+]+) times the tokens that count", told)
    assert found is not None
    changed = dict(changes(wan, job))[f"train.batch = {found[1]}"]
    assert changed.counts == pytest.approx(1 / (1 + int(found[1]) / 4)) and job.counts == pytest.approx(2 / 3)
    speeds = [predict(wan, one, plan(wan, one, time_limit=20)).tokens_per_second for one in (job, changed)]
    assert float(found[2]) == pytest.approx(speeds[1] * changed.counts / (speeds[0] * job.counts), rel=0.1)
    assert instead(wan, replace(job, critical_batch=1), plan(wan, job, time_limit=20), 60.0) == ""


@pytest.mark.parametrize(("fragments", "interval"), [(1, 20), (5, 4), (3, None)])
def test_rarer_rounds_are_those_of_the_job_with_its_fragments(fragments: int, interval: int | None) -> None:
    updates = {"mode": "delta", "codec": "int8", "every": fragments, "fragments": fragments}
    job = {"model": MODEL, "data": {"tokenizer": "bytes"}, "train": {"batch": 8, "microbatch": 1}}
    before = workload_of({**job, "updates": updates})
    changed = dict(changes(network(), before)).get("updates.every = 20")
    assert (None if changed is None else changed.every) == interval
    if changed is not None:
        meant = workload_of({**job, "updates": {**updates, "every": 20}})
        assert (changed.every, changed.update_bits) == (meant.every, meant.update_bits)


def test_nothing_is_said_where_no_change_of_the_job_helps() -> None:
    slow = network().with_speed({"n3": 1e-3})
    job = Workload(LAYERS, 8, stages=1, update_bits=0.1, mode="gradient", activation_bits=4.0)
    made = plan(slow, job, time_limit=20)
    assert list(made.spares) == ["n3"] and instead(slow, job, made, 60.0) == ""
