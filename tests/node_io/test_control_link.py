"""The control stream, artifacts and checkpoint shards against a small coordinator that can go away and misbehave."""

import contextlib
import json
import threading
import time

import numpy as np
import pytest
from numbered import numbered
from stub_coordinator import StubCoordinator
from wires import Nodes, kill, receive, wait_for

from farflung.node.wire.events import CoordinatorBack, CoordinatorLost, OrderEvent, PeerLost
from farflung.proto import control_pb2 as control
from farflung.proto.data_pb2 import Kind
from farflung.proto.errors import FarflungError, RunFailed
from farflung.proto.messages import delta


@pytest.fixture
def coordinator():
    with contextlib.closing(StubCoordinator()) as stub:
        yield stub


def start(nodes, coordinator, name="a", **settings):
    settings = {"coordinator": coordinator.address, "secret": "s3cret", "heartbeat": 0.2, "patience": 60.0, **settings}
    return nodes.start(name, **settings)


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
@pytest.mark.parametrize("secure", [False, True], ids=["insecure", "tls"])
def test_hello_heartbeats_orders_reports_goodbye(process, secure, authority, certificates):
    trust = (authority.certificate, authority.key) if secure else None
    with (
        contextlib.closing(StubCoordinator(trust)) as coordinator,
        contextlib.closing(Nodes(process, certificates if secure else None)) as nodes,
    ):
        wire = start(nodes, coordinator)
        wire.doing = "loading data"
        coordinator.wait("heartbeat", 2)
        assert coordinator.kinds()[0] == "hello" and coordinator.reports[0].hello.session == "a-1"
        assert coordinator.sessions == [("a", "a-1", "s3cret")]
        count = len(coordinator.wait("heartbeat", 2))
        beats = coordinator.wait("heartbeat", count + 4)[count:]  # meanwhile the trainer did nothing
        assert beats[-1].doing == "loading data" and beats[-1].trainer_age > beats[0].trainer_age
        coordinator.order(notice=control.Notice(message="spare for now"))
        assert wait_for(wire, OrderEvent).order.notice.message == "spare for now"
        wire.report(control.Report(prepared=control.Prepared(view=3)))
        assert coordinator.wait("prepared")[0].view == 3
        assert wire.close("interrupted"), "the goodbye was heard"
        assert coordinator.wait("goodbye")[0].why == "interrupted"


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_who_leaves_before_its_stream_is_open_says_so_too(coordinator, process):
    """It refuses the run's terms, say: the coordinator would wait for it, for it has joined."""
    with contextlib.closing(Nodes(process, None)) as nodes:
        wire = start(nodes, coordinator)
        assert wire.close("this is not what I was promised"), "the goodbye was heard"
    assert coordinator.wait("goodbye")[0].why == "this is not what I was promised"
    assert coordinator.kinds()[0] == "hello"


def test_who_leaves_where_nobody_is_does_not_wait_for_long(thread_nodes):
    with contextlib.closing(StubCoordinator()) as coordinator:
        pass
    wire = start(thread_nodes, coordinator)
    assert not wire.close("nobody is there")


def test_the_coordinator_goes_away_and_comes_back(coordinator, thread_nodes):
    wire = start(thread_nodes, coordinator)
    coordinator.wait("hello")
    wire.report(control.Report(step=control.StepDone(view=7, step=3)))
    coordinator.wait("step")
    port = coordinator.port
    coordinator.close()
    wait_for(wire, CoordinatorLost)
    for step in range(5):
        wire.report(control.Report(eval=control.EvalDone(step=step)))
    thread_nodes.enter(7)
    time.sleep(0.5)
    assert not [event for event in wire.poll() if isinstance(event, CoordinatorLost)]  # said once
    with contextlib.closing(StubCoordinator(term=2, port=port)) as restarted:
        assert wait_for(wire, CoordinatorBack).term == 2
        assert restarted.wait("hello")[0].view == 7
        assert [done.step for done in restarted.wait("eval", 5)] == list(range(5))
        assert [done.step for done in restarted.wait("step")] == [3]  # it may have died before it was stored
        restarted.order(term=1, notice=control.Notice(message="from the past"))
        restarted.order(notice=control.Notice(message="now"))
        assert wait_for(wire, OrderEvent).order.notice.message == "now"
        assert wire.statistics()["order of an older term"] == 1
        wire.close("")


