"""Small messages on which everybody waits are said again where they are lost: ready, commit, keys."""

import pytest
from header_bodies import body_of
from windows import Windows, facts_of

from farflung.job.schema import Job
from farflung.node.training import say_again
from farflung.proto import data_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

STEPS = 4
THREE = Plan(pipelines=(("a",), ("b",), ("c",)), stages=((0, 2),), microbatches=(2, 1, 1))
GRADIENT = {"mode": "gradient", "codec": "none"}
SECURE = {"mode": "delta", "codec": "intsgd", "secure": True}


def hub_of(updates):
    job = Job.model_validate(
        {
            "run": {"name": "lost", "seed": 3, "steps": STEPS},
            "model": {"family": "llama", "layers": 1, "width": 16, "heads": 2, "context": 8, "tie": False},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 8, "microbatch": 2, "learning_rate": 3e-3, "eval_every": 0},
            "updates": updates,
            "checkpoint": {"every": 0},
        }
    )
    facts = facts_of(samples=40, validation=0, context=8, vocabulary=17, steps=STEPS)
    hub, data = Hub(job, facts), Windows(facts)
    for name in THREE.nodes:
        hub.start(name, data)
    return hub


@pytest.mark.parametrize(("kind", "updates"), [("READY", GRADIENT), ("COMMIT", GRADIENT), ("KEY", SECURE)])
def test_the_first_between_every_two_members_is_lost(monkeypatch, kind, updates):
    monkeypatch.setattr(say_again, "FIRST_SECONDS", 0.1)
    hub, lost = hub_of(updates), set()

    def tamper(sender, to, header, data):
        if header.kind != data_pb2.Kind.Value(kind):
            return data
        what = (sender, to, getattr(body_of(header), "step", 0))
        if what not in lost:
            lost.add(what)
            return None
        return data

    hub.tamper = tamper
    hub.begin(THREE, list(THREE.nodes), checkpoint=0)
    outcome = hub.finish(list(THREE.nodes))
    assert lost and not hub.errors and outcome.warnings == [] and set(outcome.losses) == set(range(1, STEPS + 1))


def test_a_key_that_comes_twice_is_no_fault():
    hub, seen = hub_of(SECURE), set()

    def twice(sender, to, header, data):
        if header.kind == data_pb2.KEY and to != sender:
            header.mask_key.wanted = (sender, to) not in seen  # so that it is answered once more
            seen.add((sender, to))
        return data

    hub.tamper = twice
    hub.begin(THREE, list(THREE.nodes), checkpoint=0)
    outcome = hub.finish(list(THREE.nodes))
    assert not hub.errors and outcome.warnings == []
