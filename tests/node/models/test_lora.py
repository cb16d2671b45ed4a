"""Adapters alone train and travel: any cluster shape gives the losses of a plain loop with peft."""

import math
import sys
import zlib

import pytest
import torch
import transformers
import xxhash
from header_bodies import body_of
from hypothesis import given
from hypothesis import strategies as st
from plain_lora import peft_losses, save_base
from torch import nn
from windows import Windows, facts_of, wait_until

from farflung.coordinator.membership.members import expected_bases
from farflung.job.files import load_job
from farflung.job.schema import Job
from farflung.node.models.factory import model_of
from farflung.node.models.lora import base_digests, load_frozen
from farflung.node.models.magnitude import Magnitude, exact_lengths, first_magnitudes, merged_rows
from farflung.node.models.profiling.cost import profile
from farflung.node.state.transfers import serving as base
from farflung.proto import control_pb2, data_pb2
from farflung.proto.errors import FarflungError, JobError
from farflung.scheduler import Plan
from farflung.scheduler.workloads.jobs import workload_of
from farflung.testing.loopback import Hub
from farflung.testing.wires import LoopbackWire

pytestmark = [
    pytest.mark.usefixtures("nobody_late"),
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),  # peft reads it
]

STEPS = 8
ONE = Plan(pipelines=(("a",),), stages=((0, 1),), microbatches=(4,))
TWO_PIPELINES = Plan(pipelines=(("a",), ("b",)), stages=((0, 1),), microbatches=(3, 1))
TWO_STAGES = Plan(pipelines=(("a", "b"),), stages=((0, 0), (1, 1)), microbatches=(4,))
BOTH = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 0), (1, 1)), microbatches=(2, 2))


def job_of(folder, recompute=False, mode="gradient", **lora):
    return Job.model_validate(
        {
            "run": {"name": "lora", "seed": 3, "steps": STEPS},
            "model": {"pretrained": str(folder), "context": 16, "lora": lora},
            "data": {"text": ["none"]},
            "train": {
                "batch": 8,
                "microbatch": 2,
                "learning_rate": 0.02,
                "weight_decay": 0.1,
                "eval_every": 0,
                "recompute": recompute,
            },
            "updates": {"mode": mode, "block": 256},
            "checkpoint": {"every": 4},
        }
    )


def facts_for(folder):
    names = {f"model/{path.name}": "" for path in folder.iterdir()}
    return facts_of(40, 4, 16, 29, STEPS).model_copy(update={"artifacts": names})


def hub_of(job, folder, nodes):
    facts = facts_for(folder)
    hub = Hub(job, facts, {f"model/{path.name}": path.read_bytes() for path in folder.iterdir()})
    for name in nodes:
        hub.start(name, Windows(facts))
    return hub


def train(job, folder, plan):
    hub = hub_of(job, folder, plan.nodes)
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors, hub.errors
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    return hub, [outcome.losses[step] for step in range(1, STEPS + 1)]


@pytest.mark.parametrize(
    ("family", "plan", "lora"),
    [
        ("gpt2", TWO_STAGES, {}),
        ("gpt2", BOTH, {"rank": 4, "alpha": 4, "targets": ["c_attn", "c_proj", "c_fc"]}),
        ("llama", TWO_PIPELINES, {"rank": 2}),
        ("llama", TWO_STAGES, {"rank": 4, "rslora": True}),
        ("llama", TWO_STAGES, {"targets": ["q_proj", "up_proj"]}),
        ("mistral", TWO_PIPELINES, {}),
        ("qwen2", TWO_STAGES, {}),
        ("gpt_neox", BOTH, {}),
        ("gpt2", BOTH, {"dora": True, "targets": ["c_attn", "c_fc"]}),
        ("llama", TWO_STAGES, {"dora": True, "rank": 4, "rslora": True}),
        ("qwen2", TWO_PIPELINES, {"dora": True}),
    ],
)
def test_equal_to_a_plain_loop_with_peft(tmp_path, family, plan, lora):
    folder = save_base(tmp_path / "base", family, 29)
    job = job_of(folder, recompute=plan is BOTH, **lora)
    hub, losses = train(job, folder, plan)
    wanted, _ = peft_losses(job, hub.facts, Windows(hub.facts), STEPS)
    assert losses == pytest.approx(wanted, abs=1e-5)
    assert wanted[-1] < wanted[0] - 0.05


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_base_in_bf16_takes_half_the_memory_and_changes_nothing_that_autocast_does_not(tmp_path, family):
    """Of a folder in bf16, as most are."""
    folder = save_base(tmp_path / "base", family, 29)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.to(torch.bfloat16).save_pretrained(folder)
    runs = {}
    for kept in ("fp32", "bf16"):
        job = job_of(folder, rank=2, base=kept)
        job = job.model_copy(update={"train": job.train.model_copy(update={"precision": "bf16"})})
        hub, runs[kept] = train(job, folder, TWO_STAGES)
        kinds = {
            one.dtype
            for trainer in hub.trainers.values()
            for name, one in trainer.training.state.base()
            if one.dim() > 1
        }
        assert kinds == {torch.bfloat16 if kept == "bf16" else torch.float32}
    assert runs["bf16"] == runs["fp32"]
    layers = [profile(job_of(folder, base=kept), 29).layers for kept in runs]
    sizes = [sum(layer.frozen for layer in some) for some in layers]
    assert sizes[1] == pytest.approx(sizes[0] / 2, rel=0.01)