def test_a_coordinator_that_sends_no_first_order_is_back_all_the_same(coordinator, thread_nodes):
    wire = start(thread_nodes, coordinator)
    coordinator.wait("hello")
    port = coordinator.port
    coordinator.close()
    wait_for(wire, CoordinatorLost)
    with contextlib.closing(StubCoordinator(term=2, port=port)) as restarted:
        restarted.greets = False
        wait_for(wire, CoordinatorBack)
        wire.close("")


def test_a_coordinator_that_is_away_from_the_start(thread_nodes):
    wire = thread_nodes.start("a", coordinator="127.0.0.1:9")
    assert "refused" in wait_for(wire, CoordinatorLost).why


def test_a_fenced_session_is_told_to_stop(coordinator, thread_nodes):
    coordinator.refuse_attend = "node a has come back in another session"
    wire = start(thread_nodes, coordinator)
    stop = wait_for(wire, OrderEvent).order.stop
    assert stop.again and not stop.refused and stop.why == coordinator.refuse_attend
    tries = len(coordinator.sessions)  # gRPC may lose the first answers to a write that fails: it asks again
    time.sleep(1.0)
    assert len(coordinator.sessions) == tries


def test_edited_views_arrive_whole_and_what_cannot_be_made_whole_is_asked_for_anew(coordinator, thread_nodes):
    wire = start(thread_nodes, coordinator)
    hello = coordinator.wait("hello")[0]
    assert hello.HasField("holds") and hello.holds == 0
    views = [control.View(number=number, why="a reason that is the same in each " * 4) for number in (1, 2)]
    first, second = (view.SerializeToString() for view in views)
    packed = control.PackedView(number=1, edits=delta.edits(b"", first), digest=delta.digest(first))
    coordinator.order(packed=packed)
    assert wait_for(wire, OrderEvent).order.view == views[0]
    packed = control.PackedView(number=2, base=1, edits=delta.edits(first, second), digest=delta.digest(second))
    coordinator.order(packed=packed)
    assert wait_for(wire, OrderEvent).order.view == views[1]
    coordinator.order(packed=control.PackedView(number=4, base=3, edits=packed.edits))
    assert "edits of view 3, which this node does not have" in wait_for(wire, CoordinatorLost).why
    assert coordinator.wait("hello", 2)[1].holds == 0  # so it gets the whole


def test_a_broken_link_is_evidence(coordinator, processes):
    a = start(processes, coordinator)
    b = processes.start("b")
    processes.enter(1)
    b.send("a", numbered(Kind.STATE), b"1")
    receive(a)
    kill(b)
    assert wait_for(a, PeerLost).peer == "b"
    assert coordinator.wait("evidence")[0].peer == "b"


def test_a_measure_order_is_answered_without_the_trainer(coordinator, thread_nodes):
    start(thread_nodes, coordinator)
    thread_nodes.start("b")
    coordinator.wait("hello")
    coordinator.order(measure=control.Measure(peers=thread_nodes.members()))
    links = coordinator.wait("links")[0].links
    assert [(getattr(link, "from"), link.to) for link in links] == [("a", "b")]
    assert links[0].bandwidth_bps > 1e7


def test_a_step_report_carries_the_bytes_since_the_last(coordinator, thread_nodes):
    a, b = start(thread_nodes, coordinator), thread_nodes.start("b")
    thread_nodes.enter(1)
    for size in (1000, 2000):
        a.send("b", numbered(Kind.ACTIVATION), bytes(size))
        a.send("b", numbered(Kind.CONTRIBUTION), bytes(10 * size))
        receive(b, 2)
        a.report(control.Report(step=control.StepDone(step=size)))
    first, second = coordinator.wait("step", 2)
    assert 1000 < first.bytes_activations < 1100 and 10_000 < first.bytes_updates < 10_100
    assert 2000 < second.bytes_activations < 2100 and 20_000 < second.bytes_updates < 20_100
    assert [(one.peer, 11_000 < one.bytes < 11_200) for one in first.sent] == [("b", True)]
    assert [(one.peer, 22_000 < one.bytes < 22_200) for one in second.sent] == [("b", True)]


