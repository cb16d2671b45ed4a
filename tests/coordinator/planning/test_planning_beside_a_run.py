"""While a plan is worked out the coordinator answers everybody; what happens meanwhile counts afterwards, in order."""

import asyncio
import sys

from farflung.coordinator.planning import searches
from farflung.proto import control_pb2 as pb

SLOW = """
import sys, time
from pathlib import Path
from farflung.coordinator.planning.search_process import answer
for line in sys.stdin:
    Path(sys.argv[1], "searching").touch()
    while not Path(sys.argv[1], "go on").exists():
        time.sleep(0.05)
    print(answer(line), flush=True)
"""


async def test_the_run_answers_while_it_plans(cluster, monkeypatch, tmp_path):
    monkeypatch.setattr(searches, "COMMAND", (sys.executable, "-c", SLOW, str(tmp_path)))
    coordinator = cluster.coordinator(cluster.job(("steps = 12", "steps = 6000")), planner=None)
    link = await coordinator.link

    def of(kind, **keys):
        return [one for one in coordinator.events if one["event"] == kind and one.items() >= keys.items()]

    nodes = {name: await cluster.node(link, name) for name in "abcd"}

    async def searching():
        while not (tmp_path / "searching").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    await asyncio.wait_for(searching(), 60)
    asked = pb.StatusRequest(run=link.run, ticket=link.ticket)
    reply = await nodes["a"].stub.Status(asked, timeout=60)
    assert not reply.refused and '"phase": "flushing"' in reply.status
    late = await cluster.node(link, "e")  # joins meanwhile, and has a session at once
    refused = await cluster.fake(link, "e").join()
    assert "a node named e is in the run already" in refused.refused
    await nodes["d"].die()  # nobody has decided yet that it has a place
    await asyncio.sleep(0.3)
    said = {one.WhichOneof("kind") for one in late.orders[1:]}
    assert not of("view") and said <= {"clock"}, "nobody has a place yet"
    (tmp_path / "go on").touch()
    view = await coordinator.event("view")
    if "d" in str(view["pipelines"]):  # what was asked first is decided first
        view = await coordinator.event("view", view=view["view"] + 1)
    await coordinator.event("step", step=3)
    assert "d" not in str(of("view")[-1]["pipelines"])
    assert of("joined", node="e")
