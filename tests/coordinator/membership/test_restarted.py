"""Nodes that restart, come back in the middle of a view change, or come back as the run ends."""

import asyncio
import contextlib

from membership_script import Script, holding, rules

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.state import FLUSHING, WAITING, State
from farflung.coordinator.store.store import Store
from farflung.job.data.sampling import Position


async def test_a_restarted_node_is_no_node_that_has_left(cluster, eventually):
    """The coordinator that starts again knows its session, and takes it back."""
    coordinator = cluster.coordinator(cluster.job(("steps = 12", "steps = 60000")))
    link = await coordinator.link
    nodes = {name: await cluster.node(link, name) for name in "abcd"}
    await coordinator.event("step", step=2)
    nodes["d"].fall_silent()
    again = await cluster.node(link, "d", key=nodes["d"].key)
    await coordinator.event("view", view=nodes["a"].view.number + 1)
    await eventually(lambda: again.view is not None)
    with contextlib.closing(Store(coordinator.state)) as store:
        row = store.nodes.named("d")
    assert (row.session, row.left_at) == (again.session, None)


def flushed_before_the_restart():
    view = Script().started().state.view
    script = Script()
    eligible = frozenset((member.name, member.session) for member in view.members)
    script.state = State(rules(), number=1, view=view, eligible=eligible, restored=True)
    return script


def test_nodes_that_had_flushed_are_those_of_the_view():
    """They have left the view that they name no more: the run goes on with those who come back, after a while."""
    script = flushed_before_the_restart()
    script(s.Joined("a", "a1", "a:1"), s.Hello("a", "a1", 0), s.Joined("b", "b1", "b:1"), s.Hello("b", "b1", 0)).wait(3)
    assert script.state.phase == WAITING and script.state.begun
    script.wait(script.state.rules.return_s)
    script(s.Measured("a", "a1"))
    assert script.state.phase == FLUSHING and script.state.change.awaited == {"a", "b"}
    script(*(holding(script, name, 7) for name in "ab"))
    assert script.get(s.SendView)[0].view.position == Position(7, 56)


def test_new_sessions_begin_the_run_again():
    script = flushed_before_the_restart()
    script(s.Joined("a", "a9", "a:1"), s.Hello("a", "a9", 0)).wait(30)
    assert script.state.phase == WAITING and not script.state.begun
    assert script.state.why.startswith("waiting for 3 more nodes")


async def test_a_node_that_comes_back_as_the_run_ends_hears_so(cluster, eventually):
    """Its stream is broken just then: it would try for ever, on a machine that is paid for."""
    coordinator = cluster.coordinator(cluster.job(("steps = 12", "steps = 40")))
    link = await coordinator.link
    for name in "abcd":
        await cluster.node(link, name)
    spare = await cluster.node(link, "e")
    await coordinator.event("step", step=35)
    for task in spare.tasks:
        task.cancel()
    spare.call.cancel()
    await coordinator.event("done")
    await spare.attend()
    await eventually(lambda: spare.stopped is not None)
    assert not spare.stopped.failed and "the run is done" in spare.stopped.why
    assert await asyncio.wait_for(coordinator.task, 30) == 0
