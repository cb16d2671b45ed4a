"""Traces of several nodes: read with suspicion, put on one clock, asked for and collected."""

import asyncio
import hashlib
import json
import math
import random
import zlib

import pytest

from farflung.coordinator.checkpoints.refused import ShardRefused
from farflung.coordinator.observe.chrome_trace import Recorded, merged
from farflung.coordinator.run.people.profiling import Clock, Profiling, first_step, received
from farflung.coordinator.trust.links import issue
from farflung.proto import control_pb2 as pb
from farflung.proto.messages.trace import MOST_BYTES, MOST_SPANS, BadTrace, NodeTrace, Span, pack, unpack


def test_a_trace_comes_back_as_it_was():
    spans = (Span("1 training", "forward", 12.5, 0.25, "0"), Span("2 operations", "aten::mm", 12.6, 1e-6))
    assert unpack(pack([4, 5], spans, "the rest is left out")) == NodeTrace((4, 5), spans, "the rest is left out")


def packed(found):
    return zlib.compress(json.dumps(found).encode())


SPAN = ["1 training", "forward", 1.0, 0.5, ""]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cut off"),
        (b"\x80\x04K\x01.", "not compressed JSON"),
        (zlib.compress(b"[" * 100_000), "not compressed JSON"),
        (zlib.compress(b" " * (30 << 20)), "more than"),
        (bytes(MOST_BYTES + 1), "are allowed"),
        (packed({"steps": []}), "version 1"),
        (packed([1, [-1], [], ""]), "steps"),
        (packed([1, [1] * 101, [], ""]), "steps"),
        (packed([1, [1], [SPAN] * (MOST_SPANS + 1), ""]), f"more than {MOST_SPANS}"),
        (packed([1, [1], [[f"row {n}", *SPAN[1:]] for n in range(50)], ""]), "rows"),
        (packed([1, [1], [["1", "x", math.nan, 0.5, ""]], ""]), "no time"),
        (packed([1, [1], [["1", "x", True, 0.5, ""]], ""]), "no time"),
        (packed([1, [1], [["1", "x", 1.0, -0.5, ""]], ""]), "no time"),
        (packed([1, [1], [["1", "x" * 1000, 1.0, 0.5, ""]], ""]), "a name"),
        (packed([1, [1], [["1", {"x": 1}, 1.0, 0.5, ""]], ""]), "a name"),
    ],
)
def test_what_is_no_trace_is_refused(data, why):
    with pytest.raises(BadTrace, match=why):
        unpack(data)


def test_a_name_commands_no_terminal():
    [span] = unpack(packed([1, [1], [["1", "\x1b[2Jx", 1.0, 0.5, ""]], ""])).spans
    assert span.name == " [2Jx"


def test_the_shortest_round_trip_tells_the_clock():
    """A node that is 100 s ahead: its answers are late on the way back, and one is not."""
    clock = Clock().seen(1.0, 1.4, 101.1).seen(2.0, 2.02, 102.01).seen(3.0, 3.3, 103.05)
    assert clock.offset == pytest.approx(100.0) and clock.error == pytest.approx(0.01)
    late = Clock().seen(1.0, 1.4, 101.1)
    assert abs(late.offset - 100.0) <= late.error == pytest.approx(0.2)


def test_two_nodes_on_one_clock():
    """The same moment is 1000 s on one node's clock and 50 s on the other's."""

    def one(at):
        return NodeTrace(
            (7,), (Span("1 training", "step 7", at, 0.1), Span("2 operations", "aten::mm", at + 0.02, 0.01))
        )

    nodes = {"b": Recorded(one(50.0), 40.0, 2e-4), "a": Recorded(one(1000.5), 990.0, 1e-3)}
    made = merged("r1", nodes, {"c": "it left meanwhile: killed"})
    named = {event["pid"]: event["args"]["name"] for event in made["traceEvents"] if event["name"] == "process_name"}
    steps = {named[event["pid"]]: event for event in made["traceEvents"] if event["name"] == "step 7"}
    assert steps["b"]["ts"] == 0.0 and steps["a"]["ts"] == pytest.approx(0.5e6) and steps["a"]["dur"] == 0.1e6
    assert {event["tid"] for event in made["traceEvents"] if event["name"] == "aten::mm"} == {2}
    about = made["otherData"]
    assert about["nodes"]["a"] == {"steps": [7], "clock_error_ms": 1.0} and about["missing"]["c"].endswith("killed")
    assert "within 1 ms" in about["clocks"]
    json.dumps(made, allow_nan=False)


