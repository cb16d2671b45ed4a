"""Nobody ends because what happens cannot be shown or written just now: real processes."""

import resource
import sqlite3
import time

import pytest

pytestmark = pytest.mark.timeout(600)


def test_stdout_is_on_a_full_disk(farm):
    run = farm(parallel={"pipelines": 2}, run={"steps": 30})
    run.coordinator("--link-file", "link", wait=False, FARM_STDOUT="/dev/full")
    run.wait(lambda: (run.folder / "link").exists(), "the link is written")
    nodes = {name: run.node(name, FARM_STDOUT="/dev/full") for name in "ab"}
    run.wait(lambda: not run.c.alive and not any(node.alive for node in nodes.values()), "the run is over")
    assert run.status()["phase"] == "done" and run.status()["step"] == 30
    assert [run.c.status, *(node.status for node in nodes.values())] == [0, 0, 0]
    for one in (run.c, *nodes.values()):
        assert sum("cannot show what happens" in line for line in one.lines()) == 1


def test_another_process_holds_the_database(farm):
    """A node dies meanwhile: the others are told at once, and their view follows when it can be stored."""
    run = farm(parallel={"pipelines": 3})
    run.coordinator()
    nodes = run.nodes("abc")
    run.trains(*"abc")
    number, stored = run.view()["view"], max(row["step"] for row in run.events("step"))
    holder = sqlite3.connect(run.state / "run.sqlite", isolation_level=None)
    holder.execute("begin immediate")
    run.wait(lambda: run.step() > stored + 5, "training goes on")
    nodes["c"].kill()
    run.wait(lambda: any("database is locked" in one["message"] for one in run.events("warning")), "it is said")
    at = run.wait(lambda: run.events("left", node="c"), "its death is noticed") and run.step()
    time.sleep(2)
    assert run.step() <= at + 2, "the view that replaces it waits for the disk, and everybody has flushed"
    holder.execute("rollback")
    holder.close()
    run.trains("a", "b")
    assert run.view()["view"] == number + 1
    assert all(nodes[name].alive for name in "ab") and run.c.alive


def test_the_disk_is_full_when_the_last_checkpoint_is_stored(farm):
    """The run is not done: its weights stay on the nodes, and are stored when there is room."""
    run = farm(ballast=2_000_000, parallel={"pipelines": 2}, run={"steps": 12}, checkpoint={"every": 0})
    run.coordinator()
    resource.prlimit(run.c.pid, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    nodes = run.nodes("ab")
    told = run.wait(lambda: [one for one in run.events("warning") if "not done" in one["message"]], "it is said")
    assert "the checkpoint of step 12 did not arrive" in told[0]["message"] and "--give-up" in told[0]["message"]
    assert run.c.alive and all(node.alive for node in nodes.values()) and not run.events("done")
    resource.prlimit(run.c.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    run.wait(lambda: not run.c.alive and not any(node.alive for node in nodes.values()), "the run is over")
    [done] = run.events("done")
    assert (run.c.status, done["steps"]) == (0, 12) and done["checkpoint"].endswith("step-00000012")
    assert run.events("checkpoint", step=12)
