"""Moments in files of a node's own disk."""

import errno
import os

import pytest
import torch
from windows import Windows, facts_of

from farflung.job.schema import Job
from farflung.node.device.limits import Owner
from farflung.node.state.optimizers.optimizers import AdamW
from farflung.node.state.sections.mapped import zeros_in
from farflung.node.state.sections.moments import Kept
from farflung.node.state.sections.section import Layout, Section
from farflung.node.training.changes.placement import folder_of_moments
from farflung.proto.errors import FarflungError
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

STEPS = 4
ALONE = Plan(pipelines=(("n0",),), stages=((0, 2),), microbatches=(6,), schedule="1f1b")
GROUP = Plan(pipelines=(("n0",), ("n1",)), stages=((0, 2),), microbatches=(4, 2), schedule="1f1b")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_has_the_same_bits(tmp_path, dtype):
    optimizer = AdamW((0.9, 0.95), 1e-8, 0.1)
    found = []
    for folder in (None, tmp_path):
        kept = Kept(optimizer.moments, dtype, True, folder=folder)
        section = Section(Layout.of("stage-0", {"w": (70, 1000), "b": (7,)}), True, kept, torch.device("cpu"))
        random = torch.Generator().manual_seed(7)
        for step in (1, 2, 3):
            section.grad.normal_(generator=random)
            optimizer.step(section, step, 1e-2)
        found.append((section.x, section.fingerprint(True)))
    (near, digest), (far, other) = found
    assert torch.equal(near, far) and digest == other
    assert not list(tmp_path.iterdir())  # the file has no name


def test_a_disk_without_room_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(FarflungError, match=r"GB more in .*, which has .* GB free.*--offload-folder") as told:
        zeros_in(tmp_path, 1 << 58, torch.float32)
    assert str(tmp_path) in told.value.message
    assert zeros_in(tmp_path, 0, torch.float32).numel() == 0


def test_a_folder_that_is_deleted_takes_nothing_from_who_uses_it_and_the_next_is_told(tmp_path):
    folder = tmp_path / "moments"
    folder.mkdir()
    kept = zeros_in(folder, 1000, torch.float32)
    folder.rmdir()
    kept.add_(1.0)
    assert float(kept.sum()) == 1000.0
    with pytest.raises(FarflungError, match=f"is gone: {folder}.*make it again"):
        zeros_in(folder, 10, torch.float32)


def test_the_folder_is_for_moments_that_the_job_offloads_and_no_process_shares(tmp_path):
    assert folder_of_moments(tmp_path, "moments", False) == folder_of_moments(tmp_path, "optimizer", False) == tmp_path
    assert folder_of_moments(tmp_path, "none", True) is folder_of_moments(None, "moments", True) is None
    with pytest.raises(FarflungError, match="memory that its processes share"):
        folder_of_moments(tmp_path, "moments", True)


def started(mode, offload, folder=None) -> Hub:
    """Two nodes that keep their moments in ``folder``, before their first view."""
    job = Job.model_validate(
        {
            "run": {"name": "mapped", "seed": 3, "steps": STEPS},
            "model": {"family": "llama", "layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "context": 8},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 6, "microbatch": 1, "learning_rate": 3e-3, "eval_every": 2, "offload": offload},
            "updates": {"mode": mode, "block": 4096},
            "checkpoint": {"every": 2},
        }
    )
    facts = facts_of(samples=60, validation=2, context=8, vocabulary=29, steps=STEPS)
    hub = Hub(job, facts)
    for name in GROUP.nodes:
        hub.start(name, Windows(facts), owner=Owner(offload_folder=folder))
    return hub


def vectors_of(hub: Hub) -> list[torch.Tensor]:
    sections = [one for name in GROUP.nodes for one in hub.trainers[name].state.sections.values()]
    return [vector for one in sections for vector in (one.g, one.x, *one.moments.values())]


@pytest.mark.usefixtures("nobody_late")
@pytest.mark.parametrize("mode", ["gradient", "delta"])
def test_a_run_has_the_same_bits(tmp_path, mode):
    hubs = [started(mode, False), started(mode, "moments", tmp_path)]
    for hub in hubs:
        hub.begin(GROUP, GROUP.nodes, checkpoint=0)
        hub.finish(GROUP.nodes)
        assert not hub.errors
    plain, mapped = hubs
    assert plain.outcome.losses == mapped.outcome.losses and len(plain.outcome.losses) == STEPS
    assert all(torch.equal(one, other) for one, other in zip(*map(vectors_of, hubs), strict=True))
    assert plain.shards.keys() == mapped.shards.keys() and plain.shards


@pytest.mark.usefixtures("nobody_late")
def test_a_joiner_takes_moments_into_its_file(tmp_path):
    hub = started("gradient", "moments", tmp_path)
    hub.begin(ALONE, ALONE.nodes, checkpoint=0)
    hub.change(GROUP, ALONE.nodes, ["n1"])
    outcome = hub.finish(GROUP.nodes)
    assert not hub.errors and all(len(contents) == 1 for contents in outcome.fingerprints.values())


def test_a_node_whose_disk_is_full_ends_before_its_view(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    hub = started("gradient", "moments", tmp_path)
    with pytest.raises(RuntimeError, match=r"n0 ended: .*No space left on device"):
        hub.begin(ALONE, ALONE.nodes, checkpoint=0)
    assert hub.trainers["n0"].state is None
    hub.stop(["n1"])