def test_a_trace_keeps_the_rules_of_its_format():
    """Every slice is of a named process and row, and lies wholly inside whatever slice it began in.

    A viewer drops one that ends after the slice around it, be it by a rounding.
    """
    chance = random.Random(1)

    def nest(start, seconds, depth):
        yield Span("2 operations", f"depth {depth}", start, seconds)
        if depth < 6:
            cut = start + seconds * chance.random()
            yield from nest(start, cut - start, depth + 1)
            yield from nest(cut, start + seconds - cut, depth + 1)

    nodes = {}
    for name in ("a", "b"):
        spans = [span for step in range(20) for span in nest(1000.0 + step * 0.013, 0.013 * chance.random(), 0)]
        nodes[name] = Recorded(unpack(pack([1], spans)), 990.0 + chance.random(), 1e-4)
    events = merged("r1", nodes, {})["traceEvents"]
    processes = {event["pid"] for event in events if event["name"] == "process_name"}
    rows = {(event["pid"], event["tid"]): [] for event in events if event["name"] == "thread_name"}
    slices = sorted((event for event in events if event["ph"] == "X"), key=lambda one: (one["ts"], -one["dur"]))
    assert len(slices) == 2 * 20 * 127 and {event["ph"] for event in events} == {"X", "M"}
    for event in slices:
        assert event["pid"] in processes and event["ts"] >= 0 and event["dur"] >= 0
        around = rows[event["pid"], event["tid"]]
        start, end = round(event["ts"] * 10), round((event["ts"] + event["dur"]) * 10)
        while around and around[-1] <= start:
            around.pop()
        assert not around or end <= around[-1]
        around.append(end)


def test_the_first_step_is_far_enough_ahead():
    assert first_step(10, 20.0) == 13 and first_step(10, 0.1) == 32
    assert first_step(10, 0.0) == 1012


async def test_who_leaves_is_missing_and_the_others_come():
    told = []
    taking = Profiling({"a": "s1", "b": "s2", "c": "s3"}, 2, 10, 0.5, lambda name, order: told.append((name, order)))
    parts = taking.parts()
    assert "a, b, c: 2 steps from step 16 on" in (await anext(parts)).told
    waiting = asyncio.ensure_future(anext(parts))
    await asyncio.sleep(0)
    assert [(name, order.trace.first) for name, order in told if order.HasField("trace")] == [
        ("a", 16),
        ("b", 16),
        ("c", 16),
    ]
    for name, order in told:
        if order.HasField("clock") and name != "c":
            taking.answered(name, pb.ClockAnswer(number=order.clock.number, monotonic=5.0))
    taking.answered("c", pb.ClockAnswer(number=999, monotonic=5.0))  # it was not asked that
    taking.gone("b", "s0", "an older life")
    assert taking.wants("b", f"trace/{taking.id}") and not taking.wants("b", "trace/0")
    taking.gone("b", "s2", "killed")
    taking.took("a", b"...")
    taking.took("c", b"...")
    taking.took("a", b"twice")
    found = {part.node: part for part in [await waiting, *[part async for part in parts]]}
    assert found["b"].missing == "it left meanwhile: killed" and "clock" in found["c"].missing
    assert found["a"].trace == b"..." and 0 < found["a"].error < 1


async def stream(*shards):
    for shard in shards:
        yield shard


async def test_a_hostile_upload_is_refused():
    good = pack([1], [Span("1 training", "x", 1.0, 0.5)])
    last = pb.Shard(data=good, last=True, digest=hashlib.sha256(good).digest())
    assert await received(last, stream()) == good
    with pytest.raises(ShardRefused, match="digest"):
        await received(pb.Shard(data=good, last=True), stream())
    with pytest.raises(ShardRefused, match="ended before"):
        await received(pb.Shard(data=good), stream())
    with pytest.raises(ShardRefused, match="where"):
        await received(pb.Shard(data=good), stream(pb.Shard(offset=1, data=good)))
    with pytest.raises(ShardRefused, match=f"more than {MOST_BYTES}"):
        block = bytes(1 << 20)
        await received(pb.Shard(data=block), stream(*(pb.Shard(offset=n << 20, data=block) for n in range(1, 99))))
    with pytest.raises(ShardRefused, match="JSON"):
        await received(pb.Shard(data=b"lies", last=True, digest=hashlib.sha256(b"lies").digest()), stream())


async def test_only_an_operator_gets_one_and_a_liar_is_named(cluster):
    coordinator = cluster.coordinator(
        cluster.job(("steps = 12", "steps = 60000"), ("every = 4\nkeep", "every = 90000\nkeep"))
    )
    link = await coordinator.link
    nodes = {name: await cluster.node(link, name) for name in ("a", "b", "c", "d")}
    await coordinator.event("step", step=2)
    node, operator = nodes["a"], issue(coordinator.state, operator=True)

    async def answers(link, steps=2):
        call = node.stub.Profile(pb.ProfileRequest(run=link.run, ticket=link.ticket, steps=steps), timeout=60)
        async for part in call:
            yield part

    assert "commands nobody" in (await anext(answers(link))).refused
    assert "--steps" in (await anext(answers(operator, 1000))).refused
    call = answers(operator)
    assert (await anext(call)).told
    assert "another profile" in (await anext(answers(operator))).refused
    for one in nodes.values():
        while not (asked := [order.trace for order in one.orders if order.HasField("trace")]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        reply = await one.stub.Store(
            stream(
                pb.Shard(file=f"trace/{asked[0].id}", data=b"lies", last=True, digest=hashlib.sha256(b"lies").digest())
            ),
            metadata=one.metadata,
        )
        assert "not compressed JSON" in reply.refused
    parts = [part async for part in call]
    assert {part.node for part in parts} == set(nodes) and all("refused" in part.missing for part in parts)
    await coordinator.event("warning", node="b")
    reply = await node.stub.Store(stream(pb.Shard(file="trace/1", last=True)), metadata=node.metadata)
    assert "nobody waits" in reply.refused
