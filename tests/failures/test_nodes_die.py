"""Nodes are killed, frozen and cut off in the middle of training; the others go on, and nothing is lost."""

import shutil
from dataclasses import replace

import pytest
from cable import Cable
from farm import Process

from farflung.proto.words.link import parse_link

pytestmark = pytest.mark.timeout(1200)  # what is waited for is a state


def test_a_killed_node_is_missed_at_once_and_comes_back(farm):
    """The curve is that of one undisturbed process, whatever dies and returns, and every sample is counted once."""
    run = farm(parallel={"pipelines": 3})
    run.coordinator()
    nodes = run.nodes("abc")
    run.trains("a", "b", "c")
    nodes["b"].kill()
    run.trains("a", "c")
    [left] = run.events("left")
    assert left["node"] == "b" and "its stream ended and it does not answer" in left["why"]  # seen, not timed out
    run.node("b")
    run.trains("a", "b", "c")
    nodes["a"].kill()  # the committer, and the first in every order
    last = run.trains("b", "c", steps=5)
    assert all("training goes on after step" in view["why"] for view in run.events("view")[1:])
    assert run.events("warning") == []
    steps = {event["step"]: event for event in run.events("step")}
    assert sorted(steps) == list(range(1, max(steps) + 1))
    assert [steps[n]["samples"] for n in range(1, last + 1)] == [12] * last
    plain = run.plain_losses(last)
    partial = [n for n in range(1, last + 1) if steps[n]["loss"] != pytest.approx(plain[n - 1], abs=1e-4)]
    assert len(partial) <= 2, "a victim's report of its last step may die with it, and with that a part of the mean"


def test_everything_dies_and_resumes(farm):
    run = farm(parallel={"pipelines": 2}, updates={"mode": "delta", "codec": "int8", "overlap": 1})
    run.coordinator()
    nodes = run.nodes("ab")
    run.trains("a", "b")
    newest = run.wait(lambda: run.events("checkpoint"), "a checkpoint")[-1]["step"]
    for process in (run.c, *nodes.values()):
        process.kill()
    run.coordinator()
    assert run.c.of("step") == []
    run.nodes("ab")
    run.trains("a", "b")
    [view] = run.c.of("view")[:1]
    assert f"from the checkpoint of step {view['step']}" in view["why"] and view["step"] >= newest
    assert view["step"] % 5 == 0


def test_everything_dies_and_what_was_not_sent_is_contributed_again(farm):
    """A sparse codec; nodes train on while the coordinator is away. Then one comes back without what it had kept."""
    run = farm(parallel={"pipelines": 2}, updates={"mode": "delta", "codec": "topk:ratio=0.05", "overlap": 1})
    run.coordinator()
    nodes = run.nodes("ab")
    run.trains("a", "b")
    run.wait(lambda: len(run.events("checkpoint")) > 1, "checkpoints")
    run.c.kill()
    last = {name: node.of("step")[-1]["step"] for name, node in nodes.items()}
    run.wait(lambda: all(node.of("step")[-1]["step"] > last[name] + 15 for name, node in nodes.items()), "they go on")
    for process in nodes.values():
        process.kill()
    run.coordinator()
    nodes = run.nodes("ab")
    run.trains("a", "b")
    [view] = run.c.of("view")[:1]
    assert f"from the checkpoint of step {view['step']}; with what a and b had learnt beside it" in view["why"]

    run.wait(lambda: run.c.of("checkpoint"), "a checkpoint")
    run.c.kill()
    newest = max(int(path.parent.name[5:]) for path in run.folder.rglob("checkpoints/step-*/manifest.json"))
    beside = f"rests-*-a/step-{newest}-view-*.safetensors"
    run.wait(lambda: list(run.folder.rglob(beside)), "what a had learnt is on its disk")
    for process in nodes.values():
        process.kill()
    for path in run.folder.rglob("rests-*-b/*.safetensors"):
        path.unlink()
    run.coordinator()
    run.nodes("ab")
    run.trains("a", "b")
    [view] = run.c.of("view")[:1]
    assert "with what a had learnt beside it; what b had (" in view["why"] and "is lost" in view["why"]


def test_connections_break_while_both_ends_live(farm):
    run = farm(parallel={"pipelines": 2})
    run.coordinator()
    nodes = run.nodes("ab", through=True)
    for name in ("a", "b", "a"):
        last = run.trains("a", "b")
        run.cables[name].cut()
        run.wait(lambda last=last: run.step() >= last + 5, "training goes on after the cut")
    assert run.events("left") == [] and all(node.alive for node in nodes.values())
    steps = {event["step"]: event for event in run.events("step")}
    assert sorted(steps) == list(range(1, max(steps) + 1)) and {one["samples"] for one in steps.values()} == {12}


