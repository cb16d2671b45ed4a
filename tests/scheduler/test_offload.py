"""What of a stage lies on the device, by ``train.offload``."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from farflung.cli.planning.plan import run
from farflung.job.chosen import OFFLOADS, left_open, mistakes, with_chosen
from farflung.job.schema import Job
from farflung.scheduler import Device, Network, PlanError, plan
from farflung.scheduler.planning.choose_offload import possible, said_of
from farflung.scheduler.workloads.inside import rank_needs
from farflung.scheduler.workloads.jobs import lesser_offloads, workload_of
from farflung.scheduler.workloads.layers import _fits, beside, stage_memory
from farflung.scheduler.workloads.memory import need_of
from farflung.scheduler.workloads.offload import OF_AUTO
from farflung.scheduler.workloads.settled import as_settled

MODEL = {"family": "llama", "layers": 4, "width": 64, "heads": 4, "context": 32}
DELTA = {"mode": "delta", "codec": "cocktail:random=0.5,top=0.5"}


@pytest.mark.parametrize(
    ("kind", "ends", "blocks"),
    [(False, 20, 20), (True, 12, 12), ("moments", 12, 12), ("optimizer", 4, 4), ("parameters", 4, 0)],
)
def test_bytes_a_weight_takes_on_the_device(kind, ends, blocks):
    workload = workload_of({"model": MODEL, "train": {"offload": kind, "recompute": True}, "updates": DELTA})
    assert workload.optimizer_bytes == ends
    assert (ends if workload.block_bytes is None else workload.block_bytes) == blocks


@pytest.mark.parametrize("kind", ["none", "optimizer", "parameters"])
def test_a_cut_fits_what_its_stage_needs(kind):
    workload = workload_of({"model": MODEL, "train": {"offload": kind, "recompute": True}, "updates": DELTA})
    for first, last in ((0, 2), (1, 3), (3, 5), (0, 5)):
        need = stage_memory(workload, first, last, 2)
        assert need < math.inf and _fits(workload, [need], [2])(0, first, last)
        assert not _fits(workload, [0.999 * need], [2])(0, first, last)


@pytest.mark.parametrize("kind", ["none", "optimizer", "parameters"])
def test_a_matrix_that_the_ends_share_is_held_once(kind):
    model = MODEL | {"tie": True, "vocabulary": 5000}
    train = {"offload": kind, "recompute": True, "microbatch": 1, "batch": 2}
    workload = beside(workload_of({"model": model, "train": train, "updates": DELTA}), 1)
    need = stage_memory(workload, 0, 5, 1)
    assert workload.tied and _fits(workload, [need], [1])(0, 0, 5) and not _fits(workload, [0.999 * need], [1])(0, 0, 5)
    assert plan(network(1.001 * need), replace(workload, stages=1, pipelines=1), time_limit=0.5).stages == ((0, 5),)


def network(memory: float, **more) -> Network:
    devices = [Device(name, memory_bytes=memory, **more) for name in "ab"]
    pairs = [("a", "b"), ("b", "a")]
    return Network.measured(devices, dict.fromkeys(pairs, 0.01), dict.fromkeys(pairs, 1e8))


def one_device(folder: Path, memory: float) -> Path:
    """A cluster file."""
    device = {"region": "a", "tflops": 1.0, "memory_gb": memory / 1e9}
    one = {"regions": ["a"], "devices_per_region": {"a": 1}, "latency_ms": [[1]], "bandwidth_gbps": [[1]]}
    file = folder / "cluster.json"
    file.write_text(json.dumps(one | {"devices": [device]}))
    return file


def job_of(offload, **parallel):
    train = {"offload": offload, "microbatch": 1, "batch": 2}
    return {"model": MODEL, "train": train, "updates": DELTA, "parallel": {"stages": 1, "pipelines": 1, **parallel}}


def room(kind: str) -> float:
    """Bytes with which the whole model fits a device if the job says ``kind``, and with no lesser one."""
    workload = beside(workload_of(job_of(kind)), 1)
    return 1.01 * stage_memory(workload, 0, len(workload.layers) - 1, 1)


def test_auto_keeps_as_little_in_main_memory_as_fits():
    auto = workload_of(job_of("auto"))
    assert "parameters" not in possible(network(1e9), auto)  # layers are not computed again
    for kind, unfit in (("none", ()), ("moments", ("none",)), ("optimizer", ("none", "moments"))):
        made = plan(network(room(kind)), auto, time_limit=1.0)
        assert made.chosen["train.offload"] == kind
        assert said_of(kind, unfit) in made.why and all(f'"{one}"' in made.why for one in unfit)
        again = as_settled(auto, made)
        assert again.offload == kind and again.optimizer_bytes == workload_of(job_of(kind)).optimizer_bytes
        kept = plan(network(room(kind)), auto, time_limit=1.0, current=made)
        assert kept.chosen == made.chosen and kept.why.count("train.offload") == 1
    with pytest.raises(PlanError, match=r"the model needs|alone needs"):
        plan(network(room("optimizer") / 4), auto, time_limit=1.0)


@pytest.mark.parametrize("again", [True, "auto"])
def test_auto_takes_blocks_one_after_the_other_as_the_last_resort(again):
    job = job_of("parameters")
    job["train"]["recompute"] = True
    least = workload_of(job)
    job["train"] |= {"offload": "auto", "recompute": again}
    auto = workload_of(job)
    need = 1.01 * stage_memory(least, 0, len(least.layers) - 1, 1)
    made = plan(network(need), auto, time_limit=0.2)
    assert made.chosen == {"train.offload": "parameters"} | ({"train.recompute": True} if again == "auto" else {})
    assert said_of("parameters", OF_AUTO[:-1]) in made.why and "waits for the weights of one block" in made.why
    settled = as_settled(auto, made)
    assert settled.offload == "parameters" and settled.block_bytes == 0 and settled.recompute
    assert stage_memory(settled, 0, len(least.layers) - 1, 1) == stage_memory(least, 0, len(least.layers) - 1, 1)


def test_auto_leaves_the_other_keys_open():
    job = job_of("auto")
    job["train"] = {**job["train"], "recompute": "auto"}
    made = plan(network(room("none")), workload_of(job), time_limit=1.0)
    assert set(made.chosen) == {"train.offload", "train.recompute"}


def test_auto_offloads_only_what_the_devices_can():
    auto = workload_of(job_of("auto"))
    assert possible(network(1e9), auto) == ("none", "moments", "optimizer")
    assert possible(network(1e9, one_memory=True), auto) == ("none",)
    assert possible(network(1e9, ranks=2), auto) == ("none", "moments", "optimizer")
    assert possible(network(1e9), workload_of(job_of("auto", inside="fsdp"))) == ("none", "moments")


@pytest.mark.parametrize("kind", ["optimizer", "parameters"])
def test_an_island_counts_what_each_device_and_the_main_memory_hold(kind):
    job = job_of(kind)
    job["train"]["recompute"] = True
    workload = beside(workload_of(job), 1)
    parameters, whole = workload.parameters, (0, len(workload.layers) - 1)
    first, *others = rank_needs(workload, whole, 1, "ddp", 3)
    assert first.device == others[0].device == others[1].device <= stage_memory(workload, *whole, 1)
    assert (first.main, others[0].main) == (2 * 8 * parameters, 0)
    # Weights, gradient, moments, reference: 20 bytes in main memory, and 8 more for each other device.
    assert workload.main_bytes == 20
    need, memory = (20 + 2 * 8) * parameters, room(kind) if kind == "optimizer" else 1e9
    made = plan(network(memory, ranks=3, main_bytes=1.01 * need), workload_of(job), time_limit=0.5)
    assert len(made.nodes) == 1
    with pytest.raises(PlanError, match=r"what lies in main memory would need 1\.2 times what it has"):
        plan(network(memory, ranks=3, main_bytes=need / 1.2), workload_of(job), time_limit=0.5)


def test_the_other_ways_of_an_island_count_the_state_in_main_memory_once():
    """Where the optimiser's kind has it there already, as much as without."""
    mains = []
    for kind in ("none", "optimizer"):
        job = job_of(kind)
        workload = beside(workload_of(job), 1)
        whole = (0, len(workload.layers) - 1)
        first = rank_needs(workload, whole, 1, "fsdp", 2)[0]
        mains.append(first.main + need_of(job, workload, whole, 1, 1).host)
    assert mains[0] == mains[1] == 20 * workload.parameters