def test_what_adapters_drop_is_the_same_in_every_shape(tmp_path):
    """And changes nothing while they are zero, before the first step."""
    folder = save_base(tmp_path / "base", "llama", 29)
    losses = [train(job_of(folder, recompute=plan is BOTH, dropout=0.3), folder, plan)[1] for plan in (ONE, BOTH)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    _, whole = train(job_of(folder), folder, ONE)
    assert losses[0][0] == pytest.approx(whole[0], abs=1e-6)
    assert abs(losses[0][-1] - whole[-1]) > 1e-4


def test_rounds_and_checkpoints_hold_the_adapters_only(tmp_path):
    folder = save_base(tmp_path / "base", "gpt2", 29)
    job = job_of(folder)
    definition = model_of(job, None)
    hub, _ = train(job, folder, TWO_PIPELINES)
    adapters = 4 * sum(torch.Size(shape).numel() for shape in definition.shapes.values())
    sent = hub.bytes[data_pb2.CONTRIBUTION]
    assert 2 * STEPS * adapters < sent < 2 * STEPS * (adapters + 2000)  # all-to-all of two: each sends its gradient
    (shard, _) = hub.shards[4, "stage-0.safetensors"]
    assert len(shard) < 3 * adapters + 10_000  # weights and two moments
    result = profile(job, 29)
    assert 4 * sum(layer.parameters for layer in result.layers) == adapters
    whole = profile(job.model_copy(update={"model": job.model.model_copy(update={"lora": None})}), 29)
    assert sum(layer.frozen for layer in result.layers) == sum(layer.parameters for layer in whole.layers)
    assert not result.tied and len(result.layers) == 2


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "qwen2", "gpt_neox"])
def test_a_plan_of_the_job_alone_counts_what_the_profile_counts(tmp_path, family, dora):
    save_base(tmp_path / "base", family, 29)
    job = {"model": {"pretrained": "base", "context": 16, "lora": {"rank": 2, "dora": dora}}}
    layers = profile(job_of(tmp_path / "base", rank=2, dora=dora), 29).layers
    planned = workload_of(job, tmp_path).layers
    assert [layer.parameters for layer in planned] == [layer.parameters for layer in layers]
    assert [layer.frozen for layer in planned] == pytest.approx([layer.frozen for layer in layers], rel=0.05)
    assert [3 * layer.flops for layer in planned] == pytest.approx([one.flops_per_sample for one in layers], rel=0.05)


@pytest.fixture
def read(monkeypatch):
    """Who has read which range of the weights from the coordinator."""
    found = []
    fetch = LoopbackWire.fetch

    def spy(wire, name, offset=0, length=None):
        if name.endswith(".safetensors") and offset > 8 and length is not None:
            found.append((wire.name, offset))
        return fetch(wire, name, offset, length)

    monkeypatch.setattr(LoopbackWire, "fetch", spy)
    return found


def test_the_base_is_read_once_a_stage_and_a_joiner_takes_it_from_peers(tmp_path, read):
    folder = save_base(tmp_path / "base", "gpt2", 29)
    job = job_of(folder, mode="delta")
    hub = hub_of(job, folder, ("a", "b", "c", "d"))
    hub.begin(BOTH, ("a", "b", "c", "d"), checkpoint=0)
    assert {name for name, _ in read} == {BOTH.keeper(stage) for stage in range(2)}
    assert len(read) == len(set(read))
    bases = hub.outcome.bases
    assert bases["a"] == bases["c"] and bases["b"] == bases["d"] and bases["a"]
    outcome = hub.finish(BOTH.nodes)
    assert not hub.errors and not outcome.warnings
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())


