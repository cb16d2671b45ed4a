"""What islands have written, nodes of another shape take up: in the next view, and from a checkpoint."""

import json
from dataclasses import replace

import pytest
from plain_loop import plain_losses
from sharded_runs import DATA, FACTS, GROUP, STEPS, TWO_STAGES, job_of
from windows import wait_until

from farflung.job.schema import Job
from farflung.node.state import loss_scale
from farflung.proto import control_pb2
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

HALF = STEPS // 2
DELTA = {"mode": "delta", "codec": "none"}


def plan_of(inside, plan=GROUP):
    return replace(plan, chosen={"parallel.inside": inside})


def auto(updates, **train) -> Job:
    """A job whose plans choose ``inside``, with checkpoints every two steps."""
    job = job_of("llama", "auto", **updates).model_dump(exclude_unset=True)
    job["checkpoint"] = {"every": HALF}
    job["train"] |= train
    return Job.model_validate(job)


def started(job, island, artifacts=None):
    hub = Hub(job, FACTS, artifacts)
    hub.start("n0", DATA, island)
    hub.start("n1", DATA)
    return hub


def finished(hub):
    outcome = hub.finish(GROUP.nodes)
    assert not hub.errors, hub.errors
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    return outcome


def restored(job, hub, inside, island, plan=GROUP):
    """The rest of a run from the checkpoint after half of it, with n0 of another shape, or in another plan."""
    shards = {file: content for (step, file), content in hub.shards.items() if step == HALF}
    meta = next(iter(shards.values()))[1]
    manifest = {**meta, "files": {file: {} for file in shards}}
    artifacts = {f"checkpoint/{HALF}/{file}": content for file, (content, _) in shards.items()}
    artifacts[f"checkpoint/{HALF}/manifest.json"] = json.dumps(manifest).encode()
    again = started(job, island, artifacts)
    place = {"step": HALF, "cursor": meta["cursor"], "redo": meta["redo"]}
    rounds = [control_pb2.SectionState(section=name, round=round) for name, round in meta["rounds"].items()]
    again.begin(plan_of(inside, plan), plan.nodes, checkpoint=HALF, sections=rounds, **place)
    return finished(again)


@pytest.mark.parametrize("updates", [{}, DELTA], ids=["gradient", "delta"])
def test_a_checkpoint_goes_on_in_any_shape(island, updates):
    """In gradient mode as if the run had never stopped; in delta mode, where each node's moments begin anew, as nodes
    of one device do."""
    job, shapes = auto(updates), {"fsdp": island, "tp": island, "ddp": island, "alone": None}
    for written, others in (("fsdp", ("alone", "tp", "ddp")), ("alone", ("alone", "fsdp"))):
        hub = started(job, shapes[written])
        hub.begin(plan_of("fsdp"), GROUP.nodes, checkpoint=0)
        whole = finished(hub)
        wanted = {step: loss for step, loss in whole.losses.items() if step > HALF}
        if updates:
            wanted = restored(job, hub, "fsdp", None).losses
        for shape in others:
            rest = restored(job, hub, "fsdp" if shape == "alone" else shape, shapes[shape])
            assert rest.losses == pytest.approx(wanted, abs=1e-5), (written, shape)
            if written == shape and not updates:
                assert rest.fingerprints == whole.fingerprints
        if not updates:
            rest = restored(job, hub, "fsdp", island, TWO_STAGES)
            assert rest.losses == pytest.approx(wanted, abs=1e-5), (written, "two stages")


def test_two_views_compute_in_different_ways(island):
    job = auto({})
    hub = started(job, island)
    ways = ["fsdp", "ddp", "fsdp"]
    hub.begin(plan_of(ways[0]), GROUP.nodes, checkpoint=0)
    for step, way in enumerate(ways[1:], 1):
        wait_until(lambda step=step: hub.trainers["n0"].step >= step)
        hub.change(plan_of(way), GROUP.nodes)
        assert (island.shards is None) == (way == "ddp")
    outcome = finished(hub)
    wanted = plain_losses(job, FACTS, DATA, STEPS)
    assert [outcome.losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("updates", [{}, DELTA], ids=["gradient", "delta"])
def test_fp16_in_rows_is_that_of_one_device(island, monkeypatch, updates):
    """The first steps overflow, on all ranks."""
    monkeypatch.setattr(loss_scale, "FIRST", 2.0**28)
    job = auto(updates, precision="fp16")
    got, scales = {}, {}
    for shape, one in (("fsdp", island), ("alone", None)):
        hub = started(job, one)
        hub.begin(plan_of("fsdp"), GROUP.nodes, checkpoint=0)
        got[shape], scales[shape] = finished(hub).losses, hub.trainers["n0"].state.loss_scale
    assert scales["fsdp"] == scales["alone"] and scales["fsdp"].scale < 2.0**28
    assert got["fsdp"] == pytest.approx(got["alone"], abs=1e-2)
