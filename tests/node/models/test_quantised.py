"""A frozen base in 8 or 4 bits a weight: what it keeps, and training beside it is that beside what it stands for."""

import pytest
import torch
import transformers
from allocated import peak_of
from plain_lora import peft_losses, save_base
from safetensors.torch import load_file, save_file
from torch.nn import functional
from windows import Windows, facts_of

from farflung.job.schema import Job
from farflung.node.generation.layered import _layer
from farflung.node.models import quantised
from farflung.node.models.factory import model_of
from farflung.node.models.lora import base_name
from farflung.node.models.profiling.cost import profile
from farflung.node.models.quantised import PackedLinear, _packed_conv, fill, pack, packed_size, unpack
from farflung.scheduler import Plan
from farflung.scheduler.workloads.jobs import workload_of
from farflung.testing.loopback import Hub

pytestmark = [
    pytest.mark.usefixtures("nobody_late"),
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),  # peft reads it
]

STEPS = 4
PLAN = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 0), (1, 1)), microbatches=(3, 1))
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def job_of(folder, base, recompute=False, dora=False):
    return Job.model_validate(
        {
            "run": {"name": "lora", "seed": 3, "steps": STEPS},
            "model": {"pretrained": str(folder), "context": 16, "lora": {"rank": 4, "base": base, "dora": dora}},
            "data": {"text": ["none"]},
            "train": {"batch": 8, "microbatch": 2, "learning_rate": 0.02, "eval_every": 0, "recompute": recompute},
            "updates": {"block": 256},
            "checkpoint": {"every": 0},
        }
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "step"), [("int8", 1 / 254), ("nf4", 0.16)])
@pytest.mark.parametrize("shape", [(64, 64), (3, 7), (1, 64), (5, 100)])
def test_every_weight_is_the_nearest_that_its_block_has(kind, step, shape, device):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device)
    data = pack(values, kind)
    assert data.dtype == torch.uint8 and data.shape == (packed_size(values.numel(), kind),)
    found = unpack(data, shape)
    padded = functional.pad(values.view(-1), (0, -values.numel() % 64)).view(-1, 64)
    largest = padded.abs().amax(1, keepdim=True).expand_as(padded).reshape(-1)[: values.numel()].view(shape)
    assert bool(((found - values).abs() <= step * largest * 1.001).all())
    torch.testing.assert_close(found.abs().max(), values.abs().max())
    torch.testing.assert_close(unpack(pack(found, kind), shape), found), "it is what it stands for"
    assert torch.equal(data.cpu(), pack(values.cpu(), kind)), "the same bytes on every device"


@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_slices_give_the_bits_of_the_whole_and_no_second_matrix_lies_in_memory(kind, dtype, monkeypatch):
    shape = (130, 1001)
    data = pack(torch.randn(shape, generator=torch.Generator().manual_seed(1)), kind)
    whole = unpack(data, shape)
    monkeypatch.setattr(quantised, "_SLICE", 1 << 12)
    found = []
    took = peak_of(lambda: found.append(unpack(data, shape, dtype)))
    assert found[0].dtype == dtype and torch.equal(found[0], whole.to(dtype))
    assert took <= (whole.numel() + 64) * dtype.itemsize + 6 * (1 << 12) + 4096


def test_a_block_of_zeros_is_zeros_and_a_size_says_its_kind():
    for kind in ("int8", "nf4"):
        data = torch.empty(packed_size(130, kind), dtype=torch.uint8)
        values = torch.zeros(2, 65)
        values[1, 64] = 3.0
        fill(data, values)
        torch.testing.assert_close(unpack(data, (2, 65)), values)
        again = torch.empty_like(data)
        fill(again, data)
        assert torch.equal(again, data)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_layer_multiplies_with_what_it_stands_for_and_keeps_no_matrix(kind, transposed, device):
    torch.manual_seed(0)
    module = transformers.pytorch_utils.Conv1D(96, 64) if transposed else torch.nn.Linear(64, 96)
    shape = tuple(module.weight.shape)
    module.weight = torch.nn.Parameter(pack(torch.randn(shape), kind), requires_grad=False)
    module.__class__, module.packed = _packed_conv() if transposed else PackedLinear, shape
    module.to(device)
    inputs = torch.randn(5, 3, 64, device=device, requires_grad=True)
    weight = unpack(module.weight, shape)
    wanted = functional.linear(inputs, weight.T if transposed else weight, module.bias)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one.numel()) or one, lambda one: one):
        found = module(inputs)
    assert sum(kept) < 96 * 64 / 4
    torch.testing.assert_close(found, wanted)
    (gradient,) = torch.autograd.grad(found.square().sum(), inputs)
    (other,) = torch.autograd.grad(wanted.square().sum(), inputs)
    torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-4)
    with torch.autocast(device, torch.bfloat16):
        half = module(inputs)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), wanted, rtol=0.05, atol=0.2)


