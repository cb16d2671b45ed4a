"""The whole thing, as a person starts it: real processes over gRPC, from a job file to a model folder."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EVENT_KEYS = {
    "listening": {"link", "page"},
    "joined": {"node", "why"},
    "view": {"view", "pipelines", "stages", "spares", "codecs", "why"},
    "step": {
        "step",
        "loss",
        "samples",
        "seconds",
        "tokens_per_second",
        "bytes_updates",
        "bytes_activations",
        "bytes_dense",
    },
    "eval": {"step", "loss"},
    "checkpoint": {"step", "path"},
    "done": {"steps", "eval_loss", "seconds", "samples", "checkpoint", "views", "bytes_total"},
}
COCKTAIL = (
    "[train]",
    '[parallel]\nstages = 2\n\n[updates]\nmode = "delta"\noverlap = 1\ndense_rounds = 2\n'
    'codec = "cocktail:random=0.1,top=0.2,bits=4"\n\n[activations]\nforward = "int8"\nbackward = "int8"\n\n[train]',
)


def of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == kind]


def processes_with(word: str) -> list[str]:
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            line = (one / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if word in line and int(one.name) != os.getpid():
            found.append(line)
    return found


def test_from_a_job_to_a_model_folder(
    job_file: Callable[..., Path], command: Callable[..., Any], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    done = command("run", str(job_file(COCKTAIL)), "--nodes", "2", "--state", str(state), "--json", timeout=280)
    assert done.status == 0, done.stderr
    events = done.events
    for kind, keys in EVENT_KEYS.items():
        assert of(events, kind), f"no {kind} event"
        for event in of(events, kind):
            assert keys | {"event", "time"} <= set(event)
    assert not of(events, "warning")
    assert [event["step"] for event in of(events, "step")] == [1, 2, 3, 4]
    assert of(events, "step")[0]["loss"] == pytest.approx(5.5, abs=0.3)
    [view] = of(events, "view")
    assert view["view"] == 1 and sorted(name for names in view["pipelines"] for name in names) == ["node-1", "node-2"]
    assert processes_with(str(state)) == []

    [record] = command("status", str(state), "--json").events
    assert record["phase"] == "done" and record["step"] == 4 and record["running"] is False
    [record] = command("runs", "--in", str(tmp_path), "--json").events
    assert record["state"] == str(state)

    [exported] = command("export", str(state), str(tmp_path / "model"), "--json").events
    assert Path(exported["path"], "config.json").is_file()
    [written] = command("generate", exported["path"], "To be", "--tokens", "20", "--json").events
    assert len(written["text"]) > 0


@pytest.mark.slow
def test_ctrl_c_and_the_same_command_again(
    job_file: Callable[..., Path], start: Callable[..., Any], command: Callable[..., Any], tmp_path: Path
) -> None:
    job = job_file(("steps = 4", "steps = 60"), ("every = 0", "every = 5"), COCKTAIL)
    words = ("run", str(job), "--nodes", "2", "--state", str(tmp_path / "state"))
    first = start(*words)
    kept = first.wait_for("checkpoint")
    assert first.end() == 130
    assert re.search(r"stopped after step \d+: the same command goes on from step \d+; .* lost", first.errors)
    assert processes_with(str(tmp_path / "state")) == []

    second = command(*words, "--json", timeout=280)
    assert second.status == 0, second.stderr
    steps = [event["step"] for event in of(second.events, "step")]
    assert steps[0] >= kept["step"] + 1 and steps[-1] == 60
    assert of(second.events, "done")[0]["steps"] == 60


@pytest.mark.slow
def test_a_killed_node_does_not_end_the_run(
    job_file: Callable[..., Path], start: Callable[..., Any], tmp_path: Path
) -> None:
    job = job_file(("steps = 4", "steps = 80"), ("[train]", "[parallel]\nstages = 1\npipelines = 2\n\n[train]"))
    running = start("run", str(job), "--nodes", "2", "--state", str(tmp_path / "state"))
    running.wait_for("step")
    found = subprocess.run(["pgrep", "-f", f"join .*--name node-2 .*{tmp_path}"], capture_output=True, text=True)
    os.kill(int(found.stdout.split()[0]), signal.SIGKILL)
    assert running.wait_for("left")["node"] == "node-2"
    assert running.wait_for("view")["pipelines"] == [["node-1"]]
    done = running.wait_for("done")
    assert done["steps"] == 80 and done["views"] == 2
    assert running.process.wait(timeout=60) == 0


@pytest.mark.slow
def test_a_killed_run_leaves_nobody_behind(
    job_file: Callable[..., Path], start: Callable[..., Any], tmp_path: Path
) -> None:
    job = job_file(("steps = 4", "steps = 5000"))
    running = start("run", str(job), "--nodes", "1", "--state", str(tmp_path / "state"))
    running.wait_for("step")
    running.process.kill()
    deadline = time.monotonic() + 30
    while processes_with(str(tmp_path / "state")) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes_with(str(tmp_path / "state")) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_demo(command: Callable[..., Any], tmp_path: Path) -> None:
    done = command("demo", "--json", cwd=tmp_path, timeout=900)
    assert done.status == 0, done.stderr
    assert of(done.events, "done")[0]["eval_loss"] <= 2.3
    [view] = of(done.events, "view")
    assert [len(pipeline) for pipeline in view["pipelines"]] == [2, 2]
    [sample] = of(done.events, "sample")
    assert len(sample["text"]) >= 190
    folder = str(tmp_path / of(done.events, "export")[0]["path"])
    code = f"import transformers; print(type(transformers.AutoModelForCausalLM.from_pretrained({folder!r})).__name__)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert loaded.stdout.strip() == "GPT2LMHeadModel"


@pytest.mark.slow
def test_the_digits_example(command: Callable[..., Any], tmp_path: Path) -> None:
    job = Path(__file__).parents[2] / "examples" / "digits.toml"
    done = command("run", str(job), "--nodes", "2", "--state", str(tmp_path / "state"), "--json", timeout=600)
    assert done.status == 0, done.stderr
    assert of(done.events, "eval")[-1]["accuracy"] > 0.95


@pytest.mark.slow
def test_a_person_reads_plain_lines(job_file: Callable[..., Path], command: Callable[..., Any], tmp_path: Path) -> None:
    done = command("run", str(job_file()), "--nodes", "1", "--state", str(tmp_path / "state"), timeout=280)
    assert done.status == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert re.search(r"^view 1: ", done.stdout, re.MULTILINE)
    assert re.search(r"^step 4 of 4: loss \d", done.stdout, re.MULTILINE)
    assert re.search(r"^done: 4 steps in ", done.stdout, re.MULTILINE)
    assert not any(line.startswith("{") for line in done.stdout.splitlines())
    assert json.dumps(done.stdout).isascii()