# ---- artifacts -----------------------------------------------------------------------------


@pytest.fixture
def tokens(coordinator):
    data = np.random.default_rng(1).bytes(1_000_001)
    coordinator.artifacts["data/tokens"] = data
    return data


def test_fetch_whole_part_and_nothing(coordinator, tokens, nodes):
    wire = start(nodes, coordinator)
    assert wire.describe("data/tokens").size == len(tokens)
    assert wire.fetch("data/tokens") == tokens
    assert wire.fetch("data/tokens", 70_000, 200_000) == tokens[70_000:270_000]
    assert wire.fetch("data/tokens", 1_000_000, 1) == tokens[-1:]
    assert wire.fetch("data/tokens", 5, 0) == b""
    with pytest.raises(FarflungError, match="which has 1000001"):
        wire.fetch("data/tokens", 1_000_000, 2)


def test_damaged_and_cut_pieces_are_asked_for_again_from_there(coordinator, tokens, thread_nodes):
    coordinator.damage["data/tokens", 5] = 2
    coordinator.cut["data/tokens"] = 1
    wire = start(thread_nodes, coordinator)
    assert wire.fetch("data/tokens") == tokens
    offsets = [offset for offset, _ in coordinator.ranges]
    assert offsets[0] == 0 and offsets[-1] == 5 * coordinator.piece_size and len(offsets) == 3


def test_a_source_that_stays_damaged_is_given_up(coordinator, tokens, thread_nodes):
    coordinator.damage["data/tokens", 5] = 1000
    wire = start(thread_nodes, coordinator)
    with pytest.raises(RunFailed, match="piece 5 of data/tokens came with a wrong digest 5 times"):
        wire.fetch("data/tokens")


def test_an_artifact_that_is_not_there(coordinator, thread_nodes):
    wire = start(thread_nodes, coordinator)
    with pytest.raises(FarflungError, match="there is no artifact model/x"):
        wire.fetch("model/x")


def test_a_coordinator_that_stays_away_ends_a_fetch(thread_nodes):
    wire = thread_nodes.start("a", coordinator="127.0.0.1:9", patience=0.5)
    with pytest.raises(RunFailed, match=r"cannot describe model/x: tried for \d+ s, last error: .*refused"):
        wire.fetch("model/x")


def test_fetch_across_a_restart_of_the_coordinator(coordinator, tokens, thread_nodes):
    wire = start(thread_nodes, coordinator, patience=30.0)
    wire.describe("data/tokens")
    port = coordinator.port
    coordinator.close()
    restarted = []

    def later():
        time.sleep(0.7)
        stub = StubCoordinator(term=2, port=port)
        stub.artifacts["data/tokens"] = tokens
        restarted.append(stub)

    thread = threading.Thread(target=later)
    thread.start()
    assert wire.fetch("data/tokens") == tokens
    thread.join()
    wire.close("")
    restarted[0].close()


def test_data_that_are_streamed_wait_for_a_coordinator_however_long_it_is_away(coordinator, tokens, thread_nodes):
    """And what else arrives is handled meanwhile: a view may end."""
    wire = start(thread_nodes, coordinator, patience=0.3)
    wire.describe("data/tokens")
    port = coordinator.port
    coordinator.close()
    looked = []

    def look():
        looked.append(time.monotonic())
        wire.poll(0.1)
        if looked[-1] - looked[0] > 2.0 and len(restarted) == 0:  # several times the patience
            stub = StubCoordinator(term=2, port=port)
            stub.artifacts["data/tokens"] = tokens
            restarted.append(stub)

    restarted = []
    wire.while_waiting = look
    assert wire.fetch_later("data/tokens", 5, 100)() == tokens[5:105]
    wire.close("")
    restarted[0].close()


