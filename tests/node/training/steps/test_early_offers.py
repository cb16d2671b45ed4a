"""Gradient rounds that begin during the backward pass: the same bits, and most parts leave while it runs."""

import threading

import pytest
from windows import Windows, facts_of

from farflung.benchmarks.early_rounds import Group, ddp_step_s
from farflung.job.schema import Job, Updates
from farflung.node.rounds.round_link import RoundLink
from farflung.node.state import buckets
from farflung.node.state.sections.gradients import Gradients
from farflung.node.state.sections.section import Layout
from farflung.node.state.stage_state import round_plan
from farflung.node.training.endings import ViewEnds
from farflung.node.training.steps.early_offers import EarlyOffers, is_final
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

STEPS = 2
WHOLE, HALVES, QUARTERS = ((0, 5),), ((0, 2), (3, 5)), ((0, 0), (1, 2), (3, 3), (4, 5))


def job_of(train=None, lora=False, **updates) -> Job:
    model = {"family": "gpt2", "layers": 4, "width": 32, "heads": 4, "context": 16, "tie": True}
    return Job.model_validate(
        {
            "run": {"name": "early", "seed": 3, "steps": STEPS},
            "model": model | ({"lora": {"rank": 8}} if lora else {}),
            "data": {"text": ["none.txt"]},
            "train": {"batch": 12, "microbatch": 2, "learning_rate": 3e-3, "eval_every": 0, **(train or {})},
            "updates": {"mode": "gradient", "block": 512, **updates},
            "checkpoint": {"every": 0},
        }
    )


def plan_of(stages, pipelines=2, nodes=0, schedule="1f1b") -> Plan:
    rows = tuple(tuple(f"n{d}{s % (nodes or len(stages))}" for s in range(len(stages))) for d in range(pipelines))
    shares = {2: (4, 2), 3: (3, 2, 1)}[pipelines]
    return Plan(pipelines=rows, stages=stages, microbatches=shares, schedule=schedule)


@pytest.fixture
def offers(monkeypatch):
    """Buckets of a few blocks. Of all offers: (section, parts, whether a backward pass was running)."""
    monkeypatch.setattr(buckets, "LEAST", 2048)
    monkeypatch.setattr(buckets, "MOST", 4)
    found, running = [], threading.local()
    offer, told = RoundLink.offer, Gradients.told

    def watched(gradients, tell):
        def among(name):
            running.yes = True
            tell(name)
            running.yes = False

        return told(gradients, among)

    def noted(link, parts):
        found.append((link.rounds.plan.section, len(parts), getattr(running, "yes", False)))
        offer(link, parts)

    monkeypatch.setattr(Gradients, "told", watched)
    monkeypatch.setattr(RoundLink, "offer", noted)
    return found


def trained(job, plan):
    facts = facts_of(samples=60, validation=2, context=16, vocabulary=29, steps=STEPS)
    hub, data = Hub(job, facts), Windows(facts)
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    return outcome


RUNS = {
    "publishers, int8": (job_of(codec="int8"), plan_of(WHOLE, 3)),
    "two stages, tied, top-k": (job_of(codec="topk:ratio=0.1"), plan_of(HALVES)),
    "interleaved, recompute, bf16": (
        job_of({"recompute": True, "precision": "bf16"}),
        plan_of(QUARTERS, nodes=2, schedule="interleaved"),
    ),
    "adapters": (job_of(lora=True), plan_of(WHOLE)),
    "phases": (job_of(codec="powersgd:rank=2"), plan_of(WHOLE, 3)),
}


@pytest.mark.parametrize(("job", "plan"), RUNS.values(), ids=RUNS)
def test_the_same_bits_as_without(job, plan, offers, monkeypatch):
    early = trained(job, plan)
    during = sum(count for *_, count, among in offers if among)
    after = sum(count for *_, count, among in offers if not among)
    assert during > after  # what is left to the end: sections of one part, and whatever no backward pass reaches
    offers.clear()
    monkeypatch.setattr(EarlyOffers, "begin", lambda *_: None)
    late = trained(job, plan)
    assert not offers
    assert early.losses == late.losses and early.fingerprints == late.fingerprints


