"""Nodes of several processes in a run of real processes: their hands end with them, and they end with their hands."""

import os
import signal
from pathlib import Path

import pytest


def hands(node):
    return [pid for pid in node.family[1:] if b"island_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def gone(pid):
    """Whether the process has ended; who should have waited for it may be dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_an_island_trains_ends_with_its_hands_and_leaves_politely(farm):
    run = farm(train={"microbatch": 3}, parallel={"pipelines": 3})
    run.coordinator()
    a = run.node("a")
    b, c = (run.node(name, "--island", "2") for name in "bc")
    run.trains("a", "b", "c")
    assert "island of 2: " in {node["node"]: node["device"] for node in run.status()["nodes"]}["b"]

    (hand,) = hands(b)
    os.kill(hand, signal.SIGKILL)
    run.wait(lambda: not b.alive, "b ends with its hand")
    assert b.status == 4
    assert "process 1 of this node's island (cpu) was killed by SIGKILL" in b.of("error")[0]["message"]
    run.trains("a", "c")

    (hand,) = hands(c)
    for pid in (hand, c.pid):  # as an init system does
        os.kill(pid, signal.SIGTERM)
    run.wait(lambda: not c.alive, "c leaves")
    assert c.status == 0 and gone(hand)
    last = run.trains("a")
    assert a.alive

    steps = {event["step"]: event for event in run.events("step")}
    assert [steps[n]["samples"] for n in range(1, last + 1)] == [12] * last
    assert [steps[n]["loss"] for n in range(1, last + 1)] == pytest.approx(run.plain_losses(last), abs=1e-4)


@pytest.mark.slow
def test_the_hands_of_a_node_that_is_killed_end(farm):
    run = farm(train={"microbatch": 3}, parallel={"pipelines": 2})
    run.coordinator()
    run.node("a")
    b = run.node("b", "--island", "3")
    run.trains("a", "b")
    behind = hands(b)
    assert len(behind) == 2
    b.kill()
    run.wait(lambda: all(map(gone, behind)), "the hands end")
    run.trains("a")
