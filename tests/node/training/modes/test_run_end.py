"""The end of a run brings all that was learnt into g; a checkpoint in the middle says what it lacks."""

import json
from pathlib import Path

import pytest
import torch
from sums import s_of

from farflung.node.generation.checkpoint import BESIDE, beside
from farflung.node.training.modes.delta_mode import DeltaMode

COCKTAIL = "cocktail:random=0.1,top=0.2,bits=4"
RUNS = [
    {"codec": "chunked_topk:k=128,bits=2"},
    {"codec": "chunked_topk:k=128,bits=2,feedback=true", "overlap": 1},
    {"codec": COCKTAIL, "overlap": 1},
    {"codec": COCKTAIL, "pattern": "all_to_all", "overlap": 1},
    {"codec": COCKTAIL, "every": 4, "fragments": 2, "overlap": 1, "outer": "nesterov:lr=0.7,momentum=0.9"},
    {"codec": "powersgd:rank=1", "overlap": 1},
    {"codec": "sign:scale=rms,feedback=true"},
    {"codec": "intsgd", "secure": True},
    {"codec": "none"},
]


@pytest.fixture
def restarts(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4]))
    from benchmarks import restarts

    monkeypatch.setattr(restarts, "AT", 6)
    return restarts


@pytest.mark.parametrize("updates", RUNS, ids=lambda one: ",".join(map(str, one.values())))
def test_at_the_end_g_is_s(restarts, updates):
    job = restarts.job_of("delta", updates, 1, 9)
    hub = restarts.begun(job, None, {}, restarts.PLAN)
    outcome = hub.finish(restarts.PLAN.nodes)
    assert not hub.errors and not outcome.warnings
    trainings = [trainer.training.view for trainer in hub.trainers.values()]
    g, definition = trainings[0].state.sections["stage-0"].g, hub.trainers["a"].context.definition
    begun = torch.cat([definition.initial(name, 1).reshape(-1) for name in definition.parameter_names(0, 2)])
    moved = float((g - begun).norm())
    assert float((s_of(trainings) - g.double()).norm()) < BESIDE * moved
    metas = {step: meta for (step, _), (_, meta) in hub.shards.items()}
    assert metas[9]["unsent"] < BESIDE * metas[9]["moved"]
    assert updates["codec"] == "none" or metas[6]["unsent"] > 10 * BESIDE * metas[6]["moved"]
    assert metas[9]["moved"] == pytest.approx(moved, rel=0.3)


def test_an_error_feedback_of_its_own_is_left_out(restarts, monkeypatch):
    """x is at g after the last round, so that the closing rounds have nothing to send but the feedback."""
    moved, flush = [], DeltaMode._flush

    def flushed(mode, rounds):
        (section,) = mode.view.state.sections.values()
        before, left = section.g.clone(), float(section.feedback.norm())
        flush(mode, rounds)
        moved.append((float((section.g - before).norm()), left, float(before.norm())))

    monkeypatch.setattr(DeltaMode, "_flush", flushed)
    updates = {"codec": "chunked_topk:k=128,bits=2,feedback=true", "pattern": "all_to_all"}
    hub = restarts.begun(restarts.job_of("delta", updates, 1, 9), None, {}, restarts.PLAN)
    hub.finish(restarts.PLAN.nodes)
    assert len(moved) == 3 and not hub.errors
    assert all(by < 1e-5 * size and left == 0 for by, left, size in moved)


def test_an_export_from_the_middle_says_what_it_lacks(tmp_path, restarts):
    job = restarts.job_of("delta", RUNS[0], 1, 9)
    hub = restarts.begun(job, None, {}, restarts.PLAN)
    hub.finish(restarts.PLAN.nodes)
    for step in (6, 9):
        manifest, _ = restarts.checkpoint_of(hub, step)
        folder = tmp_path / "checkpoints" / f"step-{step:08}"
        folder.mkdir(parents=True)
        about = {"job": job.model_dump(mode="json"), "facts": hub.facts.model_dump(mode="json")}
        (folder / "manifest.json").write_text(json.dumps({**manifest, **about}))
    said = beside(tmp_path, 6)
    assert "from the middle of the run" in said and "% of what the weights have moved" in said
    assert beside(tmp_path, 9) == beside(tmp_path) == ""
