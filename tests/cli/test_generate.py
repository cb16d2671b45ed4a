"""`farflung generate` of a run that trains: its nodes write the text, and no machine holds the model."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from long_run import long_run

from farflung.cli.one_run.generate import collect, way_of
from farflung.cli.screen.output import Output
from farflung.coordinator.store.store import Store
from farflung.proto.control_pb2 import GenerateReply
from farflung.proto.errors import FarflungError, Refused, RunFailed


def reply(text: str = "", **more: Any) -> GenerateReply:
    return GenerateReply(text=text, nodes=["a", "b"], step=7, round=6, **more)


def test_the_parts_of_a_text_make_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=True)
    found = collect(output, [reply("or not"), reply(" to be")])
    assert found == {"text": "or not to be", "through": "nodes", "nodes": ["a", "b"], "step": 7, "round": 6}
    assert "a -> b write with the weights of step 7, round 6" in capsys.readouterr().err
    with pytest.raises(Refused, match="the run does not train now") as refused:
        collect(output, [GenerateReply(refused="the run does not train now\ntry later")])
    assert refused.value.hint == "try later"
    with pytest.raises(RunFailed, match="broke off"):
        collect(output, [reply("or"), GenerateReply(refused="the text broke off: b is gone\ntype it again")])
    with pytest.raises(RunFailed, match="there is no text"):
        collect(output, [])


def test_which_way(tmp_path: Path) -> None:
    assert way_of(None, str(tmp_path), None) is None
    assert way_of("layers", str(tmp_path), 3) == "layers"
    assert way_of(None, "s3://bucket/run", None) is None
    assert way_of(None, "farflung://h:1/#x", None) == way_of(None, "@file", None) == "nodes"
    with pytest.raises(FarflungError, match="--through node: there are nodes, model, layers"):
        way_of("node", str(tmp_path), None)
    with pytest.raises(FarflungError, match="--step is of a checkpoint"):
        way_of("nodes", str(tmp_path), 3)


def test_nodes_of_a_run_that_has_ended_write_nothing(tmp_path: Path) -> None:
    Store(tmp_path, create=True).close()
    assert way_of(None, str(tmp_path), None) is None
    with pytest.raises(Refused, match="nothing trains in") as refused:
        way_of("nodes", str(tmp_path), None)
    assert "--through model" in refused.value.hint


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[Any, Path]]:
    """(the events of a coordinator and two nodes, the state folder)"""
    with long_run(tmp_path) as (_, events, state):
        yield events, state


def generate(state: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "farflung", "generate", str(state), "To be", "--json", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_nodes_write_while_they_train(run: tuple[Any, Path]) -> None:
    events, state = run
    step = next(event["step"] for event in events if event["event"] == "step" and event["step"] >= 20)
    threading.Thread(target=lambda: [None for _ in events], daemon=True).start()  # else its pipe fills up
    found = {"event": "error"}
    while found.get("event") == "error":  # a view that began meanwhile breaks a text off
        out, err = generate(state, "--tokens", "30", "--temperature", "0").communicate(timeout=300)
        found = json.loads(out)
        assert "text" in found or "view" in found["message"] or "does not train now" in found["message"], found
    assert found["through"] == "nodes" and sorted(found["nodes"]) == ["node-1", "node-2"], err
    assert found["step"] > step and found["round"] and len(found["text"].encode()) == 30

    told = ""
    while "write with the weights of step" not in told:
        killed = generate(state, "--through", "nodes", "--tokens", "100000")
        assert killed.stderr is not None
        told = killed.stderr.readline()
    victim = next(
        int(path.name) for path in Path("/proc").glob("[0-9]*") if f"{state}/nodes/node-2".encode() in _words_of(path)
    )
    os.kill(victim, signal.SIGKILL)
    out, err = killed.communicate(timeout=300)
    assert killed.returncode == 4 and "the text broke off" in out + err, (out, err)


def _words_of(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