@pytest.mark.parametrize(
    ("train", "least", "says"),
    [
        ({}, {"offload": "optimizer"}, 'train.offload = "optimizer"'),
        ({}, {"offload": "parameters", "recompute": True}, 'train.recompute = true and train.offload = "parameters"'),
        ({"recompute": True}, {"offload": "parameters"}, 'train.offload = "parameters"'),
        ({"recompute": "auto"}, {"offload": "parameters", "recompute": True}, 'train.offload = "parameters"'),
        ({"offload": "auto"}, {"offload": "parameters", "recompute": True}, 'train.offload = "parameters"'),
    ],
)
def test_a_refusal_of_plan_names_the_offload_with_which_it_would_fit(tmp_path, train, least, says):
    job = job_of(False)
    job["train"] |= train
    other = job | {"train": job["train"] | least}
    need = stage_memory(beside(workload_of(other), 1), 0, 5, 1)
    file = one_device(tmp_path, 1.001 * need)
    with pytest.raises(PlanError, match=re.escape(f"{says} it would fit")):
        run(file, job, time_limit=0.5)
    made = run(file, other, time_limit=0.5, memory=True)
    assert made["memory"][0]["device"] <= 1.001 * need


def test_what_a_refusal_could_name_needs_no_codec_of_activations():
    """A run chooses that of "auto" later."""
    job = job_of(False) | {"activations": {"forward": "auto", "backward": "auto"}}
    kinds = [one.kind for one in lesser_offloads(job, workload_of(job_of(False)))]
    assert kinds == ["optimizer", "parameters"]
    assert not lesser_offloads(job_of("parameters"), workload_of(job_of("parameters")))
    assert not lesser_offloads(job_of(False, inside="fsdp"), workload_of(job_of(False, inside="fsdp")))


