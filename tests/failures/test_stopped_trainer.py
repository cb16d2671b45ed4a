"""A trainer process is stopped, and its I/O process is not: no connection breaks, and every heartbeat comes."""

import os
import signal

import pytest

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]  # two and a half minutes of patience


@pytest.mark.parametrize("mode", ["gradient", "delta"])
def test_the_others_go_on_and_it_comes_back(farm, mode):
    run = farm(parallel={"pipelines": 3}, updates={"mode": mode, "codec": "none" if mode == "gradient" else "int8"})
    run.coordinator()
    nodes = run.nodes("abc")
    run.trains("a", "b", "c", steps=5)
    os.kill(nodes["b"].pid, signal.SIGSTOP)  # its trainer alone
    run.trains("a", "c", patience=400.0)
    said = [event["message"] for event in run.events("warning", node="b")]
    assert any("b's trainer has done nothing for 120 s, and its machine answers" in one for one in said)
    assert any(one.startswith("b is stuck: its trainer has done nothing for 15") for one in said)
    assert run.events("left") == []
    os.kill(nodes["b"].pid, signal.SIGCONT)
    run.trains("a", "b", "c", steps=3)
    assert all(node.alive for node in nodes.values())
    steps = {event["step"]: event for event in run.events("step")}
    assert sorted(steps) == list(range(1, max(steps) + 1))
