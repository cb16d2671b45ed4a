"""A node of two processes (gloo) computes what a node of one does, whatever the mode, the cut and the stage."""

import os
import sys
from dataclasses import replace

import pytest
import torch
from plain_loop import plain_losses
from plain_lora import peft_losses, save_base
from windows import Windows, facts_of

from farflung.job.chosen import with_chosen
from farflung.job.data.facts import Facts
from farflung.job.schema import Job
from farflung.node.models.factory import model_of
from farflung.node.pipeline.inside.meeting import BACKEND, devices_of, shared_card
from farflung.node.pipeline.island import Island
from farflung.node.pipeline.spread_pass import SpreadPass
from farflung.node.state.optimizers.make_optimizer import make_optimizer
from farflung.node.state.stage_state import StageState
from farflung.node.training.resources import Resources
from farflung.proto.errors import FarflungError
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

STEPS = 6
FACTS = facts_of(samples=100, validation=10, context=16, vocabulary=29, steps=STEPS)
DATA = Windows(FACTS)
ALONE = Plan(pipelines=(("n0",),), stages=((0, 3),), microbatches=(4,), schedule="1f1b")
TWO_PIPELINES = Plan(pipelines=(("n0",), ("n1",)), stages=((0, 3),), microbatches=(3, 1), schedule="1f1b")
IN_THE_MIDDLE = Plan(
    pipelines=(("n1", "n0", "n2"),), stages=((0, 0), (1, 2), (3, 3)), microbatches=(4,), schedule="gpipe"
)
INTERLEAVED = Plan(
    pipelines=(("n0", "n1", "n0", "n1"),),
    stages=((0, 0), (1, 1), (2, 2), (3, 3)),
    microbatches=(4,),
    schedule="interleaved",
)
COCKTAIL = {"mode": "delta", "codec": "cocktail:random=0.5,top=0.2,bits=4", "overlap": 1, "dense_rounds": 2}


@pytest.fixture(scope="module")
def island():
    with Island("cpu", 2) as made:
        measured = made.measure()
        assert measured.tflops > 0 and measured.memory_bytes > 0
        assert measured.description.startswith("island of 2: ")
        # However the processes end, no file of theirs is left: they find each other by one without a name.
        assert sys.platform != "linux" or made._place == f"/proc/self/fd/{made._file}"
        yield made
    # torch's store may read it at any time from now on.
    assert sys.platform != "linux" or "memfd:" in os.readlink(made._place)
    # Told by nothing but the end of its connection, as when the node is killed.
    assert [hand.process.returncode for hand in made._hands] == [0]


def job_of(microbatch=3, schedule="1f1b", precision="fp32", **updates) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "island", "seed": 3, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 2, "width": 32, "heads": 4, "context": 16},
            "data": {"text": ["none.txt"]},
            "train": {
                "batch": 12,
                "microbatch": microbatch,
                "learning_rate": 1e-2,
                "eval_every": 3,
                "precision": precision,
            },
            "parallel": {"schedule": schedule},
            "updates": {"mode": "gradient", "block": 1024, **updates},
            "checkpoint": {"every": 0},
        }
    )


def trained(job: Job, plan: Plan, island: Island | None, facts: Facts = FACTS, files: dict[str, bytes] | None = None):
    hub = Hub(job, facts, files)
    for name in plan.nodes:
        hub.start(name, DATA, island if name == "n0" else None)
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert sorted(outcome.evals) == [3, 6] and outcome.samples == STEPS * job.train.batch
    return outcome


@pytest.mark.parametrize("plan", [TWO_PIPELINES, IN_THE_MIDDLE, INTERLEAVED], ids=lambda plan: plan.schedule)
def test_equal_to_the_plain_loop(island, plan):
    """A microbatch of 3 samples is cut into 2 and 1."""
    job = job_of(schedule=plan.schedule)
    outcome = trained(job, plan, island)
    wanted = plain_losses(job, FACTS, DATA, STEPS)
    assert [outcome.losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted, abs=1e-5)
    assert wanted[-1] < wanted[0] - 0.05