def test_an_answer_that_nobody_waits_for_any_more_is_dropped(coordinator, tokens, thread_nodes):
    wire = start(thread_nodes, coordinator)
    coordinator.artifacts["data/tokens"] = tokens

    def ends():
        raise KeyError("the view has ended")

    wire.while_waiting = ends
    with pytest.raises(KeyError):
        wire.fetch_later("data/tokens", 0, len(tokens))()
    wire.while_waiting = lambda: wire.poll(0.05)
    assert wire.fetch_later("data/tokens", 0, len(tokens))() == tokens
    while wire._calls.unwanted:  # the two answers may come in any order
        wire.poll(0.05)
    assert not wire._calls.replies
    wire.close("")


def test_store(coordinator, nodes):
    wire = start(nodes, coordinator)
    shards = {f"stage-{index}": np.random.default_rng(index).bytes(size) for index, size in enumerate((0, 3_000_000))}
    for file, data in shards.items():
        wire.store(100, file, data, len(shards), {"round": 7})
    deadline = time.monotonic() + 60
    while len(coordinator.stored) < 2 and time.monotonic() < deadline:
        wire.poll(0.05)
    assert {file: data for (_, file), (data, _, _) in coordinator.stored.items()} == shards
    assert {(files, json.loads(meta)["round"]) for _, files, meta in coordinator.stored.values()} == {(2, 7)}
    wire.poll(0.1)
    assert wire._blocks.flying == {} and wire.statistics()["other"] > 3_000_000


def test_a_description_that_takes_long_is_waited_for(coordinator, thread_nodes):
    """A file of 105 GB is read for minutes: in all that takes longer here than the patience of 1.5 s."""
    coordinator.artifacts["data/tokens"] = bytes(1000)
    coordinator.describing = 8
    wire = start(thread_nodes, coordinator, patience=1.5)
    assert wire.fetch("data/tokens") == bytes(1000) and not coordinator.describing


def test_a_store_goes_on_where_its_stream_broke(coordinator, thread_nodes):
    """A link that breaks after every 1.5 MB: the file arrives, and nothing of it goes twice."""
    coordinator.break_after = 1_500_000
    wire = start(thread_nodes, coordinator, max_upload=200e6)
    data = np.random.default_rng(1).bytes(8_000_000)
    wire.store(100, "stage-0", data, 1, {"view": 3})
    deadline = time.monotonic() + 60
    while not coordinator.stored and time.monotonic() < deadline:
        wire.poll(0.05)
    assert coordinator.stored[100, "stage-0"][0] == data
    assert len(coordinator.began_at) > 3 and coordinator.began_at == sorted(set(coordinator.began_at))
    wire.poll(0.1)
    assert wire._blocks.flying == {}


def test_of_a_file_only_the_newest_waits(coordinator, thread_nodes):
    """Six checkpoints while the first is on its way: two copies lie in shared memory, not six."""
    coordinator.hold = threading.Event()
    wire = start(thread_nodes, coordinator)
    for step in range(1, 7):
        wire.store(step, "stage-0", bytes([step]) * 300_000, 1, {"view": 3})
        while not coordinator.began_at:  # of the first
            wire.poll(0.05)
    while sum(map(len, wire._blocks.flying.values())) > 2:
        wire.poll(0.05)
    coordinator.hold.set()
    deadline = time.monotonic() + 60
    while len(coordinator.stored) < 2 and time.monotonic() < deadline:
        wire.poll(0.05)
    wire.poll(0.2)
    assert {step for step, _ in coordinator.stored} == {1, 6} and wire._blocks.flying == {}


def test_a_refused_store_is_a_warning(coordinator, thread_nodes):
    coordinator.refuse_store = "the disk is full"
    wire = start(thread_nodes, coordinator)
    wire.store(100, "stage-0", b"x" * 1000, 1, {})
    warning = coordinator.wait("warning")[0]
    assert "the disk is full" in warning.message and warning.node == "a"
