"""What of a device's memory lies in main memory changes no bit, and lies where it should."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from far_device import FAR, Far, far, far_device, near
from windows import Windows, facts_of

from farflung.job.checks.train import offload_mistakes
from farflung.job.schema import Job
from farflung.node.life import check_offload
from farflung.node.state.optimizers import adamw_fused, optimizers
from farflung.node.state.stage_state import StageState
from farflung.node.training.resources import Resources
from farflung.node.training.steps.trying import Trying
from farflung.node.training.trainer import Trainer
from farflung.proto.errors import FarflungError
from farflung.scheduler import Plan, trials
from farflung.scheduler.after_trials import without
from farflung.scheduler.trials import Trial, Tuning
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late", "far_trainers")

STEPS = 2
FAMILIES = {"gradient": "gpt2", "delta": "llama"}
TABLES = {"run": {"steps": 1}, "model": {"layers": 1}, "data": {"text": ["none.txt"]}}
ALONE = Plan(pipelines=(("n0",),), stages=((0, 3),), microbatches=(4,), schedule="1f1b")
GROUP = Plan(pipelines=(("n0",), ("n1",)), stages=((0, 3),), microbatches=(3, 1), schedule="1f1b")
STAGES = Plan(pipelines=(("n0", "n1"),), stages=((0, 1), (2, 3)), microbatches=(4,), schedule="1f1b")


@pytest.fixture
def far_trainers(monkeypatch):
    """Every trainer's thread computes on the far device."""
    run, found = Trainer.run, Counter()

    def on_device(trainer):
        with far_device(found):
            run(trainer)

    monkeypatch.setattr(Trainer, "run", on_device)
    # The far device computes roots as torch does on a CPU, whose last bit is sometimes wrong; CUDA's are right.
    root = optimizers.root
    monkeypatch.setattr(optimizers, "root", lambda x: far(root(near(x))) if isinstance(x, Far) else root(x))
    monkeypatch.setenv("FARFLUNG_KERNELS", "0")


def hub_of(offload, updates, steps=STEPS) -> Hub:
    job = Job.model_validate(
        {
            "run": {"name": "offload", "seed": 3, "steps": steps},
            "model": {"family": FAMILIES[updates["mode"]], "layers": 2, "width": 16, "heads": 2, "context": 8},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 4, "microbatch": 1, "learning_rate": 3e-3, "weight_decay": 0.1, "eval_every": 1}
            | {"clip": 0.0, "offload": offload, "recompute": True},
            "updates": {"block": 4096, **updates},
            "checkpoint": {"every": 2},
        }
    )
    facts = facts_of(samples=60, validation=2, context=8, vocabulary=29, steps=steps)
    hub = Hub(job, facts)
    for name in GROUP.nodes:
        hub.start(name, Windows(facts), device=str(FAR))
    return hub


def trained(plan: Plan, offload, updates) -> Hub:
    hub = hub_of(offload, updates)
    hub.begin(plan, plan.nodes, checkpoint=0)
    hub.finish(plan.nodes)
    hub.stop()
    assert not hub.errors, hub.errors
    assert all(len(contents) == 1 for contents in hub.outcome.fingerprints.values())
    return hub


def vectors_of(hub: Hub, plan: Plan) -> list[torch.Tensor]:
    sections = [one for name in plan.nodes for one in hub.trainers[name].state.sections.values()]
    vectors = [vector for one in sections for vector in (one.g, one.x, *one.moments.values())]
    return [one.as_subclass(torch.Tensor) for one in vectors]


WAYS = {
    "gradient": (GROUP, {"mode": "gradient", "codec": "int8"}, ["none", "optimizer", "parameters"]),
    "delta": (GROUP, {"mode": "delta", "codec": "cocktail:random=0.5,top=0.5", "overlap": 1}, ["moments", "optimizer"]),
}


