"""A person's commands over gRPC, to a coordinator with fake nodes: who may give them, what they do, what stays."""

import asyncio
import contextlib
import json
from dataclasses import replace

import pytest

from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.rules import Rules
from farflung.coordinator.membership.state import State
from farflung.coordinator.observe.status import read_status
from farflung.coordinator.run.people.commands import Command, CommandHandler, held_in, standing
from farflung.coordinator.store.engines.database import NoRoom
from farflung.coordinator.store.rows import NodeRow
from farflung.coordinator.store.store import Store
from farflung.coordinator.trust.links import issue, operating, revoke_ticket
from farflung.coordinator.trust.tickets import make_ticket
from farflung.job.changes import with_value
from farflung.job.files import load_job
from farflung.job.schema import Job
from farflung.proto import control_pb2 as pb
from farflung.proto.errors import JobError

LONG = ("steps = 12", "steps = 60000")


async def ask(node, link, command, target="", argument="", why=""):
    request = pb.CommandRequest(
        run=link.run, ticket=link.ticket, command=command, node=target, argument=argument, by="alice@lab", why=why
    )
    return await node.stub.Command(request, timeout=60)


@pytest.fixture
async def run(cluster):
    """(coordinator, nodes by name, a link that commands) of a run of four that trains."""
    coordinator = cluster.coordinator(cluster.job(LONG, ("every = 4\nkeep", "every = 90000\nkeep")))
    link = await coordinator.link
    nodes = {name: await cluster.node(link, name) for name in ("a", "b", "c", "d")}
    await coordinator.event("step", step=2)
    return coordinator, nodes, issue(coordinator.state, operator=True)


async def test_who_may_command(run, cluster):
    coordinator, nodes, operator = run
    link = await coordinator.link
    refused = (await ask(nodes["a"], link, "evict", "b")).refused
    assert refused.startswith("this link lets nodes join, and commands nobody\n") and "--operator" in refused
    stranger = cluster.fake(operator, "x")
    assert "admits no node" in (await stranger.join()).refused
    assert "there is no command 'dance'" in (await ask(nodes["a"], operator, "dance")).refused
    assert "there is no node z" in (await ask(nodes["a"], operator, "drain", "z")).refused
    with operating(coordinator.state) as beside:
        assert beside.host == "127.0.0.1"
        assert "not paused" in (await ask(nodes["a"], beside, "resume")).refused
    assert "was revoked" in (await ask(nodes["a"], beside, "resume")).refused
    once = issue(coordinator.state, operator=True, uses=1)
    for sentence in ("not paused", "is used up"):
        assert sentence in (await ask(nodes["a"], once, "resume")).refused
    revoke_ticket(coordinator.state, operator.ticket[:8])
    assert "was revoked" in (await ask(nodes["a"], operator, "pause")).refused
    old = issue(coordinator.state, "1s", operator=True)
    await asyncio.sleep(1.1)
    assert "expired" in (await ask(nodes["a"], old, "pause")).refused
    assert len([event for event in coordinator.events if event["event"] == "view"]) == 1


def trains(coordinator, name, since):
    """Whether a view has a place for the node, from this one on: it may follow its like as a spare before."""
    views = [event for event in coordinator.events if event["event"] == "view" and event["view"] >= since]
    return any(name in names for view in views for names in view["pipelines"])


async def test_drain_and_let_back_in(run, cluster, eventually):
    coordinator, nodes, operator = run
    answer = await ask(nodes["a"], operator, "drain", "b", why="a new disk")
    assert answer.answer.startswith("b is drained by alice@lab: a new disk; it leaves when it has handed over")
    second = await coordinator.event("view", view=2)
    assert "b is drained by alice@lab: a new disk" in second["why"] and "b" in second["spares"]
    await eventually(lambda: nodes["b"].stopped is not None)
    assert nodes["b"].stopped.why == "b is drained by alice@lab: a new disk" and not nodes["b"].stopped.failed
    await coordinator.event("left", node="b")
    again = cluster.fake(operator.__class__(**{**vars(operator), "ticket": (await coordinator.link).ticket}), "b")
    again.key = nodes["b"].key
    assert (await again.join()).refused.startswith("b is drained by alice@lab: a new disk\n")
    status = read_status(coordinator.state)
    assert {node["node"]: node["held"] for node in status["nodes"]}["b"] == "drained by alice@lab: a new disk"
    assert (await ask(nodes["a"], operator, "resume", "b")).answer == "b may train again, resumed by alice@lab"
    await cluster.node(await coordinator.link, "b", key=nodes["b"].key)
    await eventually(lambda: trains(coordinator, "b", 3))


