"""Descriptors and memory stay what they were, however long a run goes on and whatever breaks in it."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_sixteen_nodes_and_two_hundred_rounds(farm):
    """Under ``ulimit -n 256``: as many descriptors at the end as after 40 rounds, and hardly more memory."""
    names = [f"n{number}" for number in range(16)]
    run = farm(pace=0.001, parallel={"pipelines": 16}, train={"batch": 32}, checkpoint={"every": 0})
    run.coordinator()
    nodes = {name: run.node(name, FARM_FILES="256") for name in names}
    run.wait(lambda: run.step() >= 40, "40 rounds", 1200)
    before = {name: node.held() for name, node in nodes.items()}
    run.wait(lambda: run.step() >= 240, "200 more", 2400)
    assert all(node.alive for node in nodes.values())
    for name, node in nodes.items():
        files, memory = node.held()
        assert files <= before[name][0] + 2 and files < 512, name
        assert memory < 1.05 * before[name][1], (name, memory, before[name][1])


def test_two_hundred_broken_connections(farm):
    """Rounds that are broken off, one after the other, leave nothing behind."""
    run = farm(pace=0.001, parallel={"pipelines": 2}, checkpoint={"every": 0})
    run.coordinator()
    nodes = run.nodes("ab", through=True)
    run.trains("a", "b")
    before = {}
    for number in range(200):
        run.cables["a"].cut()
        last = run.step()
        run.wait(lambda last=last: run.step() > last, "a step after the cut")
        if number == 40:
            before = {name: node.held() for name, node in nodes.items()}
    for name, node in nodes.items():
        files, memory = node.held()
        assert files <= before[name][0] + 8, (name, files, before[name][0])
        assert memory < 1.05 * before[name][1], (name, memory, before[name][1])
