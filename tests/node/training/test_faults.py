"""Things that go wrong inside a step: NaN, lost AQ-SGD entries, a restart from a checkpoint."""

import json
from functools import partial

import late_keepers
import pytest
import torch
from header_bodies import body_of
from plain_loop import plain_losses
from windows import Windows, facts_of, wait_until

from farflung.job.data.sampling import Position
from farflung.job.schema import Job
from farflung.node.training.steps.early_offers import SWITCH
from farflung.proto import control_pb2, data_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

STEPS = 24
PLAN = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 1), (2, 3)), microbatches=(3, 3))


def job_of(mode="gradient", updates=None, activations=None, checkpoint=0, epochs=None) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "faults", "seed": 5, **({"epochs": epochs} if epochs else {"steps": STEPS})},
            "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8, "tie": True},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 12, "microbatch": 2, "learning_rate": 3e-3, "eval_every": 0},
            "updates": {"mode": mode, "block": 256, **(updates or {})},
            "activations": activations or {},
            "checkpoint": {"every": checkpoint},
        }
    )


def start(job, artifacts=None, before=lambda hub: None, **view):
    facts = facts_of(samples=60, validation=10, context=8, vocabulary=17, steps=STEPS)
    data = Windows(facts)
    hub = Hub(job, facts, artifacts)
    for name in PLAN.nodes:
        hub.start(name, data)
    before(hub)
    hub.begin(PLAN, PLAN.nodes, **(view or {"checkpoint": 0}))
    return hub, facts, data


@pytest.fixture(autouse=True)
def late_offers(monkeypatch):
    """What `change_gradients` does comes after the backward pass, so nothing may have been offered within it."""
    monkeypatch.setenv(SWITCH, "0")


def change_gradients(hub, name, change):
    """``change(step, sections)`` after each step that this node computes."""
    trainer = hub.trainers[name]
    make = trainer.change.prepare

    def prepare(view):
        make(view)
        compute = trainer.training._compute

        def changed(number):
            tally = compute(number)
            change(number, trainer.state.sections.values())
            return tally

        trainer.training._compute = changed

    trainer.change.prepare = prepare


def poison(hub, name, step):
    """Make this node's gradient of one step not finite."""

    def change(number, sections):
        if number == step:
            next(iter(sections)).grad[3] = torch.nan

    change_gradients(hub, name, change)


@pytest.mark.parametrize(
    ("mode", "updates"),
    [
        ("gradient", {"codec": "none"}),
        ("gradient", {"codec": "int8", "pattern": "publishers"}),
        ("gradient", {"codec": "powersgd:rank=2,feedback=true"}),
        ("gradient", {"codec": "global_qsgd:bits=8", "dense_rounds": 2}),
        ("delta", {"codec": "cocktail:random=0.5,top=0.5,bits=4", "overlap": 1}),
    ],
)
def test_a_gradient_that_is_not_finite_is_applied_nowhere(mode, updates):
    hub, _, _ = start(job_of(mode, updates), before=lambda hub: poison(hub, "d", 5))
    outcome = hub.finish(PLAN.nodes)
    assert not hub.errors
    assert any("not finite" in warning for warning in outcome.warnings)
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert outcome.losses[STEPS] < outcome.losses[1]
    for trainer in hub.trainers.values():
        for section in trainer.state.sections.values():
            assert bool(torch.isfinite(section.x).all() and torch.isfinite(section.g).all())


def silence(hub, name):
    """This node's gradients are zero."""

    def change(number, sections):
        for section in sections:
            section.grad.zero_()

    change_gradients(hub, name, change)


@pytest.mark.parametrize(
    ("mode", "updates"),
    [
        ("gradient", {"codec": "none"}),
        ("delta", {"codec": "int8", "overlap": 1}),
    ],
)
def test_a_node_whose_updates_have_norm_zero_is_named_once(mode, updates):
    hub, _, _ = start(job_of(mode, updates), before=lambda hub: silence(hub, "d"))
    outcome = hub.finish(PLAN.nodes)
    assert not hub.errors
    [said] = outcome.warnings
    assert said.startswith("d: its last 5 updates had norm zero")


@pytest.mark.parametrize("mode", ["gradient", "delta"])
def test_alone_with_zero_gradients_it_says_so(mode):
    facts = facts_of(samples=60, validation=10, context=8, vocabulary=17, steps=STEPS)
    hub = Hub(job_of(mode), facts)
    hub.start("a", Windows(facts))
    silence(hub, "a")
    hub.begin(Plan(pipelines=(("a",),), stages=((0, 3),), microbatches=(6,)), ("a",), checkpoint=0)
    outcome = hub.finish(("a",))
    assert not hub.errors
    [said] = outcome.warnings
    assert said.startswith("a: its last 5 updates had norm zero")