async def test_evict(run, cluster, eventually):
    coordinator, nodes, operator = run
    assert (await ask(nodes["a"], operator, "evict", "c", why="it lies")).answer.startswith("c is out;")
    await eventually(lambda: nodes["c"].stopped is not None)
    assert nodes["c"].stopped.refused and nodes["c"].stopped.why == "c was evicted by alice@lab: it lies"
    assert "c left: evicted by alice@lab: it lies" in (await coordinator.event("view", view=2))["why"]
    for name, key in (("c", None), ("new", nodes["c"].key), ("c", nodes["c"].key)):
        other = cluster.fake(await coordinator.link, name, key=key)
        assert "c was evicted by alice@lab: it lies" in (await other.join()).refused
    told = [order.revoked for order in nodes["a"].orders if order.HasField("revoked")]
    assert [list(one.nodes) for one in told] == [["c"]]
    assert "d is not evicted" in (await ask(nodes["a"], operator, "readmit", "d")).refused
    await ask(nodes["a"], operator, "evict", "d")
    assert (await ask(nodes["a"], operator, "readmit", "d", why="a mistake")).answer.startswith("d may join again")
    back = await cluster.node(await coordinator.link, "d", key=nodes["d"].key)
    await eventually(lambda: [list(one.revoked.nodes) for one in back.orders if one.HasField("revoked")] == [["c"]])
    await back.die()
    await coordinator.end()
    for node in nodes.values():
        await node.close()
    again = cluster.coordinator()
    other = cluster.fake(await again.link, "c", key=nodes["c"].key)
    assert "evicted" in (await other.join()).refused, "also by the next coordinator"


async def test_a_name_whose_key_is_lost_is_freed(run, cluster, eventually):
    coordinator, nodes, operator = run
    link = await coordinator.link
    for name, sentence in (("d", "d is in the run"), ("z", "there is no node z"), ("", "forget which node?")):
        assert sentence in (await ask(nodes["a"], operator, "forget", name)).refused
    assert "commands nobody" in (await ask(nodes["a"], link, "forget", "d")).refused
    await nodes["d"].die()
    await coordinator.event("left", node="d")
    stranger = cluster.fake(link, "d")
    assert "belongs to the node that had it first" in (await stranger.join()).refused
    await ask(nodes["a"], operator, "drain", "d")
    assert "d is drained" in (await ask(nodes["a"], operator, "forget", "d")).refused
    await ask(nodes["a"], operator, "resume", "d")
    await ask(nodes["a"], operator, "evict", "d")
    assert "d was evicted" in (await ask(nodes["a"], operator, "forget", "d")).refused
    await ask(nodes["a"], operator, "readmit", "d")
    answer = (await ask(nodes["a"], operator, "forget", "d", why="its disk burnt")).answer
    assert answer.startswith("the name d is free, forgotten by alice@lab: its disk burnt; who joins")
    assert (await coordinator.event("notice", message=answer))["node"] == "d"
    assert "belongs to no key" in (await ask(nodes["a"], operator, "forget", "d")).refused
    new = await cluster.node(link, "d")
    assert new.key != nodes["d"].key
    late = cluster.fake(link, "d", key=nodes["d"].key)
    assert "d is in the run already" in (await late.join()).refused


async def test_pause_and_resume(run, cluster, eventually):
    coordinator, nodes, operator = run
    answer = (await ask(nodes["a"], operator, "pause", why="the power is needed")).answer
    assert answer.startswith("the run is paused by alice@lab: the power is needed;")
    await eventually(lambda: read_status(coordinator.state)["phase"] == "waiting")
    status = read_status(coordinator.state)
    assert status["why"] == status["paused"] == "paused by alice@lab: the power is needed"
    assert "already" in (await ask(nodes["a"], operator, "pause")).refused
    steps = {name: node.step for name, node in nodes.items()}
    await asyncio.sleep(1.0)
    assert steps == {name: node.step for name, node in nodes.items()}
    assert (await ask(nodes["a"], operator, "resume")).answer == "the run is resumed by alice@lab"
    second = await coordinator.event("view", number=2)
    assert second["step"] == max(steps.values())
    await coordinator.event("step", step=second["step"] + 3)
    assert read_status(coordinator.state)["paused"] is None

    await ask(nodes["a"], operator, "pause", "d")
    third = await coordinator.event("view", number=3)
    assert third["spares"] == ["c", "d"], coordinator.events[-40:]
    assert nodes["d"].stopped is None
    assert (await ask(nodes["a"], operator, "resume", "d")).answer == "d may train again, resumed by alice@lab"
    await eventually(lambda: trains(coordinator, "d", 4))