@pytest.mark.parametrize(("plan", "updates", "kinds"), WAYS.values(), ids=WAYS)
def test_every_kind_has_the_same_bits(plan, updates, kinds):
    """In delta mode local steps on a GPU with all that they need there are torch's own, equal up to rounding."""
    none = trained(plan, kinds[0], updates)
    for kind in kinds[1:]:
        hub = trained(plan, kind, updates)
        assert hub.outcome.losses == none.outcome.losses and len(none.outcome.losses) == STEPS, kind
        assert hub.outcome.evals == none.outcome.evals
        pairs = zip(vectors_of(hub, plan), vectors_of(none, plan), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs), kind
        for name in plan.nodes:
            check_places(hub.trainers[name], kind)


def check_places(trainer: Trainer, kind: str) -> None:
    state = trainer.state
    for section in state.sections.values():
        apart = kind in ("optimizer", "parameters")
        assert all(isinstance(one, Far) != apart for one in (section.g, section.x, section.grad))
        assert not any(isinstance(one, Far) for one in section.moments.values())
    parameters = [(model, name, one) for model in state.models for name, one in model.named_parameters()]
    assert all(isinstance(one.data, Far) for _, _, one in parameters)
    if kind == "parameters":
        inner = {id(one) for model in state.models for block in model.inner for one in block.parameters()}
        assert inner
        for _, name, one in parameters:
            held = one.data.as_subclass(torch.Tensor).untyped_storage().nbytes()
            assert held == (4 if id(one) in inner else 4 * one.numel()), name
            assert one.grad is None


def test_a_joiner_takes_the_state_and_others_go_on():
    hub = hub_of("parameters", {"mode": "gradient"})
    hub.begin(ALONE, ALONE.nodes, checkpoint=0)
    hub.change(GROUP, ALONE.nodes, ["n1"])
    hub.change(STAGES, GROUP.nodes)  # and each takes up another place
    outcome = hub.finish(STAGES.nodes)
    assert not hub.errors and all(len(contents) == 1 for contents in outcome.fingerprints.values())


def test_a_view_may_offload_in_another_way():
    hub = hub_of("auto", {"mode": "gradient"})
    hub.begin(replace(ALONE, chosen={"train.offload": "none"}), ALONE.nodes, checkpoint=0)
    hub.change(replace(GROUP, chosen={"train.offload": "optimizer"}), ALONE.nodes, ["n1"])
    outcome = hub.finish(GROUP.nodes)
    assert not hub.errors and all(len(contents) == 1 for contents in outcome.fingerprints.values())
    for name in GROUP.nodes:
        check_places(hub.trainers[name], "optimizer")


TRIED = Tuning((Trial(1, offload="none"), Trial(1, offload="moments")))
MOVED = 7
"""Steps with trials in two cycles, and one that is none."""


@pytest.fixture
def two_cycles(monkeypatch):
    monkeypatch.setattr(trials, "CYCLES", 2)
    monkeypatch.delitem(TRIED.__dict__, "_order", raising=False)
    assert TRIED.steps == MOVED - 1


def tried(updates, tuning=TRIED) -> Hub:
    """Begun with trials of where the moments lie, as far as ``tuning`` goes."""
    hub = hub_of("auto", updates, steps=MOVED)
    hub.begin(replace(GROUP, chosen={"train.offload": "none"}, tuning=tuning), GROUP.nodes, checkpoint=0)
    return hub


@pytest.fixture
def places(monkeypatch):
    """(node, step) -> whether the moments lay in main memory when its passes began."""
    found, usual = {}, Trying.begin

    def begin(self, step):
        sections = self._state.sections.values()
        (lies,) = {not isinstance(one, Far) for section in sections for one in section.moments.values()}
        found[self._view.context.name, step] = lies
        usual(self, step)

    monkeypatch.setattr(Trying, "begin", begin)
    return found