def test_an_activation_that_is_not_finite_drops_the_step_and_names_the_stage():
    job = job_of(activations={"forward": "aqsgd:bits=4", "backward": "int8"}, epochs=6)

    def break_output(hub):
        trainer = hub.trainers["c"]
        make = trainer.change.prepare

        def prepare(view):
            make(view)
            forward = trainer.training.chunks[0].outgoing.forward

            def broken(step, microbatch, samples, output):
                return forward(step, microbatch, samples, output * (float("nan") if step == 7 else 1.0))

            trainer.training.chunks[0].outgoing.forward = broken

        trainer.change.prepare = prepare

    hub, _, _ = start(job, before=break_output)
    outcome = hub.finish(PLAN.nodes)
    assert not hub.errors
    assert any("c: stage 0: the output of step 7 is not finite" in warning for warning in outcome.warnings)
    assert any("step 7 had a gradient that is not finite" in warning for warning in outcome.warnings)
    assert outcome.losses[30] < outcome.losses[1]
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())


def test_int8_gradients_with_error_feedback_stay_close_to_the_plain_loop():
    job = job_of(updates={"codec": "int8"})
    hub, facts, data = start(job)
    outcome = hub.finish(PLAN.nodes)
    got = [outcome.losses[step] for step in range(1, STEPS + 1)]
    assert got == pytest.approx(plain_losses(job, facts, data, STEPS), abs=5e-2)


def test_lost_aqsgd_entries_are_sent_whole_in_the_same_microbatch():
    job = job_of(activations={"forward": "aqsgd:bits=4", "backward": "int8"}, epochs=6)
    hub, facts, data = start(job)
    wait_until(lambda: hub.trainers["b"].step >= 8)
    receiver = hub.trainers["b"].training.chunks[0].incoming.receiver
    for sample in list(receiver._entries)[::2]:
        receiver.forget(sample)
    outcome = hub.finish(PLAN.nodes)
    assert not hub.errors
    sender = hub.trainers["a"].training.chunks[0].outgoing.sender
    assert sender.counters.nacks > 0
    assert sender.counters.hit_rate > 0.5
    plain = plain_losses(job, facts, data, 30)
    assert outcome.losses[30] == pytest.approx(plain[29], rel=0.05)


@pytest.mark.parametrize("mode", ["gradient", "delta"])
def test_a_receiver_that_restarts_asks_for_no_more_than_is_in_flight(mode):
    """The sender holds what an earlier receiver had of each sample; without a word each would be asked for again."""
    job = job_of(mode, {"codec": "none"}, {"forward": "aqsgd:bits=4", "backward": "int8"}, epochs=8)

    def hold(hub):
        """Nothing of b arrives after two epochs."""
        hub.tamper = lambda sender, to, header, payload: (
            None if sender == "b" and getattr(body_of(header), "step", 0) > 12 else payload
        )

    hub, _, data = start(job, before=hold)
    wait_until(lambda: hub.trainers["b"].step >= 12)
    hub.kill("b")
    asked = []

    def see(sender, to, header, payload):
        if header.kind == data_pb2.NACK and sender == "b":  # d may lack what was in flight as the view changed
            asked.append((to, len(body_of(header).samples)))
        return payload

    hub.tamper = see
    hub.dead.discard("b")
    hub.start("b", data)
    hub.change(PLAN, ["a", "c", "d"], ["b"])
    outcome = hub.finish(PLAN.nodes)
    assert not hub.errors
    assert {to for to, _ in asked} == {"a"}
    # 1F1B of two stages: two microbatches of two samples are under way before the first gradient is back.
    assert sum(samples for _, samples in asked) <= 4
    sender = hub.trainers["a"].training.chunks[0].outgoing.sender
    receiver = hub.trainers["b"].training.chunks[0].incoming.receiver
    assert {one: entry.checksum for one, entry in sender._entries.items()} == {
        one: entry.checksum for one, entry in receiver._entries.items()
    }
    assert outcome.losses[40] < outcome.losses[1]


def test_aqsgd_between_the_stages_of_an_interleaved_pipeline():
    job = job_of("delta", {"codec": "none"}, {"forward": "aqsgd:bits=4", "backward": "int8"}, checkpoint=20, epochs=6)
    plan = Plan((("a", "b", "a", "b"),), ((0, 0), (1, 1), (2, 2), (3, 3)), (6,), schedule="interleaved")
    facts = facts_of(samples=60, validation=10, context=8, vocabulary=17, steps=30)
    hub = Hub(job, facts)
    for name in plan.nodes:
        hub.start(name, Windows(facts))
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors and not outcome.warnings
    first, second = hub.trainers["a"].training.chunks
    assert first.outgoing.sender.counters.hit_rate > 0.7 and second.outgoing.sender.counters.hit_rate > 0.7
    assert sorted(hub.shards) == [(step, f"stage-{stage}.safetensors") for step in (20, 30) for stage in range(4)]
    assert outcome.losses[30] < outcome.losses[1]