def test_momentum_is_offered_after_the_pass(offers):
    """1-bit Adam makes it of the whole gradient. Its dense rounds are early, the others are not."""
    plan = plan_of(WHOLE)
    counts = []
    for dense in (1, 2):
        trained(job_of({"optimizer": "onebit_adam", "clip": 0.0}, codec="sign", dense_rounds=dense), plan)
        counts.append(sum(among for *_, among in offers))
        offers.clear()
    assert counts[1] == 2 * counts[0] > 0


def test_a_view_that_ends_within_a_backward_pass(offers, monkeypatch):
    """The order comes through the pass; the step did not happen, and the next view trains it."""
    plan = plan_of(WHOLE)
    undisturbed = trained(job_of(), plan)
    facts = facts_of(samples=60, validation=2, context=16, vocabulary=29, steps=STEPS)
    hub, data = Hub(job_of(), facts), Windows(facts)
    offer, told, order = RoundLink.offer, Gradients.told, hub.order
    begun, ordered, ended = threading.Event(), threading.Event(), []

    def offered(link, parts):
        offer(link, parts)
        if link.rounds.me == "n10" and link.rounds.applied == STEPS - 1 and not begun.is_set():
            begun.set()
            assert ordered.wait(60)

    def watched(gradients, tell):
        def among(name):
            try:
                tell(name)
            except ViewEnds:
                ended.append(name)
                raise

        return told(gradients, among)

    def noted(name, **kind):
        order(name, **kind)
        if name == "n10" and "flush" in kind:
            ordered.set()

    monkeypatch.setattr(RoundLink, "offer", offered)
    monkeypatch.setattr(Gradients, "told", watched)
    monkeypatch.setattr(hub, "order", noted)
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    assert begun.wait(60)
    hub.change(plan, plan.nodes)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    assert ended and outcome.views == 2
    assert outcome.losses == undisturbed.losses and outcome.fingerprints == undisturbed.fingerprints


def test_every_bucket_has_a_part_of_each_publisher(monkeypatch):
    monkeypatch.setattr(buckets, "LEAST", 4096)
    plan = Plan(
        pipelines=(("a",), ("b",), ("c",)),
        stages=((0, 1),),
        microbatches=(1, 1, 1),
        publishers=((0.5, 0.25, 0.25),),
    )
    layout = Layout.of("stage-0", {"one": (1000, 100), "two": (250, 100)})

    def parts_of(**updates):
        return round_plan(plan, layout, Updates(block=256, pattern="publishers", **updates)).parts

    parts = parts_of(mode="gradient")
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])] and parts[-1].stop == layout.numel
    assert [part.publisher for part in parts] == list("abc") * 10
    lengths = {name: sum(part.stop - part.start for part in parts if part.publisher == name) for name in "abc"}
    assert lengths["a"] == pytest.approx(layout.numel / 2, rel=0.02)
    assert lengths["b"] == pytest.approx(layout.numel / 4, rel=0.02)
    assert len(parts_of(mode="delta")) == len(parts_of(mode="gradient", robust="centered:tau=1")) == 3


def test_only_a_final_gradient_is_offered_early():
    assert is_final("fp32", True) and is_final("bf16", True)
    assert not is_final("fp16", True) and not is_final("fp32", False)


def test_the_exchange_hides_behind_the_pass():
    """On a computed clock: a step of 1 s of four members on links of 1 and 10 Gbit/s, 8 bits an element."""
    for rate in (1_000.0, 10_000.0):
        early, late = (Group(4, rate, 1.0, early).step_s() for early in (True, False))
        assert 1.0 < early < ddp_step_s(4, rate, 1.0) < late
    assert early < 1.05