async def test_set(run, cluster):
    coordinator, nodes, operator = run
    answer = (await ask(nodes["a"], operator, "set", argument="train.learning_rate=0.5", why="too slow")).answer
    assert answer == "train.learning_rate 0.001 -> 0.5, set by alice@lab: too slow; from the next view on"
    second = await coordinator.event("view", view=2)
    assert second["why"].startswith("train.learning_rate 0.001 -> 0.5, set by alice@lab: too slow")
    await coordinator.event("step", step=second["step"] + 1)
    assert {node.job.train.learning_rate for node in nodes.values()} == {0.5}
    refused = (await ask(nodes["a"], operator, "set", argument="train.batch=16")).refused
    assert refused.startswith("train.batch cannot be changed while the run goes on")
    assert "what may be changed" in refused and "train.warmup_steps" in refused
    assert "already" in (await ask(nodes["a"], operator, "set", argument="run.steps=1")).refused
    assert (await ask(nodes["a"], operator, "set", argument="learning_rate=0.5")).answer.endswith("is 0.5 already")
    await ask(nodes["a"], operator, "set", argument="keep=1")
    assert await coordinator.end() == 130
    for node in nodes.values():
        await node.close()
    job = load_job(cluster.folder / "job.toml")
    store = Store(coordinator.state)
    assert standing(job, store).train.learning_rate == 0.5 and standing(job, store).checkpoint.keep == 1
    away = ("keep = 2", 'keep = 2\nto = "s3://bucket/run"\noptions = {endpoint_url = "http://here"}')
    kept = standing(load_job(cluster.job(LONG, away)), store)
    assert kept.train.learning_rate == 0.5 and kept.checkpoint.options == {"endpoint_url": "http://here"}
    changed = load_job(cluster.job(LONG, ("eval_every = 4", "eval_every = 4\nlearning_rate = 0.25")))
    assert standing(changed, store).train.learning_rate == 0.25, "what was changed in the file since is the file's"
    assert json.loads(store.get("set")).keys() == {"checkpoint.keep"}
    store.close()


def test_values():
    job = Job.model_validate({"run": {"steps": 9}, "model": {"build": "m:f"}, "data": {"build": "m:g"}})
    assert with_value(job, "updates.codec=int8")[0].updates.codec == "int8"
    assert with_value(job, 'decay = "none"')[0].train.decay == "none"
    assert with_value(job, "epochs=2")[0].run.model_dump() == {"name": "", "seed": 1, "epochs": 2, "steps": None}
    for text, words in (
        ("updates.codec", "is not KEY=VALUE"),
        ("every=2x", "checkpoint.every"),
        ("train.learning_rat=1", "did you mean train.learning_rate"),
        ("train.learning_rate=-1", "a number above 0"),
        ("model.layers=3", "cannot be changed"),
        ("eval.command=rm", "cannot be changed"),  # an operator far away does not choose what this machine runs
        ("train.decay=lineal", "linear"),
    ):
        with pytest.raises(JobError) as caught:
            with_value(job, text)
        assert words in str(caught.value)


def test_what_is_wanted_while_the_disk_is_full_is_kept(tmp_path, monkeypatch):
    with contextlib.closing(Store(tmp_path, create=True)) as store:
        for name in ("a", "b"):
            store.nodes.put(NodeRow(name, "s", "", "", "127.0.0.1:1", "{}", joined=1.0))
        state = State(Rules("gradient", 8, 2, 1, 100, 4))

        def feed(event):
            nonlocal state
            state = replace(state, held={**state.held, event.name: event})

        handler = CommandHandler(store, feed, lambda *_: None, lambda: None, None)
        machine = Membership(lambda *_: pytest.fail("?"))

        def full(statements):
            raise NoRoom("cannot write it: the disk is full", "make room")

        with monkeypatch.context() as patch:
            patch.setattr(store.database, "write", full)
            for name in ("a", "b"):
                handler.take(Command("drain", name), machine, state, None, None, 0)
            assert handler.refusal("a", "", state) == "a is drained"
            with pytest.raises(NoRoom):
                make_ticket(store, 1.0)  # a link of it would be one that nobody knows
        assert store.catch_up() == ""
        assert set(held_in(store)) == {"a", "b"}
