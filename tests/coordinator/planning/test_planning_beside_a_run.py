"""While a plan is worked out the coordinator answers everybody; what happens meanwhile counts afterwards, in order."""

import asyncio
import threading

from farflung.coordinator.planning import planner as planning
from farflung.proto import control_pb2 as pb


async def test_the_run_answers_while_it_plans(cluster, monkeypatch):
    go_on, searching = threading.Event(), threading.Event()
    search = planning.plan

    def slow(*question, **settings):
        searching.set()
        assert go_on.wait(60)
        return search(*question, **settings)

    monkeypatch.setattr(planning, "plan", slow)
    coordinator = cluster.coordinator(cluster.job(("steps = 12", "steps = 6000")), planner=None)
    link = await coordinator.link

    def of(kind, **keys):
        return [one for one in coordinator.events if one["event"] == kind and one.items() >= keys.items()]

    nodes = {name: await cluster.node(link, name) for name in "abcd"}
    assert await asyncio.to_thread(searching.wait, 60)
    asked = pb.StatusRequest(run=link.run, ticket=link.ticket)
    reply = await nodes["a"].stub.Status(asked, timeout=10)
    assert not reply.refused and '"phase": "flushing"' in reply.status
    late = await cluster.node(link, "e")  # joins meanwhile, and has a session at once
    refused = await cluster.fake(link, "e").join()
    assert "a node named e is in the run already" in refused.refused
    await nodes["d"].die()  # nobody has decided yet that it has a place
    await asyncio.sleep(0.3)
    said = {one.WhichOneof("kind") for one in late.orders[1:]}
    assert not of("view") and said <= {"clock"}, "nobody has a place yet"
    go_on.set()
    view = await coordinator.event("view")
    if "d" in str(view["pipelines"]):  # what was asked first is decided first
        view = await coordinator.event("view", view=view["view"] + 1)
    await coordinator.event("step", step=3)
    assert "d" not in str(of("view")[-1]["pipelines"])
    assert of("joined", node="e")
