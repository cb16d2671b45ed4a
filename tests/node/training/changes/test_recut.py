"""A stage boundary moves: what a node had learnt of the parameters that it keeps goes with them."""

import pytest
import torch
from windows import Windows, facts_of, wait_until

from farflung.job.schema import Job
from farflung.node.training.changes.view_change import ViewChange
from farflung.proto import control_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

STEPS = 40
BEFORE = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 1), (2, 4)), microbatches=(3, 3))
AFTER = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 2), (3, 4)), microbatches=(3, 3))


def job_of(updates, inside="ddp", **train):
    return Job.model_validate(
        {
            "run": {"name": "recut", "seed": 3, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 3, "width": 16, "heads": 2, "context": 8, "tie": True},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 12, "microbatch": 2, "learning_rate": 3e-3, "eval_every": 0, **train},
            "parallel": {"inside": inside},  # fsdp: several sections a stage
            "updates": {"mode": "delta", "block": 256, **updates},
            "checkpoint": {"every": 0},
        }
    )


def start(job, plan=BEFORE):
    facts = facts_of(samples=90, validation=10, context=8, vocabulary=17, steps=STEPS)
    hub = Hub(job, facts)
    for name in plan.nodes:
        hub.start(name, Windows(facts))
    hub.begin(plan, plan.nodes, checkpoint=0)
    return hub


def local(state):
    """parameter -> vectors that are this node's own."""
    found = {}
    for section in state.sections.values():
        vectors = {"x": (section.layout, section.x)}
        vectors |= {kind: (section.of_moments, vector) for kind, vector in section.moments.items()}
        if section.feedback is not None:
            vectors["feedback"] = section.layout, section.feedback
        for kind, (layout, vector) in vectors.items():
            for name, values in layout.views(vector):
                found.setdefault(name, {})[kind] = values.clone()
    return found


@pytest.fixture
def before(monkeypatch):
    """What each node holds when the old view is done with, by view."""
    found = {}
    catch_up = ViewChange._catch_up

    def spy(change, view):
        catch_up(change, view)
        holdings = change._holdings
        if holdings.state is not None:
            found[holdings.context.name, view.number] = (local(holdings.state), holdings.state.optimizer_steps)

    monkeypatch.setattr(ViewChange, "_catch_up", spy)
    return found


@pytest.mark.parametrize(
    ("updates", "inside", "optimizer"),
    [
        ({"codec": "topk:ratio=0.05", "overlap": 1}, "ddp", "adamw"),
        ({"codec": "chunked_topk:k=64,bits=2,feedback=true"}, "fsdp", "adamw"),
        ({"codec": "chunked_topk:k=64,bits=2,feedback=true"}, "fsdp", "adafactor"),
        ({"codec": "topk:ratio=0.05", "every": 5, "outer": "nesterov:lr=0.7,momentum=0.9"}, "ddp", "adamw"),
        ({"mode": "gradient", "codec": "topk:ratio=0.05,feedback=true"}, "ddp", "adamw"),
        ({"mode": "gradient", "codec": "topk:ratio=0.05,feedback=true"}, "ddp", "adafactor"),
    ],
)
def test_a_boundary_moves_and_what_was_learnt_goes_along(before, updates, inside, optimizer):
    hub = start(job_of(updates, inside, optimizer=optimizer))
    wait_until(lambda: min(one.step for one in hub.trainers.values()) >= 7)
    hub.change(AFTER, AFTER.nodes, start=False)
    kinds = ("m", "v") if optimizer == "adamw" else ("v",)
    own = kinds[0] if updates.get("mode") != "gradient" else "feedback"
    for name, trainer in hub.trainers.items():
        (old, steps), new = before[name, 2], local(trainer.state)
        kept = set(old) & set(new)
        assert kept and trainer.state.optimizer_steps == steps
        for one in kept:
            assert new[one].keys() == old[one].keys()
            assert all(torch.equal(values, old[one][kind]) for kind, values in new[one].items()), (name, one)
        assert any(bool(new[one][own].any()) for one in kept)
        for one in set(new) - kept:  # moments of as many steps as its own: else the first step would be far too long
            assert all(bool(new[one][kind].any()) for kind in kinds)
    for name in AFTER.nodes:
        hub.order(name, start=control_pb2.Start(view=hub.view))
    outcome = hub.finish(AFTER.nodes)
    assert not hub.errors and not outcome.warnings
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert outcome.losses[STEPS] < outcome.losses[1] - 0.3


@pytest.mark.parametrize("pattern", ["gossip", "async"])
def test_without_agreement_a_recut_begins_at_the_last_average_where_nobody_is_old(pattern):
    """Every member of both groups is new: nobody has weights to give, and nobody waits for them."""
    hub = start(job_of({"pattern": pattern, "agreed": False, "codec": "int8"}))
    wait_until(lambda: min(one.step for one in hub.trainers.values()) >= 5)
    hub.change(AFTER, AFTER.nodes)
    outcome = hub.finish(AFTER.nodes)
    assert not hub.errors and not outcome.warnings
    assert outcome.losses[STEPS] < outcome.losses[1] - 0.3