@pytest.mark.parametrize("silent", [False, True])
def test_a_joiner_takes_adapters_and_base_from_peers_else_the_base_from_the_folder(tmp_path, read, silent):
    folder = save_base(tmp_path / "base", "gpt2", 29)
    job = job_of(folder, mode="delta")
    hub = hub_of(job, folder, ("a", "b", "c", "d"))
    hub.begin(TWO_STAGES, ("a", "b"), checkpoint=0)
    read.clear()

    def has_none(sender, to, header, data):
        return (
            data[:0] if silent and header.kind == data_pb2.STATE and body_of(header).name.startswith("base:") else data
        )

    hub.tamper = has_none
    hub.change(BOTH, ("a", "b"), ("c", "d"))
    assert {name for name, _ in read} == ({"c", "d"} if silent else set())
    outcome = hub.finish(BOTH.nodes)
    assert not hub.errors and sorted(outcome.losses) == list(range(1, STEPS + 1))
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())


def test_a_load_of_the_base_that_a_view_change_breaks_off_goes_on_from_what_is_here(tmp_path, read, monkeypatch):
    folder = save_base(tmp_path / "base", "gpt2", 29)
    hub = hub_of(job_of(folder), folder, ("a",))
    ready, broken = base.StateServer.ready, []

    def breaks_off(server, name):
        ready(server, name)
        if not broken and len(read) == 5:
            broken.append(name)
            hub.order("a", flush=control_pb2.Flush(view=2, why="test"))
            while True:
                hub.trainers["a"].pump(0.05)

    monkeypatch.setattr(base.StateServer, "ready", breaks_off)
    view = control_pb2.View(number=1, plan=ONE.to_json(), checkpoint=0)
    view.members.append(control_pb2.Member(name="a", session="a", address="a"))
    hub.order("a", view=view)
    hub.view = 1
    wait_until(lambda: hub.trainers["a"].change.loader.loading is None and len(broken) == 1 and not hub.wires["a"].view)
    hub.begin(ONE, ("a",), checkpoint=0)
    assert len(read) == len(set(read)), "nothing is read twice"
    hub.finish(("a",))
    assert not hub.errors


def test_a_joiner_with_another_base_says_so_and_the_others_train_on_without_it(tmp_path):
    folder = save_base(tmp_path / "base", "gpt2", 29)
    job = job_of(folder)
    hub = hub_of(job, folder, ("a", "b"))

    def another(sender, to, header, data):
        if header.kind == data_pb2.STATE and body_of(header).name.startswith("base:"):
            data = data ^ 1
            body_of(header).digest = xxhash.xxh3_64_intdigest(data.data)
        return data

    hub.tamper = another
    hub.begin(ONE, ("a",), checkpoint=0)
    hub.change(TWO_PIPELINES, ("a",), ("b",), start=False)  # the adapters are equal: the hub compares them
    bases = hub.outcome.bases
    assert sorted(bases["a"]) == sorted(bases["b"]) == [0, 1]
    expected = expected_bases({}, [bases["a"]], [bases["b"]])
    assert bases["a"] == expected and all(bases["b"][layer] != expected[layer] for layer in expected)
    hub.order("b", stop=control_pb2.Stop(why="b cannot train", refused=True))
    hub.change(ONE, ("a",))
    outcome = hub.finish(("a",))
    wanted, _ = peft_losses(job, hub.facts, Windows(hub.facts), STEPS)
    assert not hub.errors and [outcome.losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_the_base_of_a_layer_hashes_to_the_same_wherever_the_stages_are_cut(tmp_path, family):
    """Also that of gpt2's last layer, which has the embedding as its head."""
    definition = model_of(job_of(save_base(tmp_path / "base", family, 29)), None)

    def bases(first, last, changed=""):
        def read(name):
            return torch.full(definition.frozen[name], zlib.crc32(name.encode()) % 1000 + (name == changed))

        return base_digests(definition, range(first, last + 1), load_frozen(definition.build(first, last), read))

    whole = bases(0, 1)
    assert whole == bases(0, 0) | bases(1, 1)
    assert set().union(*definition.frozen_names) == set(definition.frozen)
    for name in definition.frozen:
        for layer, content in bases(0, 1, name).items():
            assert (content != whole[layer]) == (name in definition.frozen_names[layer])


def test_a_target_that_the_family_has_not(tmp_path):
    folder = save_base(tmp_path / "base", "llama", 29)
    with pytest.raises(FarflungError, match=r"model.lora.targets: .* 'qproj'; did you mean 'q_proj'\?") as caught:
        model_of(job_of(folder, targets=["qproj"]), None)
    assert "q_proj, k_proj, v_proj, o_proj" in caught.value.hint


def test_without_peft_it_says_what_to_install(tmp_path, monkeypatch):
    folder = save_base(tmp_path / "base", "gpt2", 29)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(FarflungError, match="needs the library peft") as caught:
        model_of(job_of(folder), None)
    assert caught.value.hint == "pip install 'farflung[lora]'"


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ("rnak = 8", r"job.toml:6: unknown key model.lora.rnak; did you mean rank\?; allowed in \[model.lora\]: rank,"),
        ("rank = 0", "job.toml:6: model.lora.rank = 0 is wrong: allowed is a whole number"),
        ('targets = ["c_attn", 3]', "model.lora.targets = 3 is wrong: allowed is names of"),
        ('base = "bf16"', r'job.toml:6: model.lora.base = "bf16" computes in bf16: it needs train.precision'),
        ('base = "int4"', "'int4' is not one of fp32, bf16, int8, nf4; did you mean 'int8'"),
        ("dropout = 1.0", "job.toml:6: model.lora.dropout = 1.0 is wrong: allowed is a number from 0"),
        ("[parallel]\nstages = 3", "job.toml:7: parallel.stages = 3 is more than the model's 2 blocks"),
    ],
)
def test_mistakes_in_the_table(tmp_path, lora, message):
    save_base(tmp_path / "base", "gpt2")
    (tmp_path / "a.txt").write_text("x")
    job = f'[data]\ntext = "a.txt"\n[model]\npretrained = "base"\n[model.lora]\n{lora}\n'
    (tmp_path / "job.toml").write_text(job)
    with pytest.raises(JobError, match=message):
        load_job(tmp_path / "job.toml")


