"""Views end in the middle of anything: nothing committed is lost, nothing is counted twice."""

import collections
import gc
import threading
import weakref
from dataclasses import replace

import pytest
import torch
from header_bodies import body_of
from plain_loop import plain_losses
from windows import Windows, facts_of, wait_until

from farflung.job.data.sampling import Position, sample_ids
from farflung.job.schema import Job
from farflung.proto import control_pb2, data_pb2
from farflung.scheduler import Device, Network, Plan, plan
from farflung.scheduler.workloads.jobs import workload_of
from farflung.scheduler.workloads.losses import loss_of
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

STEPS = 30


def job_of(mode: str, **more) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "views", "seed": 3, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8, "tie": True},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 12, "microbatch": 2, "learning_rate": 3e-3, "eval_every": 0},
            "updates": {"mode": mode, "block": 256, **more.pop("updates", {})},
            "checkpoint": {"every": 0},
            **more,
        }
    )


def plan_of(pipelines, stages, shares) -> Plan:
    return Plan(pipelines=tuple(map(tuple, pipelines)), stages=stages, microbatches=shares)


TWO_BY_TWO = plan_of([["a", "b"], ["c", "d"]], ((0, 1), (2, 3)), (3, 3))
CHOSEN = replace(
    TWO_BY_TWO,
    codecs={"updates of stage 0": "int8", "updates of stage 1": "cocktail:random=0.5,top=0.5,bits=4"},
    overlap=1,
)
PAIR = plan_of([["a"], ["c"]], ((0, 3),), (3, 3))
LEFT = plan_of([["a", "b"]], ((0, 1), (2, 3)), (6,))


def start(job, plan=TWO_BY_TWO):
    facts = facts_of(samples=90, validation=10, context=8, vocabulary=17, steps=STEPS)
    data = Windows(facts)
    hub = Hub(job, facts)
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    return hub, facts, data


@pytest.mark.parametrize(
    ("mode", "codec"), [("gradient", "topk:ratio=0.1"), ("delta", "chunked_topk:k=512,bits=2,feedback=true")]
)
def test_an_error_feedback_does_not_outlive_its_group(mode, codec):
    hub, _, _ = start(job_of(mode, updates={"codec": codec}))
    wait_until(lambda: hub.trainers["a"].step >= 3)
    kept = [hub.trainers[name].state.sections[f"stage-{stage}"] for stage, name in enumerate("ab")]
    assert any(section.feedback is not None for section in kept)
    hub.kill("d")
    hub.change(LEFT, ["a", "b", "c"])  # a and b are alone in their stages
    outcome = hub.finish(["a", "b"])
    assert not hub.errors
    assert all(section.feedback is None for section in kept)
    assert outcome.losses[STEPS] < outcome.losses[1]


@pytest.mark.parametrize("after", [1, 7])
def test_gradient_mode_gives_the_undisturbed_curve_after_a_death(after):
    job = job_of("gradient")
    hub, facts, data = start(job)
    wait_until(lambda: hub.trainers["a"].step >= after)
    hub.kill("d")
    hub.change(LEFT, ["a", "b", "c"])  # c has lost its pipeline: a spare
    outcome = hub.finish(["a", "b"])
    got = [outcome.losses[step] for step in range(1, STEPS + 1)]
    assert got == pytest.approx(plain_losses(job, facts, data, STEPS), abs=1e-4)
    assert not hub.errors
    assert outcome.samples >= (STEPS - 1) * job.train.batch  # a dead node's report may die with it


def test_a_joiner_takes_the_optimiser_along_in_gradient_mode():
    job = job_of("gradient")
    facts = facts_of(samples=90, validation=10, context=8, vocabulary=17, steps=STEPS)
    data = Windows(facts)
    hub = Hub(job, facts)
    for name in TWO_BY_TWO.nodes:
        hub.start(name, data)
    hub.begin(LEFT, ["a", "b"], checkpoint=0)
    wait_until(lambda: hub.trainers["a"].step >= 5)
    hub.change(TWO_BY_TWO, ["a", "b"], ["c", "d"])
    outcome = hub.finish(TWO_BY_TWO.nodes)
    got = [outcome.losses[step] for step in range(1, STEPS + 1)]
    assert got == pytest.approx(plain_losses(job, facts, data, STEPS), abs=1e-4)
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())


def test_what_is_finished_of_a_view_is_finished_with_its_job():
    """A member that has not heard of a step's commit takes the step in the next view, whose job is another one."""
    train = {"batch": 12, "microbatch": 2, "learning_rate": 3e-3, "decay": "cosine", "eval_every": 0}
    hub, _, _ = start(job_of("gradient", train=train), PAIR)
    last = 6

    def unheard(sender, to, header, data):
        return None if header.kind == data_pb2.COMMIT and body_of(header).step >= last else data

    hub.tamper = unheard
    wait_until(lambda: hub.trainers["a"].step >= last and hub.trainers["c"].training.view.ready_step == last)
    hub.tamper = None
    longer = hub.job.model_copy(update={"run": hub.job.run.model_copy(update={"steps": 4 * STEPS})})
    hub.change(PAIR, ["a", "c"], job=longer.model_dump_json())  # raises where members of a stage differ
    assert hub.trainers["c"].step == last and hub.trainers["c"].context.facts.steps == 4 * STEPS
    hub.stop()


