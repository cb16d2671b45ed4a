"""A run of real processes is told what to do: by its operator, by the owners of its nodes, by a machine's end."""

import contextlib
import io
import json
import signal
import time

import pytest

from farflung.__main__ import app
from farflung.cli.common import execute

DELTA = {"mode": "delta", "codec": "int8", "overlap": 1}
BOTH = [
    pytest.param({"mode": "gradient"}, id="gradient"),
    pytest.param(DELTA, id="delta", marks=pytest.mark.slow),
]


def order(run, *words, status=0):
    """``farflung coordinator WORDS``, in this process: its answer, its link, or its refusal."""
    out = io.StringIO()
    words = [str(run.state) if word == "state" else word for word in words]
    with contextlib.redirect_stdout(out):
        code = execute(app, ["coordinator", *words, "--json"])
    assert code == status, out.getvalue()
    said = json.loads(out.getvalue())
    return said.get("answer") or said.get("link") or said["message"]


def is_exact(run, last):
    """Every step once, with all its samples, on the curve of one undisturbed process."""
    steps = {event["step"]: event for event in run.events("step")}
    assert [steps[n]["samples"] for n in range(1, last + 1)] == [12] * last
    assert [steps[n]["loss"] for n in range(1, last + 1)] == pytest.approx(run.plain_losses(last), abs=1e-4)


def test_an_operator_drains_pauses_sets_and_evicts(farm):
    run = farm(parallel={"pipelines": 3})
    run.coordinator()
    nodes = run.nodes("abc")
    run.trains("a", "b", "c")
    answer = order(run, "drain", "state", "c", "--why", "its disk is old")
    assert answer.startswith("c is drained by ") and "its disk is old" in answer
    run.trains("a", "b")
    run.wait(lambda: not nodes["c"].alive, "c has left")
    assert nodes["c"].status == 0
    again = run.node("c")
    run.wait(lambda: not again.alive, "c is refused")
    assert again.status == 3 and "its disk is old" in again.of("error")[0]["message"]
    assert "commands nobody" in order(run, "resume", run.link, "c", status=3)
    order(run, "resume", order(run, "token", "state", "--operator"), "c")
    nodes["c"] = run.node("c")
    run.trains("a", "b", "c")

    order(run, "pause", "state", "--why", "the power is needed")
    run.wait(lambda: run.status()["phase"] == "waiting", "the run pauses")
    assert "the power is needed" in run.status()["why"] and run.status()["paused"]
    paused_at = run.step()
    order(run, "pause", "state", "b", "--why", "so is its room")
    order(run, "resume", "state")
    last = run.trains("a", "c")
    assert run.view()["spares"] == ["b"] and nodes["b"].alive
    assert min(event["step"] for event in run.c.of("step", view=run.view()["view"])) == paused_at + 1
    is_exact(run, last)
    order(run, "resume", "state", "b")
    run.trains("a", "b", "c")
    assert "cannot be changed" in order(run, "set", "state", "train.batch=24", status=3)
    assert " 0.002 -> 0.5, set by " in order(run, "set", "state", "learning_rate=0.5")
    run.wait(lambda: " 0.002 -> 0.5, set by " in run.view()["why"], "the view with the other learning rate")
    run.trains("a", "b", "c")

    order(run, "evict", "state", "a")
    run.trains("b", "c")
    run.wait(lambda: not nodes["a"].alive, "a is out")
    assert nodes["a"].status == 3 and "evicted by" in nodes["a"].of("error")[0]["message"]
    again = run.node("a")
    run.wait(lambda: not again.alive, "a stays out")
    assert again.status == 3
    assert run.events("warning") == []


@pytest.mark.parametrize(
    "updates",
    [pytest.param({"mode": "gradient"}, id="gradient"), pytest.param(DELTA, id="delta", marks=pytest.mark.slow)],
)
def test_a_machine_is_taken_away(farm, updates):
    """SIGTERM: the node hands over and ends with status 0 within 20 s, and is welcome again."""
    run = farm(parallel={"pipelines": 2}, updates=updates)
    run.coordinator()
    nodes = run.nodes("ab")
    run.trains("a", "b")
    began = time.monotonic()
    nodes["b"].send(signal.SIGTERM)
    run.wait(lambda: not nodes["b"].alive, "b is gone")
    assert time.monotonic() - began < 20 and nodes["b"].status == 0
    last = run.trains("a", steps=4)
    why = run.events("view")[1]["why"]
    assert why.startswith("b is being taken away with its machine (SIGTERM); ") and "training goes on after step" in why
    if updates is not DELTA:
        is_exact(run, last)
    run.node("b")
    run.trains("a", "b")
    assert run.events("warning") == []
    assert [(process.name, line) for process in run.processes for line in process.lines()] == []


@pytest.mark.slow
def test_an_owner_pauses_a_node_and_goes(farm):
    run = farm(parallel={"pipelines": 2})
    run.coordinator()
    file = run.folder / "pause"
    nodes = {name: run.node(name, "--pause-file", str(file) if name == "b" else "none") for name in "ab"}
    run.trains("a", "b")
    file.touch()
    run.trains("a")
    assert run.view()["why"].startswith("b is paused by its owner: ") and nodes["b"].alive
    file.unlink()
    run.trains("a", "b")
    nodes["a"].send(signal.SIGUSR1)
    run.trains("b")
    nodes["a"].send(signal.SIGUSR1)
    last = run.trains("a", "b")
    is_exact(run, last)
    nodes["a"].send(signal.SIGINT)
    run.wait(lambda: not nodes["a"].alive, "a is gone")
    assert nodes["a"].status == 130 and "the run has heard a goodbye" in nodes["a"].lines()[-1]
    assert run.wait(lambda: run.events("left", node="a"), "its goodbye")[0]["why"] == "interrupted by its owner"
    run.trains("b")
    run.c.kill()
    nodes["b"].send(signal.SIGINT)
    run.wait(lambda: not nodes["b"].alive, "b is gone")
    assert nodes["b"].status == 130 and "the coordinator did not answer" in nodes["b"].lines()[-1]
