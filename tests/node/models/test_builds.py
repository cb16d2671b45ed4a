"""Models and data from a person's own functions."""

import contextlib
import io
import json
import sys

import pytest
import torch

from farflung.job.schema import Job
from farflung.node.data.dataset import BuildData
from farflung.node.models.builds import build_data, import_build
from farflung.node.models.factory import model_of
from farflung.node.models.profiling import cost as profiling
from farflung.proto.errors import FarflungError

MODULE = """
import torch
from torch import nn
from torch.nn import functional

def model():
    layers = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    return layers, total

def total(logits, targets):
    return functional.cross_entropy(logits, targets, reduction="sum")

def mean():
    return model()[0], functional.cross_entropy

def normalised():
    return nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8)), total

def dropping():
    return nn.Sequential(nn.Linear(12, 8), nn.Dropout1d(0.5)), total

def broken():
    raise RuntimeError("no such thing")

def leaving():
    raise SystemExit("not here")

class Late(nn.Linear):
    def forward(self, inputs):
        if inputs.flatten()[0] < 0:
            raise SystemExit("a negative value") if inputs.flatten()[0] < -1 else ValueError("a small value")
        return super().forward(inputs)

def late():
    return nn.Sequential(nn.Flatten(), Late(12, 3)), total

def data():
    print("a module may print")
    x = torch.arange(120, dtype=torch.float64).reshape(10, 3, 4) / 100
    return (x[:8], torch.arange(8) % 3), (x[8:], torch.arange(2))
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "ownmodel.py").write_text(MODULE)
    (tmp_path / "unfit.py").write_text("import nothing_of_this_name\n")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("ownmodel", None)
    sys.path[:] = [path for path in sys.path if path != str(tmp_path)]


def job_of(model="ownmodel:model", data="ownmodel:data", seed=1):
    return Job.model_validate(
        {
            "run": {"seed": seed},
            "model": {"build": model},
            "data": {"build": data},
            "train": {"batch": 4, "microbatch": 2},
        }
    )


def test_layers_are_cut_where_the_parameters_are_and_compose():
    definition = model_of(job_of(), None)
    assert definition.layers == ["0 Flatten+Linear+Tanh", "3 Linear+ReLU", "5 Linear"]
    assert definition.parameter_names(0, 2) == ["1.weight", "1.bias", "3.weight", "3.bias", "5.weight", "5.bias"]
    dataset = BuildData(job_of())
    inputs, targets = dataset.batch([5, 0, 7])
    whole = definition.build(0, 2)
    definition.initialise(whole, 1)
    first, second = definition.build(0, 0), definition.build(1, 2)
    for stage in (first, second):
        definition.initialise(stage, 1)
    assert [name for name, _ in second.named_parameters()] == definition.parameter_names(1, 2)
    logits = whole(inputs)
    assert torch.equal(second(first(inputs)), logits)
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    assert torch.equal(whole.loss_sum(logits, targets), expected)
    assert whole.target_count(targets) == 3
    assert whole.correct(logits, targets) == int((logits.argmax(1) == targets).sum())


def test_initial_values_are_the_functions_own_and_depend_on_the_seed():
    torch.manual_seed(123)
    before = torch.get_rng_state()
    one, other = model_of(job_of(), None), model_of(job_of(seed=9), None)
    assert torch.equal(one.initial("3.weight", 5), other.initial("3.weight", 5))
    assert not torch.equal(one.initial("3.weight", 5), one.initial("3.weight", 6))
    assert torch.equal(torch.get_rng_state(), before)


def test_build_data_are_samples_by_id():
    dataset = BuildData(job_of())
    assert (dataset.samples, dataset.validation_samples) == (8, 2)
    inputs, targets = dataset.batch([9, 1])
    assert inputs.dtype == torch.float32 and inputs.shape == (2, 3, 4)
    assert targets.tolist() == [1, 1]
    assert len(build_data(job_of())[0][0]) == 8


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("ownmodel:normalised", "BatchNorm1d, whose statistics have no meaning"),
        ("ownmodel:dropping", "not yet: Dropout1d, as in layer 1"),
        ("ownmodel:broken", "RuntimeError: no such thing"),
        ("ownmodel:absent", "has no function 'absent'"),
        ("unfit:model", "can't be imported: ModuleNotFoundError"),
        ("ownmodel:total", "failed: TypeError"),
    ],
)
def test_a_bad_model_is_refused_in_one_sentence(model, message):
    with pytest.raises(FarflungError, match=message):
        model_of(job_of(model), None)


def test_a_node_imports_only_what_it_allows():
    assert callable(import_build("ownmodel:model", "model.build", ["ownmodel"]))
    with pytest.raises(FarflungError, match="which this node does not allow") as caught:
        import_build("ownmodel:model", "model.build", ["other"])
    assert "--allow-code ownmodel" in caught.value.hint


def ask(request, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request)))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = profiling.main()
    return status, json.loads(out.getvalue())


def test_the_profile_of_a_build(monkeypatch):
    status, answer = ask({"job": json.loads(job_of().model_dump_json()), "vocabulary": None}, monkeypatch)
    assert status == 0
    assert [layer["parameters"] for layer in answer["layers"]] == [104, 72, 27]
    assert [layer["activation_elements_per_sample"] for layer in answer["layers"]] == [8, 8, 0]
    assert answer["layers"][0]["flops_per_sample"] == 3 * (2 * 12 * 8 + 8)
    assert (answer["samples"], answer["validation_samples"], answer["family"]) == (8, 2, "build")


def test_a_mean_loss_is_noticed(monkeypatch):
    job = json.loads(job_of("ownmodel:mean").model_dump_json())
    status, answer = ask({"job": job, "vocabulary": None}, monkeypatch)
    assert status == 2
    assert "is not a sum over the batch" in answer["error"] and 'reduction="sum"' in answer["hint"]


def test_a_request_that_is_none(monkeypatch):
    status, answer = ask({"task": 1}, monkeypatch)
    assert status == 2 and "can't be read" in answer["error"]


def test_code_that_exits_is_named():
    for key in ("model", "data"):
        with pytest.raises(FarflungError, match=f"{key}.build: ownmodel:leaving failed: SystemExit: not here"):
            job = job_of(**{key: "ownmodel:leaving"})
            model_of(job, None) if key == "model" else build_data(job)


def test_a_layer_that_fails_in_training_is_named():
    stage = model_of(job_of(model="ownmodel:late"), None).build(0, 0)
    assert stage(torch.ones(2, 3, 4)).shape == (2, 3)
    for value, error in ((-0.5, "ValueError: a small value"), (-2.0, "SystemExit: a negative value")):
        with pytest.raises(FarflungError, match=f"a layer or the loss of ownmodel:late failed: {error}"):
            stage(torch.full((2, 3, 4), value))
    with pytest.raises(RuntimeError, match="shape"):  # whose fault that is, the sender's or the model's, others know
        stage(torch.ones(2, 5))
    assert "ownmodel:late failed: RuntimeError" in str(stage.own_failure(RuntimeError("x")))
    assert stage.own_failure(torch.OutOfMemoryError()) is None
