"""Trainers say for whom they wait, and the coordinator finds whom all of them wait for."""

import pytest
from membership_script import Script, holding
from plain_loop import plain_losses
from windows import Windows, facts_of, wait_until

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.faults.waits import explaining, may_wait_for
from farflung.job.schema import Job
from farflung.node.training import waiting
from farflung.node.training.waiting import Waiting
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

STEPS = 12
TWO_BY_TWO = Plan((("a", "b"), ("c", "d")), ((0, 1), (2, 3)), (2, 2))
LEFT = Plan((("a", "b"),), ((0, 1), (2, 3)), (4,))


def job_of(mode):
    updates = {"mode": mode, "block": 256, "codec": "none", **({"every": 2} if mode == "delta" else {})}
    return Job.model_validate(
        {
            "run": {"name": "waits", "seed": 3, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8, "tie": True},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 8, "microbatch": 2, "learning_rate": 3e-3, "eval_every": 0},
            "updates": updates,
            "checkpoint": {"every": 0},
        }
    )


def put_out(claims):
    """What the membership machine makes of it, when all heartbeats tell of action: whom it asks to go on."""
    script = Script().started("abcd")
    plan = script.state.view.plan
    assert plan.pipelines == TWO_BY_TWO.pipelines
    script(*(s.StepFinished(name, name + "1", 1, 1, 2.0) for name in "abcd"), dt=2.0)
    for half in range(400):
        said = [s.Waits(name, name + "1", 1, tuple(peers)) for name, peers in claims.items() if half % 20 == 0]
        script(s.Beats(tuple(script.heartbeats())), *said, s.Tick(), dt=0.5)
        if flushes := script.get(s.SendFlush):
            script(*(holding(script, name, 1) for name in flushes[0].to))
            return flushes[0].to, script.get(s.SendView)[0].view.plan
    raise AssertionError("nothing was done")


@pytest.mark.parametrize("mode", ["gradient", "delta"])
def test_a_member_that_computes_nothing_and_claims_action_is_replaced(monkeypatch, mode):
    """Nothing comes from d, whose heartbeats go on: the others say for whom they wait, and go on without it."""
    monkeypatch.setattr(waiting, "LONG_S", 0.2)
    job = job_of(mode)
    facts = facts_of(samples=90, validation=10, context=8, vocabulary=17, steps=STEPS)
    hub, data = Hub(job, facts), Windows(facts)
    for name in TWO_BY_TWO.nodes:
        hub.start(name, data)
    hub.begin(TWO_BY_TWO, TWO_BY_TWO.nodes, checkpoint=0)
    wait_until(lambda: hub.trainers["a"].step >= 2)
    hub.tamper = lambda sender, to, header, data: None if sender == "d" else data
    claims = {}
    while explaining(claims) != {"d"} or set(claims) != set("abc"):
        name, report = hub._next()
        if report.WhichOneof("kind") == "waits" and name != "d":  # d says that it computes
            assert set(report.waits.peers) <= may_wait_for(TWO_BY_TWO, name, mode == "gradient")
            claims[name] = frozenset(report.waits.peers)
    remaining, plan = put_out(claims)
    assert remaining == ("a", "b", "c") and "d" not in plan.nodes
    hub.kill("d")
    hub.change(LEFT, ["a", "b", "c"])
    outcome = hub.finish(["a", "b"])
    assert not hub.errors and set(outcome.losses) == set(range(1, STEPS + 1))
    if mode == "gradient":  # every sample counts, and once
        got = [outcome.losses[step] for step in range(1, STEPS + 1)]
        assert got == pytest.approx(plain_losses(job, facts, data, STEPS), abs=1e-4)


class Heard:
    """A node's reports, by a clock of the test's."""

    def __init__(self):
        self.now, self.bytes, self.reports = 0.0, 0, []
        self.waiting = Waiting(self.reports.append, lambda: self.bytes, lambda: self.now)

    def pass_by(self, seconds, act=None):
        self.reports.clear()
        for _ in range(int(seconds)):
            self.now += 1.0
            (act or (lambda: self.waiting.tick(3)))()
        return [(one.waits.view, *one.waits.peers, one.waits.moves) for one in self.reports]


def test_who_waits_for_long_says_so_again_and_again():
    node = Heard()
    assert node.pass_by(100) == []
    with node.waiting.on(lambda: {"b", "a"}):
        assert node.pass_by(9) == []
        assert node.pass_by(30) == [(3, "a", "b", False)] * 3
    assert node.pass_by(100) == []


def test_for_nobody_nothing_is_said():
    node = Heard()
    with node.waiting.on(tuple):
        assert node.pass_by(60) == []


def test_bytes_that_arrive_are_told():
    node = Heard()
    with node.waiting.on(lambda: ["a"]):
        node.pass_by(11)
        node.bytes += 1 << 16
        assert node.pass_by(60)[0] == (3, "a", True)
        node.bytes += 100  # what is asked again of everybody
        assert node.pass_by(20)[-1] == (3, "a", False)


def test_the_coordinator_is_waited_for():
    node = Heard()
    asks = lambda: node.waiting.on_the_coordinator(3)  # noqa: E731
    assert node.pass_by(25, asks) == [(3, False)] * 2
    node.now += 5  # it came
    assert node.pass_by(9, asks) == []