def test_a_joiner_takes_bf16_moments_along():
    job = job_of("gradient")
    job = job.model_copy(update={"train": job.train.model_copy(update={"moments": "bf16"})})
    hub, _, data = start(job, LEFT)
    wait_until(lambda: hub.trainers["a"].step >= 5)
    for name in "cd":
        hub.start(name, data)
    hub.change(TWO_BY_TWO, ["a", "b"], ["c", "d"])
    outcome = hub.finish(TWO_BY_TWO.nodes)
    assert not hub.errors and all(len(contents) == 1 for contents in outcome.fingerprints.values())
    kept = hub.trainers["c"].state.sections["stage-0"].moments
    assert {values.dtype for values in kept.values()} == {torch.bfloat16}
    assert outcome.losses[max(outcome.losses)] < outcome.losses[1]


def test_other_stages_after_a_change():
    job = job_of("gradient")
    hub, facts, data = start(job)
    wait_until(lambda: hub.trainers["a"].step >= 5)
    hub.kill("b")
    hub.change(plan_of([["c", "d"], ["a", "e"]], ((0, 2), (3, 3)), (2, 4)), ["a", "c", "d"], start_also(hub, "e", data))
    outcome = hub.finish(["a", "c", "d", "e"])
    got = [outcome.losses[step] for step in range(1, STEPS + 1)]
    assert got == pytest.approx(plain_losses(job, facts, data, STEPS), abs=1e-4)
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())


def test_a_place_that_was_given_up_takes_no_memory_in_the_next_view(monkeypatch):
    one_at_a_time, collect = threading.Lock(), gc.collect

    def in_turn() -> int:
        """While one thread of a process collects, another's call does nothing; nodes have a process each."""
        with one_at_a_time:
            return collect()

    monkeypatch.setattr(gc, "collect", in_turn)
    hub, _, _ = start(job_of("delta"))
    wait_until(lambda: hub.trainers["a"].step >= 3)
    place = weakref.ref(hub.trainers["a"].state.sections["stage-0"])
    gc.disable()  # nothing but the change lets go of it
    try:
        hub.change(plan_of([["c", "d"], ["b", "a"]], ((0, 1), (2, 3)), (2, 4)), list("abcd"))
        hub.finish(list("abcd"))
        assert place() is None
    finally:
        gc.enable()


def test_interleaved_before_and_after_a_change():
    job = job_of("gradient")
    facts = facts_of(samples=90, validation=10, context=8, vocabulary=17, steps=STEPS)
    data = Windows(facts)
    hub = Hub(job, facts)
    interleaved = Plan(
        pipelines=(("a", "b", "a", "b"), ("c", "d", "c", "d")),
        stages=((0, 0), (1, 1), (2, 2), (3, 3)),
        microbatches=(3, 3),
        schedule="interleaved",
    )
    for name in TWO_BY_TWO.nodes:
        hub.start(name, data)
    hub.begin(TWO_BY_TWO, TWO_BY_TWO.nodes, checkpoint=0)
    wait_until(lambda: hub.trainers["a"].step >= 4)
    hub.change(interleaved, ["a", "b", "c", "d"])
    wait_until(lambda: hub.trainers["a"].step >= 9)
    hub.kill("d")
    hub.change(LEFT, ["a", "b", "c"])
    outcome = hub.finish(["a", "b"])
    got = [outcome.losses[step] for step in range(1, STEPS + 1)]
    assert got == pytest.approx(plain_losses(job, facts, data, STEPS), abs=1e-4)
    assert not hub.errors


def start_also(hub, name, data):
    hub.start(name, data)
    return [name]


@pytest.mark.parametrize(
    "updates",
    [
        {"codec": "none", "overlap": 0},
        {"codec": "cocktail:random=0.5,top=0.5,bits=4", "overlap": 1},
        {"codec": "cocktail", "overlap": 1, "pattern": "publishers", "dense_rounds": 3},
        {"codec": "powersgd:rank=2", "overlap": 1, "dense_rounds": 2},
    ],
)
def test_delta_mode_counts_every_sample_once_over_deaths_and_joins(updates):
    job = job_of("delta", updates=updates, run={"name": "views", "seed": 3, "epochs": 3})
    hub, facts, _ = start(job)
    trained: collections.Counter[int] = collections.Counter()
    count_samples(hub, trained)
    wait_until(lambda: hub.trainers["a"].step >= 4)
    hub.change(LEFT, ["a", "b", "c", "d"])
    wait_until(lambda: hub.trainers["a"].step >= 9)
    hub.change(TWO_BY_TWO, ["a", "b", "c", "d"])
    outcome = hub.finish(TWO_BY_TWO.nodes)
    assert not hub.errors
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert outcome.losses[max(outcome.losses)] < outcome.losses[1]
    assert set(trained) == set(range(facts.samples))
    extra = sum(trained.values()) - 3 * facts.samples
    assert 0 <= extra < job.train.batch  # the last batch is filled up from the next epoch
    assert min(trained.values()) >= 3


