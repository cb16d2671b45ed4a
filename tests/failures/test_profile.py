"""`farflung profile` of a real run, and where there is none to profile."""

import json

import pytest
from farm import Process

STEPS = 3


def asked(run, *words):
    """The command's end: its status, what it printed."""
    process = Process(run, "profile", ["profile", *words])
    run.wait(lambda: not process.alive, "the profile is taken")
    return process.status, [json.loads(line) for line in process.said.read_text().splitlines()], process.log.read_text()


def test_one_trace_of_two_nodes_and_the_same_losses(farm):
    run = farm(parallel={"stages": 2}, pace=0.05, checkpoint={"every": 10})
    run.coordinator()
    run.nodes("ab")
    run.trains("a", "b")
    status, [found], said = asked(run, "state", "--steps", str(STEPS), "--out", "trace.json")
    assert status == 0, said
    assert set(found["nodes"]) == {"a", "b"} and not found["missing"]
    assert found["path"] == "trace.json" and found["viewer"] == "https://ui.perfetto.dev"
    trace = json.loads((run.folder / "trace.json").read_text())
    events = trace["traceEvents"]
    named = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    assert set(named) == {"a", "b"}
    spans = {name: [e for e in events if e["ph"] == "X" and e["pid"] == pid] for name, pid in named.items()}
    error = 1e6 * found["clock_error_s"]
    assert 0 < error < 1e6
    for name, own in spans.items():
        kinds = {event["name"] for event in own}
        assert {"forward", "backward", "optimiser"} <= kinds and any(kind.startswith("aten::") for kind in kinds)
        assert len(found["nodes"][name]) == STEPS == len([e for e in own if e["name"].startswith("step ")])
    both = [{event["name"]: event for event in own if event["name"].startswith("step ")} for own in spans.values()]
    common = both[0].keys() & both[1].keys()
    assert common
    for number in common:
        one, other = both[0][number], both[1][number]
        assert one["ts"] < other["ts"] + other["dur"] + 2 * error and other["ts"] < one["ts"] + one["dur"] + 2 * error
    kinds = {event["name"] for own in spans.values() for event in own}
    assert {"send ACTIVATION", "send ACTIVATION_GRADIENT"} <= kinds
    assert {"wait for ACTIVATION", "wait for ACTIVATION_GRADIENT"} & kinds, "two stages in step: one of them waits"
    last = run.trains("a", "b", steps=run.step() + 2)
    steps = {event["step"]: event["loss"] for event in run.events("step")}
    assert [steps[n] for n in range(1, last + 1)] == pytest.approx(run.plain_losses(last), abs=1e-4)


def test_no_run_to_profile(farm):
    run = farm()
    run.coordinator()
    status, [said], _ = asked(run, "state")
    assert status == 3 and "the run does not train now" in said["message"]
    run.c.kill()
    status, [said], _ = asked(run, "state")
    assert status == 2 and "nothing listens at" in said["message"]
