"""Native code crashes: what people see names the signal, and the node comes back."""

import os
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1200)  # what is waited for is a state


def io_of(node):
    """Its I/O process, which is no process of an island."""
    [found] = [pid for pid in node.family[1:] if b"island_worker" not in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return found


@pytest.mark.parametrize("island", [1, 2])
def test_the_io_process_crashes_and_the_node_comes_back(farm, island):
    run = farm(train={"microbatch": 3}, parallel={"pipelines": 2})
    run.coordinator()
    nodes = {"a": run.node("a"), "b": run.node("b", "--island", str(island))}
    run.trains("a", "b", steps=5)
    io = io_of(nodes["b"])
    number = run.view()["view"]
    os.kill(io, signal.SIGSEGV)
    run.wait(lambda: len(nodes["b"].of("joined")) == 2, "b joins again")
    run.wait(lambda: run.view()["view"] > number + 1, "two view changes")
    run.trains("a", "b", steps=5)
    [said] = [event["message"] for event in nodes["b"].of("warning")]
    assert said.startswith("the node's I/O process was ended by SIGSEGV, a crash in native code: this node joins again")
    assert any("Fatal Python error: Segmentation fault" in line for line in nodes["b"].lines())
    assert [event["node"] for event in run.events("left")] == ["b"] and all(node.alive for node in nodes.values())
    steps = {event["step"]: event for event in run.events("step")}
    assert sorted(steps) == list(range(1, max(steps) + 1)) and {one["samples"] for one in steps.values()} == {12}
