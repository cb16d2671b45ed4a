"""``farflung job init``: every key, commented, and a file that loads: as it is, and with any commented key put in."""

import re
from pathlib import Path
from typing import Any

import pytest

from farflung.__main__ import app
from farflung.cli.commands.preparing.job_init import devices
from farflung.cli.common import execute
from farflung.cli.jobs.job_init import write
from farflung.compress import check
from farflung.job.files import load_job, tomllib
from farflung.job.schema import Job
from farflung.proto.errors import FarflungError

GPU = {"kind": "cuda", "description": "NVIDIA L4", "memory_bytes": 23_000_000_000}
CPU = {"kind": "cpu", "description": "AMD EPYC, 2 cores", "memory_bytes": 8_000_000_000}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("To be, or not to be, that is the question.\n" * 100)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2}')
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    return tmp_path


def tables(text: str) -> dict[str, list[str]]:
    parts = re.split(r"^\[(\w+)\]\n", text, flags=re.MULTILINE)
    return {name: body.splitlines() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("pretrained", [False, True], ids=["family", "pretrained"])
def test_every_key_is_there_once_with_a_comment(pretrained: bool, folder: Path) -> None:
    write(folder / "job.toml", folder / "model" if pretrained else None)
    found = tables((folder / "job.toml").read_text())
    assert list(found) == list(Job.model_fields)
    for name, field in Job.model_fields.items():
        kind: Any = field.annotation
        for key in kind.model_fields:
            lines = [line for line in found[name] if re.match(rf"(# )?{key} = ", line)]
            assert len(lines) == 1, (name, key, lines)
            assert re.search(r"\S +# \S", lines[0]) or '"' in lines[0], lines[0]
    load_job(folder / "job.toml", check)


def test_a_commented_key_is_one_that_the_job_takes(folder: Path) -> None:
    """Each `# key = value` is TOML whose value the key accepts; combinations are the person's own."""
    write(folder / "job.toml")
    tried = 0
    for name, lines in tables((folder / "job.toml").read_text()).items():
        kind: Any = Job.model_fields[name].annotation
        for line in lines:
            if match := re.match(r"# (\w+) = ", line):
                value = tomllib.loads(line.removeprefix("# "))[match[1]]
                kind.__pydantic_validator__.validate_assignment(kind.model_construct(), match[1], value)
                tried += 1
    assert tried > 15


@pytest.mark.parametrize("mode", ["delta", "gradient"])
def test_a_job_of_either_mode_loads_with_every_key(mode: str, folder: Path) -> None:
    write(folder / "job.toml", mode=mode)
    job = load_job(folder / "job.toml", check)
    assert job.updates.mode == mode and (mode == "delta" or (job.updates.every, job.updates.fragments) == (1, 1))
    updates = tables((folder / "job.toml").read_text())["updates"]
    assert sum(bool(re.match(r"(# )?(mode|every|codec|overlap) = ", line)) for line in updates) == 4
    with pytest.raises(FarflungError, match="allowed: delta, gradient"):
        write(folder / "other.toml", mode="average")


def test_it_is_fitted_to_the_hardware(folder: Path) -> None:
    write(folder / "gpus.toml", devices=[GPU, GPU, {**GPU, "description": "NVIDIA A10G"}])
    job = load_job(folder / "gpus.toml", check)
    assert (job.parallel.min_nodes, job.train.precision) == (3, "bf16")
    write(folder / "many.toml", devices=[GPU] * 24)
    job = load_job(folder / "many.toml", check)
    assert (job.train.batch, job.train.microbatch) == (96, 4), "a microbatch for each of them"
    assert "# For 2 x NVIDIA L4, 1 x NVIDIA A10G; the smallest has 23.0 GB" in (folder / "gpus.toml").read_text()
    write(folder / "mixed.toml", devices=[GPU, CPU])
    job = load_job(folder / "mixed.toml", check)
    assert (job.parallel.min_nodes, job.train.precision) == (2, "fp32")
    write(folder / "none.toml")
    assert load_job(folder / "none.toml", check).parallel.min_nodes == 1


def test_a_model_folder_is_named_from_the_job_files_own(folder: Path) -> None:
    (folder / "jobs").mkdir()
    write(folder / "jobs" / "tune.toml", folder / "model")
    assert 'pretrained = "../model"' in (folder / "jobs" / "tune.toml").read_text()


def test_hardware_from_a_cluster_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "cluster.toml").write_text(
        'regions = ["a"]\ndevices_per_region = {a = 3}\nlatency_ms = [[0.1]]\nbandwidth_gbps = [[1.0]]\n'
    )
    monkeypatch.chdir(folder)
    assert execute(app, ["job", "init", "--hardware", "cluster.toml"]) == 0
    assert load_job(folder / "job.toml", check).parallel.min_nodes == 3


def test_hardware_of_a_run_that_is_not_there(folder: Path) -> None:
    with pytest.raises(FarflungError, match="there is no run in"):
        devices(str(folder / "runs"))


def test_a_name_that_a_shell_would_take_apart(folder: Path) -> None:
    path = folder / "job (1).toml"
    assert write(path, folder / "model") == f"farflung run '{path}'"
    assert load_job(path, check).run.name == "job--1-"


def test_a_model_folder_with_nothing_but_a_tokenizer_json(folder: Path) -> None:
    (folder / "model" / "tokenizer.json").write_text("{}")
    write(folder / "job.toml", folder / "model")
    assert load_job(folder / "job.toml", check).data.tokenizer == str(folder / "model")


def test_the_context_is_one_that_the_model_takes(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text('{"model_type": "gpt2", "n_positions": 64, "vocab_size": 256}')
    write(tmp_path / "job.toml", tmp_path / "small")
    assert tomllib.loads((tmp_path / "job.toml").read_text())["model"]["context"] == 64
    assert "at most the 64 of this model" in (tmp_path / "job.toml").read_text()


def test_data_are_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of messages is written as `chat`, one of texts with the field that has them."""
    monkeypatch.chdir(folder)
    rows = {
        "chat.jsonl": '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
        "talk.json": '[{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}]',
        "lines.jsonl": '{"id": 3, "body": "text"}',
    }
    for name, row in rows.items():
        (folder / "data" / name).write_text(row + "\n")
    wanted = {"chat.jsonl": "chat", "talk.json": "chat", "lines.jsonl": "jsonl", "a.txt": "text"}
    for name, key in wanted.items():
        assert execute(app, ["job", "init", "made.toml", "--force", "--data", f"data/{name}"]) == 0
        job = load_job(folder / "made.toml", check)
        assert job.data.source() == (key, [str(folder / "data" / name)])
        assert job.data.field == ("body" if name == "lines.jsonl" else "text")
    assert execute(app, ["job", "init", "made.toml", "--force", "--data", "data/none.jsonl"]) == 2
