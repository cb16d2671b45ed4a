"""Members of ``farflung.group`` that lie: their loops are a person's own, and so is what they send."""

import math
import struct
import threading
import zlib

import numpy as np
import pytest
import torch
from certificates import identities
from header_bodies import body_of
from torch import nn
from torch.nn import functional
from windows import facts_of, wait_until

from farflung import compress
from farflung.job.schema import Job
from farflung.node.rounds.checking.receipts import said_in
from farflung.node.rounds.checking.signed import Signer
from farflung.node.rounds.protocol.headers import received_result
from farflung.node.training.external.external_loop import OwnLoop
from farflung.node.training.external.external_model import OwnModel, Samples
from farflung.proto import data_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

NAMES, STEPS = ("a", "b", "c", "d"), 12
HONEST = ["a", "b", "c"]


def job_of(mode, pattern):
    return Job.model_validate(
        {
            "run": {"name": "own", "seed": 3, "steps": STEPS},
            "model": {"parameters": 771},
            "data": {"samples": 240},
            "train": {"batch": 12, "microbatch": 1},
            "updates": {"mode": mode, "block": 256, "codec": "none", "dense_rounds": 0, "pattern": pattern},
            "checkpoint": {"every": 0},
        }
    )


class Member:
    """A member's loop in a thread of its own; ``spoil`` changes its gradients before they are given."""

    def __init__(self, name, spoil=lambda step, model: None):
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 3))
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.loop, self.spoil, self.losses = OwnLoop(OwnModel(self.model, optimizer), optimizer), spoil, []
        random = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(240, 8, generator=random)
        self.targets = (self.inputs @ torch.randn(8, 3, generator=random)).argmax(1)
        self.thread = threading.Thread(target=self.live, name=f"loop of {name}", daemon=True)
        self.thread.start()

    def live(self):
        while (order := self.loop.take()) is not None:
            loss = functional.cross_entropy(self.model(self.inputs[order.samples]), self.targets[order.samples])
            loss.backward()
            self.spoil(order.step, self.model)
            self.losses.append(float(loss.detach()))
            self.loop.give(self.losses[-1])


def begin(mode, pattern, tamper=lambda *message: message[-1], spoil=lambda step, model: None, made=None):
    hub = Hub(job_of(mode, pattern), facts_of(samples=240, validation=0, context=8, vocabulary=17, steps=STEPS))
    hub.tamper = lambda *message: tamper(hub, *message)
    hub.identities = made or {}
    members = {name: Member(name, spoil if name == "d" else lambda step, model: None) for name in NAMES}
    for name, member in members.items():
        hub.start(name, Samples(240), own=member.loop)
    hub.begin(Plan(pipelines=tuple((n,) for n in NAMES), stages=((0, 0),), microbatches=(3,) * 4), NAMES, checkpoint=0)
    return hub, members


def without_d(hub):
    hub.change(Plan(pipelines=tuple((n,) for n in HONEST), stages=((0, 0),), microbatches=(4,) * 3), HONEST)


def end(hub, members, names):
    outcome = hub.finish(names)
    assert not {name for name in hub.errors if name in HONEST}
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    for name in HONEST:
        members[name].thread.join(20)
        weights = torch.cat([one.detach().flatten() for one in members[name].model.parameters()])
        assert bool(torch.isfinite(weights).all()) and float(weights.abs().max()) < 10
        assert members[name].losses[-1] < members[name].losses[0]
    return outcome


def blob_of(values):
    """What codec none writes, also of numbers that it would not take."""
    blob = bytearray(compress.make("none").encode(torch.ones_like(values)))
    blob[-4 * values.numel() :] = values.numpy().tobytes()
    blob[4:8] = struct.pack("<I", zlib.crc32(blob[8:], zlib.crc32(blob[:4])))
    return bytes(blob)


def changed(header, data, change):
    blob = blob_of(change(compress.decode(data.tobytes())))
    body_of(header).sizes[:] = [len(blob)]
    return np.frombuffer(blob, dtype=np.uint8)


CHANGES = {
    "not finite": lambda values: torch.full_like(values, math.nan),
    "huge": lambda values: values.add(1.0) * 1e9,
    "another size": lambda values: torch.ones(values.numel() + 8),
    "nothing": lambda values: torch.ones(8),
}


@pytest.mark.parametrize("pattern", ["publishers", "all_to_all"])
@pytest.mark.parametrize("lie", [*CHANGES, "the round before"])
def test_a_lying_members_update_is_left_out_and_it_is_named(lie, pattern):
    kept = {}

    def tamper(hub, sender, to, header, data):
        if sender != "d" or header.kind != data_pb2.CONTRIBUTION or body_of(header).round % 3:
            if sender == "d" and header.kind == data_pb2.CONTRIBUTION:
                kept[to, body_of(header).part] = (data_pb2.Header.FromString(header.SerializeToString()), data)
            return data
        if lie != "the round before":
            return changed(header, data, CHANGES[lie])
        header.CopyFrom(kept[to, body_of(header).part][0])  # a replay: nothing of this round comes of it
        return kept[to, body_of(header).part][1]

    hub, members = begin("delta", pattern, tamper)
    if lie == "the round before":
        wait_until(lambda: hub.trainers["a"].step >= 2)
        without_d(hub)
        end(hub, members, HONEST)
        return
    outcome = end(hub, members, NAMES)
    assert outcome.warnings and all(one.startswith("d: ") for one in outcome.warnings), outcome.warnings


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("mode", ["delta", "gradient"])
def test_a_loop_that_gives_a_gradient_that_is_not_finite_costs_its_step_and_nothing_else(mode, value):
    def spoil(step, model):
        if step == 5:
            for one in model.parameters():
                one.grad.fill_(value)

    hub, members = begin(mode, "publishers", spoil=spoil)
    outcome = end(hub, members, NAMES)
    assert any("not finite" in one for one in outcome.warnings), outcome.warnings


@pytest.mark.parametrize("mode", ["delta", "gradient"])
def test_a_member_that_publishes_two_results_is_named_by_the_others(mode):
    made = identities(NAMES)

    def tamper(hub, sender, to, header, data):
        if (sender, to) == ("d", "b") and header.kind == data_pb2.RESULT and body_of(header).round == 4:
            body_of(header).error ^= 1
            said = said_in(received_result(header.result, data.data))
            signer = Signer(made["d"], header.view, {"d": "d"})
            body_of(header).signature = signer.attestation(
                "d", body_of(header).section, body_of(header).round, body_of(header).part, said
            )
        return data

    hub, members = begin(mode, "publishers", tamper, made=made)
    named = [f"d: it signed two different results of part {part}" for part in range(8)]

    def seen():
        said = [report.warning for _, report in list(hub.reports.queue) if report.WhichOneof("kind") == "warning"]
        return sum(any(f"{one.node}: {one.message}".startswith(words) for words in named) for one in said)

    wait_until(lambda: seen() >= 3)
    without_d(hub)
    end(hub, members, HONEST)
