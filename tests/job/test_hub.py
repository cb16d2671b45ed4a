"""Models by their names on the hub, from a small server that speaks its HTTP API."""

import errno
import hashlib
import json

import huggingface_hub
import pytest
from hub_server import running_hub

from farflung.job.files import load_job
from farflung.job.model_folder.hub import CONFIG, WEIGHTS, check, folder_of, is_name
from farflung.job.model_folder.push import check_target, upload
from farflung.proto.errors import JobError

SERVED = b"\x02\0\0\0\0\0\0\0{}" + bytes(range(256)) * 400


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 2}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(SERVED)
    (folder / "pytorch_model.bin").write_bytes(b"pickled")
    old = tmp_path_factory.mktemp("old")
    (old / "config.json").write_text("{}")
    (old / "pytorch_model.bin").write_bytes(b"pickled")
    with running_hub() as made:
        made.models = {"org/tiny": folder, "org/gated": folder, "org/old": old}
        made.gated = {"org/gated"}
        yield made


@pytest.fixture(autouse=True)
def _machine(server, tmp_path, monkeypatch):
    """One with an empty cache, whose hub is the server."""
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    server.asked.clear()


def job_in(folder, pretrained):
    (folder / "a.txt").write_text("x")
    path = folder / "job.toml"
    path.write_text(f'[run]\nsteps = 3\n[data]\ntext = "a.txt"\n[model]\npretrained = "{pretrained}"\ncontext = 8\n')
    return path


def test_what_may_be_a_name():
    assert is_name("Qwen/Qwen3-0.6B") and is_name("org/name@refs/pr/1") and is_name("org/name@v1.0")
    for path in ("gpt2", "../gpt2", "./models/gpt2", "a/b/c", "/models/gpt2", "~/gpt2", "s3://b/c"):
        assert not is_name(path), path


def test_a_job_names_a_model_and_has_its_files_without_what_is_pickled(server, tmp_path):
    job = load_job(job_in(tmp_path, "org/tiny"))
    folder = tmp_path / "cache" / "models--org--tiny" / "snapshots" / server.revision("org/tiny")
    assert job.model.pretrained == str(folder)
    assert (folder / "model.safetensors").read_bytes() == SERVED
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert not any(path.endswith(".bin") for method, path, _ in server.asked if method == "GET")
    server.asked.clear()
    assert load_job(job_in(tmp_path, f"org/tiny@{server.revision('org/tiny')}")).model.pretrained == str(folder)
    assert not [path for _, path, _ in server.asked if "/resolve/" in path], "nothing is downloaded twice"


def test_a_plan_needs_the_configuration_alone(server, tmp_path):
    job = load_job(job_in(tmp_path, "org/tiny"), files=False)
    assert (tmp_path / job.model.pretrained / "config.json").is_file()
    assert not any(path.endswith(".safetensors") for method, path, _ in server.asked if method == "GET")


def test_a_folder_of_that_name_comes_first(server, tmp_path):
    folder = tmp_path / "org" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 2}))
    (folder / "model.safetensors").write_bytes(b"")
    assert load_job(job_in(tmp_path, "org/tiny")).model.pretrained == str(folder)
    assert not server.asked


def test_offline_takes_the_cache_or_says_that_it_lacks_the_model(server, monkeypatch):
    folder = folder_of("org/tiny", "model.pretrained", WEIGHTS)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    server.asked.clear()
    assert folder_of("org/tiny", "model.pretrained", WEIGHTS) == folder
    with pytest.raises(JobError, match="'org/other' is not in the cache of this machine, which is offline"):
        folder_of("org/other", "model.pretrained", WEIGHTS)
    assert not server.asked


def test_a_gated_model_wants_a_token(server, monkeypatch):
    with pytest.raises(JobError, match="only to people who have accepted its licence") as caught:
        folder_of("org/gated", "model.pretrained", CONFIG)
    assert f"{server.url}/org/gated" in str(caught.value.hint) and "HF_TOKEN" in str(caught.value.hint)
    monkeypatch.setenv("HF_TOKEN", server.token)
    assert folder_of("org/gated", "model.pretrained", CONFIG)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/none", "no folder of that name here and no such model on the hub, or it is private"),
        ("org/tiny@v9", "org/tiny has no revision 'v9' on the hub"),
        ("org/old", r"has no \*.safetensors on the hub"),
    ],
)
def test_what_is_missing_is_said_in_a_sentence(tmp_path, name, message):
    with pytest.raises(JobError, match=message) as caught:
        load_job(job_in(tmp_path, name))
    assert caught.value.hint and "\n" not in str(caught.value).strip()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no space is left for its files in .*cache"),
        (OSError(errno.ECONNREFUSED, "Connection refused"), "is no folder here, and the hub did not give it"),
        (RuntimeError("the client's own"), "the hub did not give it: the client's own"),
    ],
)
def test_a_full_disk_and_a_hub_that_does_not_answer(monkeypatch, error, message):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(JobError, match=message):
        folder_of("org/tiny", "model.pretrained", WEIGHTS)


def test_a_damaged_file_of_the_cache_is_named(tmp_path):
    right = hashlib.sha256(b"right").hexdigest()
    (tmp_path / right).write_bytes(b"wrong")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / right)
    with pytest.raises(JobError, match=r"model\.safetensors in the cache of the hub is damaged"):
        check(tmp_path / "model.safetensors", hashlib.sha256(b"wrong").hexdigest())
    check(tmp_path / "model.safetensors", right)


@pytest.fixture
def exported(tmp_path):
    folder = tmp_path / "tuned"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(SERVED)
    return folder


def test_an_export_is_pushed_as_one_commit(server, exported, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", server.token)
    assert upload(exported, "org/mine") == f"{server.url}/org/mine"
    assert server.pushed["org/mine"] == {"config.json": b"{}", "model.safetensors": SERVED}
    assert sum("/commit/" in path for _, path, _ in server.asked) == 1


def test_who_may_not_write_is_told_what_to_do_and_keeps_the_folder(server, exported, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(JobError, match=r"does not let this token write there; .*tuned is written") as caught:
        upload(exported, "org/other")
    assert "HF_TOKEN" in caught.value.hint and "org/other" not in server.pushed
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(JobError, match="the hub did not take it") as caught:
        upload(exported, "org/other")
    assert "hf upload org/other" in caught.value.hint


def test_a_wrong_name_and_no_network_are_said_before_anything_is_written(monkeypatch):
    with pytest.raises(JobError, match="--push 'mine' is no name of a model"):
        check_target("mine")
    check_target("org/mine@branch")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(JobError, match="this machine is offline"):
        check_target("org/mine")
