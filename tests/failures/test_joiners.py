"""A joiner fetches a snapshot over a slow link while the others train; its sources are killed and stopped meanwhile."""

import os
import signal

import pytest

pytestmark = pytest.mark.timeout(1200)  # what is waited for is a state

BALLAST = 2_000_000
SIZE = 4 * BALLAST
DELTA = {"mode": "delta", "codec": "cocktail:random=0.1,top=0.2,bits=4", "every": 8, "overlap": 1, "dense_rounds": 0}


@pytest.fixture
def joining(farm):
    """Two train; a third comes back over a slow link, and has some of what they hold."""
    run = farm(ballast=BALLAST, parallel={"pipelines": 3}, updates=DELTA, checkpoint={"every": 0})
    run.coordinator()
    nodes = {**run.nodes("ab", through=True), "c": run.node("c")}
    run.trains("a", "b", "c")
    nodes["c"].kill()
    run.trains("a", "b")
    for name in "ab":
        run.cables[name].rate = 1e6
    nodes["c"] = run.node("c", through=True)
    run.cables["c"].rate = 1e6
    run.wait(lambda: "c" in run.view()["spares"], "the joiner begins as a spare")
    begun = run.cables["c"].forwarded
    run.wait(lambda: run.cables["c"].forwarded > begun + SIZE / 4, "a part of the state has come")
    assert sorted(name for row in run.view()["pipelines"] for name in row) == ["a", "b"]
    return run, nodes


def test_its_source_is_killed_and_it_goes_on(joining):
    run, nodes = joining
    last = run.step()
    run.wait(lambda: run.step() >= last + 3, "the others train while it fetches")
    nodes["a"].kill()
    run.cables.pop("a").close()
    run.trains("b", "c")
    assert [event["node"] for event in run.events("left")] == ["c", "a"]
    assert any("joined and has caught up" in view["why"] for view in run.events("view"))
    steps = [event["step"] for event in run.events("step")]
    assert sorted(set(steps)) == list(range(1, max(steps) + 1))


def test_its_source_stalls_and_others_take_over(joining):
    run, nodes = joining
    os.kill(nodes["a"].pid, signal.SIGSTOP)  # its I/O process lives, and answers pings
    run.wait(lambda: any("a sent nothing for" in e["message"] for e in nodes["c"].of("notice")), "it is left")
    os.kill(nodes["a"].pid, signal.SIGCONT)
    run.trains("a", "b", "c")
    assert len(run.events("left")) == 1


def test_nobody_notices_that_it_dies(joining):
    run, nodes = joining
    view = run.view()["view"]
    nodes["c"].kill()
    run.wait(lambda: len(run.events("left")) == 2, "it is out")
    last = run.step()
    run.wait(lambda: run.step() >= last + 3, "the others train on")
    assert run.view()["view"] == view