def stands_for(folder, out, definition, kind):
    """The model folder that the packed base stands for."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.save_pretrained(out)
    stored = load_file(out / "model.safetensors")
    for name, values in stored.items():
        if name in definition.packed:
            stored[name] = unpack(pack(values, kind), tuple(values.shape)).contiguous()
    save_file(stored, out / "model.safetensors", {"format": "pt"})
    return out


@pytest.mark.parametrize(
    ("family", "kind", "dora"),
    [("llama", "nf4", False), ("gpt2", "int8", False), ("llama", "int8", True), ("gpt2", "nf4", True)],
)
def test_equal_to_a_plain_loop_beside_what_it_stands_for(tmp_path, family, kind, dora):
    folder = save_base(tmp_path / "base", family, 29)
    job = job_of(folder, kind, recompute=family == "llama", dora=dora)
    definition = model_of(job, None)
    assert definition.packed and all(".mlp." in name or "attn" in name for name in definition.packed)
    facts = facts_of(40, 4, 16, 29, STEPS).model_copy(
        update={"artifacts": {f"model/{path.name}": "" for path in folder.iterdir()}}
    )
    hub = Hub(job, facts, {f"model/{path.name}": path.read_bytes() for path in folder.iterdir()})
    for name in PLAN.nodes:
        hub.start(name, Windows(facts))
    hub.begin(PLAN, PLAN.nodes, checkpoint=0)
    outcome = hub.finish(PLAN.nodes)
    assert not hub.errors and not outcome.warnings, (hub.errors, outcome.warnings)
    assert outcome.bases["a"] == outcome.bases["c"], "one has read it, the other took its bytes"
    whole = stands_for(folder, tmp_path / "whole", definition, kind)
    wanted, _ = peft_losses(job_of(whole, "fp32", dora=dora), facts, Windows(facts), STEPS)
    assert [outcome.losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted, abs=1e-5)
    state = hub.trainers["a"].training.state
    sizes = {name: one.nbytes for name, one in state.base() if name in definition.packed}
    assert sizes and all(
        size == packed_size(torch.Size(definition.frozen[name]).numel(), kind) for name, size in sizes.items()
    )
    shown = hub.trainers["a"].training.state.models[0].eval()
    one = dict(shown.named_parameters())
    stored = load_file(folder / "model.safetensors")
    ids = torch.arange(8)[None]
    with torch.no_grad():  # a layer from the folder, as generate reads it
        by_layers = _layer(
            definition, 0, lambda name: one[name].detach() if "lora" in name else stored[_kept(name, stored)].float(),
            (ids, ids),
        )  # fmt: skip
        torch.testing.assert_close(by_layers, shown(ids))


def _kept(name, stored):
    return next(one for one in (base_name(name), base_name(name).removeprefix("transformer.")) if one in stored)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])
def test_plans_count_what_it_takes(tmp_path, family):
    save_base(tmp_path / "base", family, 29)
    for kind in ("int8", "nf4"):
        definition = model_of(job_of(tmp_path / "base", kind), None)
        stage = definition.build(0, 1, "meta")
        held = sum(one.nbytes for one in stage.parameters() if not one.requires_grad)
        layers = profile(job_of(tmp_path / "base", kind), 29).layers
        tied = 4 * 29 * 32 if family == "gpt2" else 0  # counted with the embedding and with the head
        assert 4 * sum(layer.frozen for layer in layers) == pytest.approx(held + tied, rel=0.01)
        words = {"model": {"pretrained": "base", "context": 16, "lora": {"rank": 2, "base": kind}}}
        planned = workload_of(words, tmp_path).layers
        assert [one.frozen for one in planned] == pytest.approx([one.frozen for one in layers], rel=0.1)
