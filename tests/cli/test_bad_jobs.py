"""Every mistake in a job, a data file or a model folder: one message, exit status 2, no traceback."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

BAD = {
    "unknown key": (("batch = 8", "batsch = 8"), ["train.batsch", "did you mean batch", ":17:"]),
    "unknown table": (("[checkpoint]", "[checkpiont]"), ["[checkpiont]", "did you mean checkpoint"]),
    "key of another table": (("steps = 4", "steps = 4\nbatch = 8"), ["run.batch", "[train]"]),
    "wrong type": (("layers = 2", 'layers = "two"'), ["model.layers", '"two"', "whole number"]),
    "not a choice": (("batch = 8", 'batch = 8\noptimizer = "adam"'), ["train.optimizer", "adamw"]),
    "not yet": (("batch = 8", 'batch = 8\nprecision = "fp8"'), ["train.precision", "not yet"]),
    "microbatch does not divide batch": (
        ("microbatch = 2", "microbatch = 3"),
        ["train.microbatch = 3", "does not divide"],
    ),
    "more stages than layers": (("[train]", "[parallel]\nstages = 9\n\n[train]"), ["parallel.stages = 9", "4 layers"]),
    "unknown codec": (("[train]", '[updates]\ncodec = "int9"\n\n[train]'), ["updates.codec", "int9", "int8"]),
    "codec in the wrong place": (
        ("[train]", '[activations]\nforward = "cocktail"\n\n[train]'),
        ["activations.forward", "cocktail"],
    ),
    "aqsgd without a second visit": (
        ("steps = 4", "epochs = 1"),
        ["activations.forward", "epochs"],
    ),
    "missing file": (("text/*.txt", "nowhere/*.txt"), ["data.text", "nowhere/*.txt"]),
    "no toml": (("[model]", "[model"), ["not TOML"]),
    "neither steps nor epochs": (("steps = 4", ""), ["epochs or steps"]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_job_is_refused_at_the_start(
    name: str, job_file: Callable[..., Path], command: Callable[..., object], tmp_path: Path
) -> None:
    change, words = BAD[name]
    changes = [change]
    if name.startswith("aqsgd"):
        changes.append(("[train]", '[activations]\nforward = "aqsgd:bits=4"\n\n[train]'))
    job = job_file(*changes)
    starts = [["run", str(job)]]
    if name == "unknown key":
        starts.append(["coordinator", "start", str(job), "--listen", "127.0.0.1:0"])
    for start in starts:
        done = command(*start, "--state", str(tmp_path / "state"), "--json")
        assert done.status == 2
        assert str(job) in done.error["message"]
        for word in words:
            assert word in done.error["message"]
        assert done.error["hint"]
    assert not (tmp_path / "state").exists() or name == "unknown key"


DATA = {
    "empty text": (("text/*.txt", "empty/*.txt"), ["empty"]),
    "tokenizer folder without a tokenizer": (
        ("validation = 0.1", 'validation = 0.1\ntokenizer = "empty"'),
        ["tokenizer"],
    ),
    "text shorter than a batch": (("context = 32", "context = 100000"), ["context"]),
}


@pytest.mark.parametrize("name", DATA)
def test_bad_data_is_refused_at_the_start(
    name: str, job_file: Callable[..., Path], command: Callable[..., object], tmp_path: Path
) -> None:
    change, words = DATA[name]
    job = job_file(change)
    done = command(
        "coordinator", "start", str(job), "--listen", "127.0.0.1:0", "--state", str(tmp_path / "state"), "--json"
    )
    assert done.status == 2
    for word in words:
        assert word in done.error["message"]
    assert done.error["hint"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 as transformers saves it."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("model")
    config = GPT2Config(vocab_size=256, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def _without(tensors: dict, name: str) -> dict:
    return {key: value for key, value in tensors.items() if key != name}


def _shorter(tensors: dict, name: str) -> dict:
    return {**tensors, name: tensors[name][..., :-1].contiguous()}


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        pytest.param(_without, "missing", id="missing"),
        pytest.param(_shorter, "shape", id="shape", marks=pytest.mark.slow),
    ],
)
def test_a_spoilt_model_folder_is_refused_at_the_start(
    spoil: Callable[[dict, str], dict],
    word: str,
    model_folder: Path,
    job_file: Callable[..., Path],
    command: Callable[..., object],
    tmp_path: Path,
) -> None:
    from safetensors.torch import load_file, save_file

    name = "transformer.h.1.mlp.c_fc.weight"
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text((model_folder / "config.json").read_text())
    save_file(spoil(load_file(model_folder / "model.safetensors"), name), folder / "model.safetensors")
    shape = 'family = "gpt2"\nlayers = 2\nwidth = 32\nheads = 2\n'
    job = job_file((shape, f"pretrained = {json.dumps(str(folder))}\n"))
    done = command(
        "coordinator", "start", str(job), "--listen", "127.0.0.1:0", "--state", str(tmp_path / "state"), "--json"
    )
    assert done.status == 2
    assert name in done.error["message"] and word in done.error["message"]