def test_joiners_and_their_sources_die(farm):
    """A joiner is killed while it fetches the state; then the source of another: the others, and it, train on."""
    run = farm(parallel={"pipelines": 3})
    run.coordinator("--min-nodes", "3")
    nodes = run.nodes("abc")
    run.trains("a", "b", "c")
    nodes["c"].kill()
    run.trains("a", "b")

    stranger = run.node("x", allow=False)
    run.wait(lambda: not stranger.alive, "a node that does not allow the job's code leaves")
    assert stranger.status != 0 and "does not allow" in stranger.of("error")[0]["message"]
    assert "--allow-code paced" in stranger.of("error")[0]["hint"]

    joiner = run.node("c", through=True)
    run.cables["c"].frozen = True  # what it asks for never comes
    run.wait(lambda: "c" in str(run.view()["pipelines"]), "a view with the joiner is announced")
    joiner.kill()
    run.trains("a", "b")

    run.node("c", through=True)
    run.cables["c"].frozen = True
    run.wait(lambda: "c" in str(run.view()["pipelines"]), "a view with the joiner is announced")
    nodes["a"].kill()
    run.cables["c"].frozen = False
    last = run.trains("b", "c", steps=5)
    steps = {event["step"]: event for event in run.events("step")}
    assert sorted(steps) == list(range(1, max(steps) + 1)) and last == max(steps)
    plain = run.plain_losses(last)
    assert [steps[n]["loss"] for n in range(last - 3, last + 1)] == pytest.approx(plain[last - 4 :], abs=1e-4)


@pytest.mark.slow
def test_a_frozen_node_is_left_behind_and_told_so(farm):
    """Its machine is suspended: no FIN, and the kernel still answers. When it wakes, it hears that it is out, and joins
    again by itself. Another machine with a copy of its folder is told so, and nobody is put out for it."""
    run = farm(parallel={"pipelines": 3})
    run.coordinator()
    nodes = run.nodes("abc")
    run.trains("a", "b", "c")
    nodes["c"].freeze()
    run.trains("a", "b", steps=5)
    [left] = run.events("left")
    assert left["node"] == "c" and "no heartbeat" in left["why"]
    nodes["c"].thaw()
    run.trains("a", "b", "c")
    assert nodes["c"].alive and "this node joins again under its key" in nodes["c"].of("warning")[0]["message"]
    assert len(nodes["c"].of("joined")) == 2

    shutil.copytree(run.folder / "cache-c", run.folder / "copied")
    copied = run.node("c", "--cache", "copied")
    run.wait(lambda: not copied.alive, "the second of a key is told")
    assert copied.status == 3 and "with this same key" in copied.of("error")[0]["message"]
    run.trains("a", "b", "c", steps=4)
    assert len(run.events("left")) == 1 and len(nodes["c"].of("joined")) == 2


@pytest.mark.slow
def test_a_node_whose_line_to_the_coordinator_was_down_joins_again_by_itself(farm):
    """The others reach it all the while. Its session is over when the line is back, and its process goes on."""
    run = farm(parallel={"pipelines": 2})
    run.coordinator()
    link = parse_link(run.link)
    cable = Cable(link.address)
    try:
        run.node("a")
        behind = str(replace(link, port=int(cable.address.rpartition(":")[2])))
        words = ["join", behind, "--name", "b", "--cache", "cache-b", "--device", "cpu", "--allow-code", "paced"]
        node = Process(run, "b", words)
        run.trains("a", "b")
        cable.frozen = True
        run.trains("a", steps=5)
        cable.frozen = False
        run.trains("a", "b")
        assert node.alive and len(node.of("joined")) == 2
        assert "this node joins again under its key" in node.of("warning")[0]["message"]
    finally:
        cable.close()


def test_masked_rounds_go_on_without_who_is_killed_and_wait_where_a_sum_hides_nothing(farm):
    """Data of every node's own, updates masked: four members, then three, then a wait for a third, and the end."""
    updates = {"mode": "delta", "codec": "intsgd", "overlap": 1, "secure": True}
    run = farm(data={"where": "node"}, parallel={"pipelines": 4}, updates=updates)
    run.coordinator()
    nodes = run.nodes("abcd")
    run.trains("a", "b", "c", "d")
    nodes["d"].kill()
    run.trains("a", "b", "c")
    nodes["b"].kill()
    run.wait(lambda: any("updates.secure waits" in e["message"] for e in run.events("notice")), "it waits")
    run.node("e")
    last = run.trains("a", "c", "e") + 10
    Process(run, "set", ["coordinator", "set", "state", f"run.steps={last}"])
    run.wait(lambda: run.events("done"), "the end")
    assert run.events("done")[0]["steps"] == last and run.events("warning") == []