@pytest.mark.parametrize("updates", [{"mode": "gradient", "codec": "int8"}, {"mode": "delta", "overlap": 1}])
@pytest.mark.usefixtures("two_cycles")
def test_trials_move_the_moments_and_change_no_bit(places, monkeypatch, updates):
    # In delta mode torch's own step, for which all has to be on the device, is equal up to rounding alone.
    monkeypatch.setattr(adamw_fused, "takes", lambda section: False)
    hubs = []
    for tuning in (None, TRIED):
        hubs.append(tried(updates, tuning))
        hubs[-1].finish(GROUP.nodes)
        hubs[-1].stop()
        assert not hubs[-1].errors
    other, one = hubs
    assert {at for at, there in places.items() if there} == {(name, at) for name in GROUP.nodes for at in (2, 3, 4)}
    assert one.outcome.losses == other.outcome.losses and len(one.outcome.losses) == MOVED
    assert one.outcome.evals == other.outcome.evals
    assert all(len(contents) == 1 for contents in one.outcome.fingerprints.values())
    pairs = zip(vectors_of(one, GROUP), vectors_of(other, GROUP), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_the_view_that_follows_moves_them_and_lays_nothing_out_anew(places):
    hub = tried({"mode": "gradient"}, Tuning((Trial(1, offload="moments"),)))
    while hub._next()[1].WhichOneof("kind") != "step":
        pass
    states = {name: hub.trainers[name].state for name in GROUP.nodes}
    hub.change(replace(GROUP, chosen={"train.offload": "moments"}), GROUP.nodes)
    hub.change(replace(GROUP, chosen={"train.offload": "none"}), GROUP.nodes)
    hub.finish(GROUP.nodes)
    assert not hub.errors and places["n0", 1] and not places["n0", MOVED]
    assert states == {name: hub.trainers[name].state for name in GROUP.nodes}


@pytest.mark.usefixtures("two_cycles")
def test_a_trial_for_which_main_memory_is_too_small_is_given_up(monkeypatch):
    monkeypatch.setattr(Resources, "memory_left", lambda self: 1000)
    hub = tried({"mode": "gradient"})
    while (said := hub._next()[1]).WhichOneof("kind") != "trial_failed":
        assert said.WhichOneof("kind") != "finished"
    assert said.trial_failed.step == 2
    less = without(replace(GROUP, chosen={"train.offload": "none"}, tuning=TRIED), 1, said.trial_failed.why)
    hub.change(less, GROUP.nodes)
    hub.finish(GROUP.nodes)
    assert not hub.errors and len(hub.outcome.losses) == MOVED
    for name in GROUP.nodes:
        sections = hub.trainers[name].state.sections.values()
        assert all(isinstance(one, Far) for section in sections for one in section.moments.values())


def test_moments_for_which_the_device_has_no_room_any_more_stay_in_main_memory(places, monkeypatch):
    usual = StageState.move_moments

    def move(self, kind):
        if kind == "none":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        usual(self, kind)

    monkeypatch.setattr(StageState, "move_moments", move)
    hub = tried({"mode": "gradient"}, Tuning((Trial(1, offload="moments"),)))
    hub.finish(GROUP.nodes)
    assert not hub.errors and len(hub.outcome.losses) == MOVED and all(places.values())
    assert sum("stay in main memory in this view" in one for one in hub.outcome.warnings) == 2


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"train": {"offload": "parameters"}}, "write recompute = true"),
        ({"train": {"offload": "parameters", "recompute": True, "compile": True}}, "train.compile yet"),
        ({"train": {"offload": "optimizer"}, "parallel": {"inside": "fsdp"}}, "islands keep their sections"),
        ({"train": {"offload": "optimizer"}, "parallel": {"inside": "ddp"}}, ""),
    ],
)
def test_what_does_not_go_together_is_told(tables, why):
    said = [sentence for _, sentence in offload_mistakes(Job.model_validate({**TABLES, **tables}))]
    assert any(why in sentence for sentence in said) if why else not said


def test_a_node_without_a_gpu_is_told_that_the_run_needs_one():
    jobs = [Job.model_validate({**TABLES, "train": {"offload": kind}}) for kind in ("optimizer", "parameters")]
    check_offload(jobs[0], torch.device("cpu"))
    check_offload(jobs[1], FAR)
    with pytest.raises(FarflungError, match="computes on the CPU"):
        check_offload(jobs[1], torch.device("cpu"))