def test_adapters_want_a_model_folder(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    shape = 'family = "gpt2"\nlayers = 2\nwidth = 8\nheads = 2\ncontext = 8'
    (tmp_path / "job.toml").write_text(f'[data]\ntext = "a.txt"\n[model]\n{shape}\nlora = {{ rank = 2 }}\n')
    with pytest.raises(JobError, match=r"job.toml:9: model.lora needs model.pretrained"):
        load_job(tmp_path / "job.toml")


@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 40),
    size=st.floats(1e-20, 1e18),
    seed=st.integers(0, 9),
)
def test_the_length_of_a_row_is_exact(rows, columns, size, seed):
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * size
    matrix[0] = 0.0
    wanted = torch.linalg.vector_norm(matrix.double(), dim=1).float()
    torch.testing.assert_close(exact_lengths(matrix), wanted, rtol=1.3e-7, atol=0)
    assert torch.equal(exact_lengths(matrix.flip(1)), exact_lengths(matrix)), "in any order"


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_frozen_matrix_that_is_not_finite_is_refused_with_its_name(value):
    made = nn.Linear(3, 2, bias=False)
    made.weight.data = torch.tensor([[3.0, 4.0, 0.0], [1.0, 2.0, value]])
    assert exact_lengths(made.weight.data).tolist() == [5.0, math.inf]
    layer = nn.Module()
    layer.base_layer, layer.lora_magnitude_vector = made, nn.ModuleDict({"default": Magnitude(2, False)})
    with pytest.raises(FarflungError, match="the frozen weights of up have values that are not finite"):
        first_magnitudes([nn.ModuleDict({"up": layer})])


def test_a_row_of_zeros_has_a_magnitude_of_zero_and_spoils_nothing():
    base, down, up = (nn.Linear(*shape, bias=False) for shape in ((3, 2), (3, 1), (1, 2)))
    nn.init.zeros_(up.weight)
    base.weight.data = torch.tensor([[0.0, 0.0, 0.0], [3.0, 4.0, 0.0]])
    made, x = Magnitude(2, False), torch.ones(1, 3)
    made.weight = nn.Parameter(exact_lengths(base.weight.data))
    added = made(x, lora_A=down, lora_B=up, scaling=1.0, base_layer=base, base_result=base(x).detach())
    assert torch.equal(added, torch.zeros(1, 2))
    added.sum().backward()
    assert made.weight.grad[0] == 0 and up.weight.grad[0] == 0 and up.weight.grad[1].isfinite()
    assert torch.equal(merged_rows(base.weight.data, made.weight.data), base.weight.data)