def test_memory_is_that_of_the_pieces_that_a_plan_cuts_microbatches_into(tmp_path):
    job = job_of("optimizer")
    job["train"] |= {"batch": 8, "microbatch": 4}
    need = stage_memory(beside(workload_of(job | {"train": job["train"] | {"microbatch": 1}}), 1), 0, 5, 1)
    file = one_device(tmp_path, 1.001 * need)
    made = run(file, job, time_limit=0.5, memory=True)
    assert made["pieces"] == [4] and made["memory"][0]["device"] == pytest.approx(need, rel=1e-6)


def test_a_plan_may_choose_what_a_job_leaves_open():
    tables = {"run": {"steps": 1}, "model": {"layers": 1}, "data": {"text": ["none.txt"]}}
    job = Job.model_validate({**tables, "train": {"offload": "auto"}})
    assert left_open(job) == ("train.offload",) and job.train.offload_kind == "auto"
    assert not list(mistakes(job, {"train.offload": "optimizer"}))
    (said,) = mistakes(job, {"train.offload": "parameters"})
    assert said == 'its plan has train.offload = "parameters", which needs train.recompute = true'
    again = Job.model_validate({**tables, "train": {"offload": "auto", "recompute": "auto"}})
    assert not list(mistakes(again, {"train.offload": "parameters", "train.recompute": True}))
    assert list(mistakes(again, {"train.offload": "parameters", "train.recompute": False}))
    assert with_chosen(job, {"train.offload": "optimizer"}).train.offload_kind == "optimizer"
    assert tuple(OFFLOADS) == OF_AUTO