def test_aqsgd_keeps_on_disk_what_has_no_room_in_memory():
    job = job_of(activations={"forward": "aqsgd:bits=4", "backward": "int8", "disk_gb": 0.001}, epochs=6)

    def little_memory(hub):
        for trainer in hub.trainers.values():
            trainer.resources.ends.memory = 4000  # of 30 samples at 256 bytes each

    hub, _, _ = start(job, before=little_memory)
    outcome = hub.finish(PLAN.nodes)
    assert not hub.errors and not outcome.warnings
    for sender in (hub.trainers[name].training.chunks[0].outgoing.sender for name in "ac"):
        assert sender.bytes <= 4000 and len(sender.disk) > 0
        assert sender.counters.hit_rate > 0.7 and not sender.counters.nacks


def test_where_aqsgd_does_not_pay_the_sender_goes_on_without_it():
    job = job_of(activations={"forward": "aqsgd:bits=4", "backward": "int8"}, epochs=8)
    plan = Plan(pipelines=(("a", "b"),), stages=((0, 1), (2, 3)), microbatches=(6,))
    facts = facts_of(samples=60, validation=10, context=8, vocabulary=17, steps=40)
    hub = Hub(job, facts)
    for name in plan.nodes:
        hub.start(name, Windows(facts))
        hub.trainers[name].resources.ends.memory = 1000  # room for three samples: nothing is ever seen again
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors
    (warning,) = [warning for warning in outcome.warnings if "AQ-SGD gains nothing" in warning]
    assert warning.startswith("a: stage 0: only ") and warning.endswith("activations go as tile:bits=4 from here on")
    assert hub.trainers["a"].training.chunks[0].outgoing.sender is None
    assert len(hub.trainers["b"].training.chunks[0].incoming.receiver) == 0
    steps = [event for event in hub.emitted["a"] if event["event"] == "step"]
    assert steps[10]["aqsgd_hit_rate"] < 0.1 and "aqsgd_hit_rate" not in steps[-1]
    assert outcome.losses[40] < outcome.losses[1]
    assert hub.trainers["a"].resources.ends.sender("b", 2) is None  # nor in the views to come


@pytest.mark.parametrize(("mode", "updates"), [("gradient", {}), ("delta", {"codec": "none", "overlap": 1})])
def test_a_checkpoint_goes_on_where_it_was(mode, updates, monkeypatch):
    """Keepers of stages load them, the others have them from these, also who asks before a keeper has begun to."""
    job = job_of(mode, updates, checkpoint=10)
    hub, _, _ = start(job)
    whole = hub.finish(PLAN.nodes)
    shards = {file: content for (step, file), content in hub.shards.items() if step == 10}
    assert sorted(shards) == ["stage-0.safetensors", "stage-1.safetensors"]
    meta = shards["stage-0.safetensors"][1]
    manifest = {**meta, "files": {file: {} for file in shards}}
    artifacts = {f"checkpoint/10/{file}": content for file, (content, _) in shards.items()}
    artifacts["checkpoint/10/manifest.json"] = json.dumps(manifest).encode()
    loaded = {}

    def count(hub):
        """Bytes of stages that each node has from the coordinator."""
        late_keepers.install(monkeypatch, PLAN)
        for name, wire in hub.wires.items():
            wire.fetch = partial(counted, name, wire.fetch)

    def counted(name, fetch, file, offset=0, length=None):
        found = fetch(file, offset, length)
        loaded[name] = loaded.get(name, 0) + (len(found) if file.endswith(".safetensors") else 0)
        return found

    again, _, _ = start(
        job,
        artifacts,
        count,
        checkpoint=10,
        step=10,
        cursor=meta["cursor"],
        redo=meta["redo"],
        sections=[control_pb2.SectionState(section=name, round=round) for name, round in meta["rounds"].items()],
    )
    rest = again.finish(PLAN.nodes)
    assert sorted(rest.losses) == list(range(11, STEPS + 1))
    keepers = {PLAN.keeper(stage) for stage in range(len(PLAN.stages))}
    least = min(len(content) for content, _ in shards.values()) // 2
    assert {name for name, count in loaded.items() if count > least} == keepers, "the others have it from these"
    got, wanted = ([outcome.losses[step] for step in range(11, STEPS + 1)] for outcome in (rest, whole))
    if mode == "gradient":
        assert meta["redo"] == []
        assert got == pytest.approx(wanted, abs=1e-6)
    else:  # the round of step 10 was in flight: its samples are trained again, with x := g and fresh paths
        assert meta["redo"] == Position().positions(10, job.train.batch)
        assert sum(got) / len(got) == pytest.approx(sum(wanted) / len(wanted), abs=0.1)