@pytest.mark.parametrize(
    "job",
    [job_of(**COCKTAIL), job_of(1), job_of(precision="bf16"), job_of(precision="fp16")],
    ids=["cocktail", "one sample", "bf16", "fp16"],
)
def test_equal_to_a_node_of_one_device(island, job):
    plan = TWO_PIPELINES if job.updates.mode == "delta" else ALONE
    plan = Plan(plan.pipelines, plan.stages, tuple(n * 3 // job.train.microbatch for n in plan.microbatches))
    got, wanted = trained(job, plan, island), trained(job, plan, None)
    tolerance = 1e-5 if job.train.precision == "fp32" else 1e-2
    for one, other in ((got.losses, wanted.losses), (got.evals, wanted.evals)):
        assert one == pytest.approx(other, abs=tolerance)


@pytest.fixture
def beside(monkeypatch):
    """The state of an island's stages lies apart from its models, as beside GPUs; one memory is both here."""
    monkeypatch.setattr(Resources, "computes_on", lambda self, context: context.device if self.island else None)


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize("kind", ["optimizer", "parameters"])
@pytest.mark.parametrize(
    ("plan", "updates"),
    [(TWO_PIPELINES, {}), (IN_THE_MIDDLE, {}), (TWO_PIPELINES, COCKTAIL)],
    ids=["two pipelines", "in the middle", "delta"],
)
def test_with_its_state_in_main_memory_it_is_equal_to_a_node_of_one_device(island, monkeypatch, plan, updates, kind):
    """And to the plain loop. In delta mode each pipeline's local steps are its own."""
    told, usual = [], Island._tell_place
    monkeypatch.setattr(Island, "_tell_place", lambda self, *at, **more: (told.append(more), usual(self, *at, **more)))
    job = job_of(schedule=plan.schedule, **updates)
    train = {"offload": kind, "recompute": True}
    job = Job.model_validate({**job.model_dump(exclude_unset=True), "train": {**job.train.model_dump(), **train}})
    got = trained(job, plan, island)
    assert told == [{"apart": True}]
    if updates:
        wanted = trained(job, plan, None).losses
    else:
        wanted = dict(enumerate(plain_losses(job, FACTS, DATA, STEPS), 1))
    assert got.losses == pytest.approx(wanted, abs=1e-5 if not updates else 1e-4)


def test_a_hand_lays_out_its_state_anew_where_the_plan_offloads_in_another_way(island):
    job = job_of()
    train = {**job.train.model_dump(), "offload": "auto", "recompute": True}
    job = Job.model_validate({**job.model_dump(exclude_unset=True), "train": train})
    definition, device = model_of(job, FACTS), torch.device("cpu")
    island.take_up(job, FACTS, lambda *_: b"", ())
    torch.manual_seed(1)
    sample = torch.randn(1, 16, 32)
    found = []
    for kind in ("none", "optimizer", "parameters", "none"):
        plan = replace(IN_THE_MIDDLE, chosen={"train.offload": kind})
        apart = kind in ("optimizer", "parameters")
        own = with_chosen(job, plan.chosen)
        state = StageState(
            definition, own, plan, "n0", make_optimizer(own), device, computes_on=device if apart else None
        )
        (model,), (section,) = state.models, state.sections.values()
        island.place(plan, "n0", apart=apart)
        section.x.copy_(torch.linspace(-1, 1, section.x.numel()))
        for _ in range(2):  # the second time with other weights
            section.x.mul_(0.1)
            island.share([section])
            state.fresh()
            state.gradients.begin()
            made = SpreadPass(island, 0, model.train(), torch.cat([sample, sample]), torch.empty(0))
            made.backward(torch.ones_like(made.output))
            state.gradients.end()
            assert torch.equal(made.output[0], made.output[1])
            one = section.grad.clone()
            island.sum([section])
            assert torch.equal(section.grad, one + one) and one.any()
        found.append(section.grad.clone())
    assert all(torch.equal(found[0], one) for one in found)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft reads it
@pytest.mark.parametrize(
    "plan",
    [
        Plan(pipelines=(("n0",), ("n1",)), stages=((0, 1),), microbatches=(3, 1)),
        Plan(pipelines=(("n1", "n0"),), stages=((0, 0), (1, 1)), microbatches=(4,)),
    ],
    ids=["whole", "last stage"],
)
def test_hands_take_the_frozen_base_from_the_first_process(island, tmp_path, plan):
    folder = save_base(tmp_path / "base", "gpt2", 29)
    job = job_of()
    model = {"pretrained": str(folder), "context": 16, "lora": {}}
    job = Job.model_validate({**job.model_dump(exclude_unset=True), "model": model})
    files = {f"model/{path.name}": path.read_bytes() for path in folder.iterdir()}
    facts = FACTS.model_copy(update={"artifacts": dict.fromkeys(files, "")})
    outcome = trained(job, plan, island, facts, files)
    wanted, _ = peft_losses(job, facts, DATA, STEPS)
    assert [outcome.losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted, abs=1e-5)
    assert wanted[-1] < wanted[0] - 0.02


def test_hands_hold_the_weights_to_the_bit_and_outlive_nonsense(island):
    job, plan, device = job_of(), IN_THE_MIDDLE, torch.device("cpu")
    state = StageState(model_of(job, FACTS), job, plan, "n0", make_optimizer(job), device)
    (model,), (section,) = state.models, state.sections.values()
    island.take_up(job, FACTS, lambda *_: b"", ())
    island.place(plan, "n0")
    section.x.normal_()
    island.share([section])
    with pytest.raises(RuntimeError):
        SpreadPass(island, 0, model, torch.randn(2, 16, 31), torch.empty(0))
    island.share([section])
    sample = torch.randn(1, 16, 32)
    made = SpreadPass(island, 0, model, torch.cat([sample, sample]), torch.empty(0))  # once here, once at the hand
    back = made.backward(torch.ones_like(made.output))
    assert torch.equal(made.output[0], made.output[1]) and torch.equal(back[0], back[1])
    own = section.grad.clone()
    assert own.any()
    island.sum([section])
    assert torch.equal(section.grad, own + own)


def test_devices(monkeypatch):
    assert devices_of(torch.device("cpu"), 3) == [torch.device("cpu")] * 3
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert devices_of(torch.device("cuda:1"), 3) == [torch.device("cuda", n) for n in (1, 2, 3)]
    assert not shared_card(devices_of(torch.device("cuda:1"), 3)) and not shared_card([torch.device("cpu")] * 3)
    with pytest.raises(FarflungError, match="needs cuda:4, and torch sees 4 CUDA devices"):
        devices_of(torch.device("cuda:1"), 4)
    with pytest.raises(FarflungError, match="island of mps devices"):
        devices_of(torch.device("mps"), 2)
    monkeypatch.setenv(BACKEND, "gloo")
    assert shared_card(devices_of(torch.device("cuda:1"), 3)) == (
        "all 3 processes of this node's island compute on cuda:1, because FARFLUNG_ISLAND_BACKEND is gloo: "
        "unset it, and each has a card of its own"
    )