def test_the_plan_may_choose_how_updates_travel():
    """Codecs of each group, and an overlap; the next view has others."""
    hub, _, _ = start(job_of("delta", updates={"codec": "auto", "overlap": "auto"}), CHOSEN)

    def travels(name):
        training = hub.trainers[name].training
        codecs = {section: str(one.terms.codec.spec) for section, one in training.view.exchanges.items()}
        return codecs, training.mode._overlap

    wait_until(lambda: hub.trainers["a"].step >= 4)
    sparse = "cocktail:random=0.5,top=0.5"
    assert travels("a") == ({"stage-0": "int8", "tied": "int8"}, 1)
    assert travels("d") == ({"stage-1": sparse, "tied": "int8"}, 1)
    hub.change(replace(TWO_BY_TWO, codecs={"updates": "bf16"}, overlap=0), ["a", "b", "c", "d"])
    wait_until(lambda: hub.trainers["a"].step >= 12)
    assert travels("b") == ({"stage-1": "bf16", "tied": "bf16"}, 0)
    outcome = hub.finish(TWO_BY_TWO.nodes)
    assert not hub.errors and not outcome.warnings
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert outcome.losses[max(outcome.losses)] < outcome.losses[1]


def test_nodes_train_with_what_the_plan_has_chosen_for_a_slow_link():
    """A fifth of the weights in a round of each step: one bit a value, and the members agree in the end."""
    fifths = {"every": 5, "fragments": 5, "dense_rounds": 5, "block": 1024}
    job = job_of("delta", updates={"codec": "auto", "overlap": 1, **fifths})
    work = workload_of({**job.model_dump(), "parallel": {"stages": 1, "pipelines": 2}}, vocabulary=17)
    pairs, eden = [("a", "b"), ("b", "a")], "eden:bits=1,biased=true"
    devices = [Device(name, tflops=1e-6) for name in "ab"]
    rates = (12e3 * 0.75**at for at in range(20))
    slower = (Network.measured(devices, dict.fromkeys(pairs, 0.001), dict.fromkeys(pairs, rate)) for rate in rates)
    made = next(one for net in slower if (one := plan(net, work, time_limit=0.2)).codecs == {"updates": eden})
    assert f"updates go as {eden} with overlap 1" in made.why
    assert loss_of("delta", 5, eden).words in made.why
    hub, _, _ = start(job, made)
    wait_until(lambda: hub.trainers["a"].step >= 4)
    for name in made.nodes:
        assert {str(one.terms.codec.spec) for one in hub.trainers[name].training.view.exchanges.values()} == {eden}
    outcome = hub.finish(made.nodes)
    assert not hub.errors and not outcome.warnings
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert outcome.losses[max(outcome.losses)] < outcome.losses[1]


def count_samples(hub, trained):
    """Which samples took part in a finished step: asked of the last stages, whose step is their pipeline's."""
    for name in ("b", "d"):
        trainer = hub.trainers[name]
        real = hub.wires[name].report

        def report(message, trainer=trainer, real=real):
            if message.WhichOneof("kind") == "step":
                training = trainer.training
                positions = training.view.position.positions(message.step.step, trainer.context.job.train.batch)
                samples = sample_ids(positions, trainer.context.job.run.seed, trainer.context.facts.samples)
                from farflung.job.data.sampling import assign

                for index in assign(samples, training.view.plan.microbatches, 2)[training.view.pipeline]:
                    trained[samples[index]] += 1
            real(message)

        hub.wires[name].report = report


def test_a_sample_stream_with_redo_is_what_the_view_trains():
    position = Position(3, 36, (5, 7))
    assert position.positions(4, 4) == [5, 7, 36, 37]


def test_nodes_of_one_machine_divide_its_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("farflung.node.training.changes.view_change.usable_cores", lambda: 8)
    asked = []
    monkeypatch.setattr("farflung.node.training.changes.view_change.torch.set_num_threads", asked.append)
    hub, _, _ = start(job_of("gradient"))
    view = control_pb2.View(number=1)
    for name, host in [("a", "10.0.0.1"), ("b", "10.0.0.1"), ("c", "10.0.0.1"), ("d", "10.0.0.2")]:
        view.members.add(name=name, address=f"{host}:7070")
    asked.clear()
    for name in "ad":
        hub.trainers[name].change.share_cores(view)
    assert asked == [2, 8]
    hub.finish(TWO_BY_TWO.nodes)
