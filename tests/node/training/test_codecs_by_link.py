"""Nodes send over each link what the plan of the view says, and change it with a view."""

from dataclasses import replace

import pytest
from header_bodies import body_of
from plain_loop import plain_losses
from windows import Windows, facts_of, wait_until

from farflung.compress.blobs.wire import open_blob
from farflung.job.schema import Job
from farflung.node.rounds.protocol.payloads import pieces_of
from farflung.proto import data_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

PLAN = Plan(
    pipelines=(("a", "b"), ("c", "d")),
    stages=((0, 1), (2, 3)),
    microbatches=(3, 3),
    codecs={"a>b": "aqsgd:bits=4", "c>d": "none"},
)
STEPS = 40
JOB = Job.model_validate(
    {
        "run": {"name": "links", "seed": 5, "epochs": 8},
        "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8, "tie": True},
        "data": {"text": ["none.txt"]},
        "train": {"batch": 12, "microbatch": 2, "learning_rate": 3e-3, "eval_every": 0},
        "updates": {"mode": "gradient", "block": 256},
        "activations": {"forward": "aqsgd:bits=4", "backward": "int8", "by_link": True},
        "checkpoint": {"every": 0},
    }
)


def test_each_link_has_its_codec_and_another_after_a_view_change_and_the_loss_is_the_same():
    facts = facts_of(samples=60, validation=10, context=8, vocabulary=17, steps=STEPS)
    data, hub = Windows(facts), Hub(JOB, facts)
    sent: dict[tuple[int, str, str], set[str]] = {}

    def see(sender, to, header, payload):
        if header.kind in (data_pb2.ACTIVATION, data_pb2.ACTIVATION_GRADIENT) and body_of(header).sizes:
            for blob in pieces_of(payload.data, body_of(header).sizes):
                sent.setdefault((header.view, sender, to), set()).add(str(open_blob(blob)[0].spec).partition(":")[0])
        return payload

    hub.tamper = see
    for name in PLAN.nodes:
        hub.start(name, data)
    hub.begin(PLAN, PLAN.nodes, checkpoint=0)
    wait_until(lambda: hub.errors or hub.trainers["a"].step >= 15)
    assert not hub.errors
    hub.change(replace(PLAN, codecs={"a>b": "bf16", "c>d": "aqsgd:bits=4"}), list(PLAN.nodes))
    outcome = hub.finish(PLAN.nodes)
    assert not hub.errors
    before, after = min(sent)[0], max(sent)[0]
    assert {pair: sent[(before, *pair)] for pair in ("ab", "ba", "cd", "dc")} == {
        "ab": {"aqsgd"}, "ba": {"int8"}, "cd": {"none"}, "dc": {"none"},
    }  # fmt: skip
    assert {pair: sent[(after, *pair)] for pair in ("ab", "ba", "cd", "dc")} == {
        "ab": {"bf16"}, "ba": {"bf16"}, "cd": {"aqsgd"}, "dc": {"int8"},
    }  # fmt: skip
    plain = plain_losses(JOB, facts, data, STEPS)
    assert outcome.losses[STEPS] == pytest.approx(plain[STEPS - 1], rel=0.05)
