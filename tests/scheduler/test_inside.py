"""How devices of islands share their stages: what each holds, and which way a plan takes."""

from dataclasses import replace

import pytest

from farflung.job.schema import INSIDE, Job
from farflung.node.models.decoders.families import fresh_config
from farflung.node.models.decoders.matrix_plan import can_share
from farflung.scheduler import Device, Network, PlanError, plan
from farflung.scheduler.networks.catalogue import cluster_of
from farflung.scheduler.planning.choose_inside import filled
from farflung.scheduler.workloads.decoders import CUT
from farflung.scheduler.workloads.inside import KINDS, grid_of, kinds_of, rank_needs
from farflung.scheduler.workloads.jobs import workload_of

LARGE = {"family": "llama", "layers": 60, "width": 6656, "heads": 52, "context": 2048, "vocabulary": 32000}
SEVENTY = {"family": "llama", "layers": 80, "width": 8192, "heads": 64, "kv_heads": 8, "inner": 28672, "context": 2048}


def job_of(inside="auto", model=LARGE, **train):
    values = {"batch": 32, "microbatch": 8, "precision": "bf16", "recompute": True, **train}
    return {"model": model, "train": values, "parallel": {"inside": inside}}


def boxes(count, cards=8, **more):
    devices = [Device(f"n{at}", "rack", 500.0, 24e9, ranks=cards, **more) for at in range(count)]
    pairs = {(one.name, other.name): 1e10 for one in devices for other in devices if one is not other}
    return Network.measured(devices, dict.fromkeys(pairs, 0.0005), pairs)


def test_kinds():
    assert KINDS == INSIDE
    assert kinds_of({}, 0) == ("ddp",) and kinds_of(job_of("tp"), 0) == ("tp",)
    assert kinds_of(job_of(), 4) == KINDS and kinds_of(job_of(), 0) == ("ddp", "fsdp")
    assert kinds_of(job_of(model={**LARGE, "dropout": 0.1}), 4) == ("ddp", "fsdp")
    for part in ({"model": {"lora": {}}}, {"train": {"compile": True}}, {"updates": {"judge": 1}}):
        assert kinds_of({**job_of(), **part}, 4) == ("ddp",)
    assert [grid_of(kind, 8, 52) for kind in KINDS] == [(8, 1), (8, 1), None, (4, 2)]
    assert grid_of("tp", 4, 52) == (1, 4) and grid_of("tp", 2, 0) is None and grid_of("fsdp+tp", 3, 12) is None


@pytest.mark.parametrize("family", sorted({*CUT, "gpt2", "olmo2", "phi3"}))
def test_families_that_can_be_cut(family):
    model = {"family": family, "layers": 1, "width": 64, "heads": 4, "context": 16, "kv_heads": 2}
    if family in ("gpt2", "gpt_neox"):
        del model["kv_heads"]
    job = Job.model_validate({"run": {"steps": 1}, "model": model, "data": {"text": ["none.txt"]}})
    shares = can_share(fresh_config(job.model, 100, 16))
    assert workload_of({"model": model}).shares == shares and (shares > 1) == (family in CUT)


def test_what_only_a_shared_island_holds():
    """30 B on boxes of 8 x 24 GB: no card holds a stage, a box does."""
    network = cluster_of("4x8x4090@rack")
    box = network.devices[0]
    assert (box.name, box.ranks, box.memory_bytes) == ("rack/0-8x4090", 8, 24e9) and len(network) == 4
    made = plan(network, job_of(), time_limit=0.5)
    assert made.chosen["parallel.inside"] == "fsdp"
    assert "islands share their stages by fsdp: ddp would not fit" in made.why
    workload = replace(workload_of(job_of()), insides=())
    assert all(0.3 < part <= 1 for part in filled(network, workload, made, "fsdp").values())
    assert "parallel.inside" not in plan(network, job_of("fsdp"), time_limit=0.5).chosen
    with pytest.raises(PlanError, match="the model needs"):
        plan(network, job_of("ddp"), time_limit=0.5)
    with pytest.raises(PlanError, match=r"islands that share their stages by ddp, fsdp, fsdp\+tp alike"):
        plan(boxes(1), job_of(), time_limit=0.5)


def test_seventy_billion_on_four_boxes():
    workload = workload_of(job_of(model=SEVENTY, microbatch=1))
    stage = (21, 40)

    def need(kind):
        return max(one.device for one in rank_needs(workload, stage, 4, kind, 8)) / 24e9

    assert need("ddp") > 5 and need("fsdp") > 1  # a gathered block takes too much
    assert need("tp") < 1


def test_the_cheapest_that_fits_is_taken():
    small = {**LARGE, "layers": 2, "width": 1024, "heads": 16}
    made = plan(boxes(2), job_of(model=small), time_limit=0.5)
    assert made.chosen["parallel.inside"] == "ddp" and "by ddp" in made.why
    again = plan(boxes(2), job_of(model=small), time_limit=0.5, current=made)
    assert again.chosen == made.chosen and again.why.count("islands share") == 1
    alone = plan(boxes(2, cards=1), job_of(model=small), time_limit=0.5)
    assert alone.chosen["parallel.inside"] == "ddp" and "islands" not in alone.why


def test_main_memory_that_is_too_small():
    """The sections of a shared stage lie there."""
    with pytest.raises(PlanError):
        plan(boxes(4, main_bytes=32e9), job_of("fsdp"), time_limit=0.5)
    assert plan(boxes(4, main_bytes=512e9), job_of("fsdp"), time_limit=0.5)
