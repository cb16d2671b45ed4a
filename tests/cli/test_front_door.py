"""The front door itself: light imports, help, typos, options that are not there yet, one object a line."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from quick_start import Nursery

from farflung.job.files import load_job

HEAVY = ("torch", "transformers", "networkx", "sklearn", "matplotlib")


Farflung = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def farflung(nursery: Nursery) -> Farflung:
    """``farflung("job", "init", ..., cwd=)``: a command to its end."""
    return nursery.run


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], ["join", "--help"], ["status", "nowhere"], ["job", "init", "j.toml"], ["runs"]],
    ids=" ".join,
)
def test_answers_without_importing_torch(words: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom farflung.__main__ import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.stderr.strip().splitlines()[-1] == "[]", done.stderr


def test_no_words_show_the_commands() -> None:
    done = subprocess.run([sys.executable, "-m", "farflung"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    for name in ("demo", "run", "coordinator", "join", "status", "plan", "codecs", "wan", "export", "doctor", "job"):
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["jion", "x"], "no such command: farflung jion", "farflung join"),
        (["coordinator", "strat"], "no such command: farflung coordinator strat", "farflung coordinator start"),
        (["run", "--nodez", "3", "x"], "no such option: farflung run --nodez", "--nodes"),
        (["join"], "missing argument", "farflung join --help"),
        (["run", "x.toml", "--nodes", "some"], "--nodes", "farflung run --help"),
        (["join", "x", "--island", "0"], "--island", "farflung join --help"),
        (["coordinator", "drain", "runs/x", "n"], "there is no run in runs/x", "the state folder"),
        (["profile", "runs/x"], "there is no run in runs/x", "the state folder"),
        (["join", "http://x:1"], "'http://x:1' is not a link", "farflung://HOST:PORT/#TICKET"),
        (["run", "missing.toml"], "missing.toml", "farflung job init"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_message(
    farflung: Farflung, words: list[str], message: str, hint: str, tmp_path: Path
) -> None:
    done = farflung(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert lines[0].startswith("error: ") and message in lines[0]
    assert hint in lines[-1]
    assert len(lines) <= 2

    done = farflung(*words, "--json", cwd=tmp_path)
    assert done.returncode == 2
    [line] = done.stdout.splitlines()
    event = json.loads(line)
    assert event["event"] == "error" and message in event["message"] and event["time"] > 1e9


def test_job_init_writes_a_job_that_loads(farflung: Farflung, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("to be or not to be " * 100)
    done = farflung("job", "init", "mine.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "farflung run mine.toml" in done.stdout
    job = load_job(tmp_path / "mine.toml")
    assert job.run.name == "mine" and job.model.family == "gpt2"

    again = farflung("job", "init", "mine.toml", cwd=tmp_path)
    assert again.returncode == 2 and "exists already" in again.stderr


def test_job_init_for_a_model_folder(farflung: Farflung, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("x" * 1000)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2}')
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    done = farflung("job", "init", "mine.toml", "--pretrained", str(folder), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    job = load_job(tmp_path / "mine.toml")
    assert Path(job.model.pretrained).samefile(folder) and Path(job.data.tokenizer).samefile(folder)
    assert 'pretrained = "model"' in (tmp_path / "mine.toml").read_text(), "both can be moved together"

    done = farflung("job", "init", "other.toml", "--pretrained", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 2 and "config.json" in done.stderr
