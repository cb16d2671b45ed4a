"""Reports and files of a member that make no sense: refused, said, and no harm to the run."""

import json
import math

import pytest

from farflung.cli.one_run.status import show
from farflung.cli.screen.output import Output
from farflung.coordinator.observe.status import read_status
from farflung.coordinator.trust.links import issue
from farflung.proto import control_pb2 as pb

LONG = (("steps = 12", "steps = 60000"), ("every = 4\nkeep", "every = 90000\nkeep"))


@pytest.fixture
async def run(cluster):
    """(coordinator, nodes by name) of a run of four that trains."""
    coordinator = cluster.coordinator(cluster.job(*LONG))
    link = await coordinator.link
    nodes = {name: await cluster.node(link, name) for name in ("a", "b", "c", "d")}
    await coordinator.event("step", step=2)
    return coordinator, nodes


async def test_impossible_numbers_of_a_step_are_refused(run):
    coordinator, nodes = run
    number = nodes["a"].view.number
    far = {"view": number, "step": 50000}
    for changes in (
        {**far, "step": 2**62},
        {**far, "seconds": math.inf},
        {**far, "compute_seconds": math.nan},
        {**far, "waiting_seconds": -1.0},
        {**far, "bytes_updates": 2**63},
        {**far, "notes": "x" * 100_000},
        {**far, "sent": [pb.Sent(peer="nobody", bytes=1)]},
        {**far, "sent": [pb.Sent(peer="b", bytes=2**63)]},
    ):
        await nodes["a"].say(step=pb.StepDone(**changes))
    await nodes["b"].say(eval=pb.EvalDone(view=number, step=50000, tokens=2**63))
    for name, said in (("a", "a step"), ("b", "an evaluation")):
        warning = await coordinator.event("warning", node=name)
        assert warning["message"].startswith(f"its report of {said}") and "is refused" in warning["message"]
    seen = max(event["step"] for event in coordinator.events if event["event"] == "step")
    await coordinator.event("step", step=seen + 3)
    await nodes["c"].die()  # a view change afterwards goes on where the run is, and within its usual patience
    assert (await coordinator.event("view", view=number + 1))["step"] < 50000


async def test_losses_that_are_not_finite_leave_gaps(run):
    coordinator, nodes = run
    for node in nodes.values():
        node.loss = math.nan
    warning = await coordinator.event("warning", node="")
    assert "not finite" in warning["message"]
    seen = max(event["step"] for event in coordinator.events if event["event"] == "step")
    assert (await coordinator.event("step", step=seen + 9))["loss"] is None
    json.dumps(coordinator.events, allow_nan=False)


async def test_links_are_of_nodes_of_the_run(run):
    coordinator, nodes = run
    links = [pb.LinkMeasurement(to=f"made-up-{number}", latency_s=0.1, bandwidth_bps=1.0) for number in range(8)]
    await nodes["a"].say(links=pb.Links(links=links))
    await nodes["a"].say(warning=pb.Warning(message="\x1b[2Jafterwards", node="no node\x1b"))
    warning = await coordinator.event("warning")
    assert warning["node"] == "a" and warning["message"] == " [2Jafterwards"
    assert {one["to"] for one in read_status(coordinator.state)["links"]} <= set(nodes)


async def test_a_device_that_cannot_be_is_shown_all_the_same(cluster):
    coordinator = cluster.coordinator(cluster.job(*LONG))
    device = pb.Device(kind="cpu", description="\x1b[2J", tflops=math.inf, upload_bps=math.nan)
    link = await coordinator.link
    assert "is no name for a node" in (await cluster.fake(link, "a\n").join()).refused
    assert not (await cluster.fake(link, "a").join(device=device)).refused
    record = read_status(coordinator.state)
    assert [(one["tflops"], one["device"]) for one in record["nodes"]] == [(None, " [2J")]
    show(Output(), record)


async def test_who_is_not_in_the_view_stores_nothing(cluster):
    coordinator = cluster.coordinator(cluster.job(*LONG))
    node = await cluster.node(await coordinator.link, "a")
    assert "no view has trained yet" in (await node.store(4, "stage-0.safetensors", data=b"x", files=1)).refused
    for name in ("b", "c", "d"):
        await cluster.node(await coordinator.link, name)
    await coordinator.event("step", step=2)
    assert "the run ends with step 60000" in (await node.store(60001, "stage-0.safetensors")).refused
    assert "is in no view" in (await (await cluster.node(await coordinator.link, "e")).store(4, "x", data=b"x")).refused


async def test_a_node_outside_the_plan_moves_nothing(run, cluster, eventually):
    """Its steps, and links without number, are refused; a person may still shorten the run, and the loop stands by."""
    coordinator, nodes = run
    e = await cluster.node(await coordinator.link, "e")
    await e.say(step=pb.StepDone(view=nodes["a"].view.number, step=59_999))
    links = pb.Links(links=[pb.LinkMeasurement(to="a", latency_s=0.1, bandwidth_bps=1.0)] * 240_000)
    await e.say(links=links)
    for words in ("a step", "links"):

        def is_told(words=words):
            said = [one["message"] for one in coordinator.events if one["event"] == "warning" and one["node"] == "e"]
            return any(f"its report of {words} is refused" in one for one in said)

        await eventually(is_told)
    await nodes["a"].say(step=pb.StepDone(view=nodes["a"].view.number, step=59_999))
    operator = issue(coordinator.state, operator=True)
    request = pb.CommandRequest(run=operator.run, ticket=operator.ticket, command="set", argument="run.steps=50000")
    reply = await nodes["b"].stub.Command(request, timeout=60)
    assert "run.steps 60000 -> 50000" in reply.answer, reply.refused


async def test_who_claims_a_thousand_times_the_others_speed_does_not_get_all_the_work(cluster):
    shape = (("stages = 2", "stages = 1"), ("pipelines = 2", "pipelines = 4"))
    batch = (("batch = 8\nmicro", "batch = 32\nmicro"), ("microbatch = 2", "microbatch = 1"))
    job = cluster.job(*LONG, *shape, *batch)
    coordinator = cluster.coordinator(job, planner=None)
    link = await coordinator.link
    for name in "abc":
        await cluster.node(link, name)
    device = pb.Device(kind="cpu", description="fake", tflops=1000.0, memory_bytes=1 << 33, cores=2)
    liar = cluster.fake(link, "d")
    await liar.join(device=device)
    await liar.attend()
    view = await coordinator.event("view")
    shares = dict(zip([row[0] for row in view["pipelines"]], view["microbatches"], strict=True))
    assert sum(shares.values()) == 32 and 8 <= shares["d"] <= 20
