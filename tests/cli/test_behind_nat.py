"""Nodes that nobody can dial, as real processes: they listen on another address than the one that others see."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(("hidden", "relayed"), [pytest.param(1, False, marks=pytest.mark.slow), (2, True)])
def test_a_run_with_nodes_behind_nat(
    start: Callable[..., Any],
    command: Callable[..., Any],
    job_file: Callable[..., Path],
    tmp_path: Path,
    hidden: int,
    relayed: bool,
) -> None:
    """One or both of two nodes can't be dialled: they train all the same, through the coordinator where it must be."""
    job = job_file(("[checkpoint]", "[parallel]\nstages = 2\npipelines = 1\n\n[checkpoint]"))
    state = tmp_path / "state"
    coordinator = start("coordinator", "start", str(job), "--listen", "127.0.0.1:0", "--state", str(state))
    link = coordinator.wait_for("listening")["link"]
    for number in range(2):
        # 127.0.0.1 is what this node tells the others, and nothing listens there.
        where = ("--listen", "127.0.0.2:0") if number < hidden else ()
        start("join", link, "--name", f"n{number}", "--cache", str(tmp_path / str(number)), "--device", "cpu", *where)
    assert coordinator.wait_for("done")["steps"] == 4
    status = command("status", str(state), "--json")
    found = status.events[0]
    assert [node["dials_out"] for node in sorted(found["nodes"], key=lambda one: one["node"])] == [True, relayed]
    way = "relayed by the coordinator" if relayed else "opened by n0"
    assert {one["way"] for one in found["links"]} == {way}
    assert all(one["bandwidth_bps"] > 1e6 for one in found["links"])
