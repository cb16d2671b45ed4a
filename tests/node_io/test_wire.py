"""Messages between real endpoints on loopback: threads and processes, with and without TLS."""

import gc
import sys
import time

import numpy as np
import pytest
from numbered import number_of, numbered
from wires import kill, receive, wait_for

from farflung.node.ipc.config import WireConfig
from farflung.node.wire.client import ProcessWire
from farflung.node.wire.events import PeerLost, Received
from farflung.proto.data_pb2 import Contribution, Header, Held, Kind
from farflung.proto.errors import FarflungError, RunFailed

SIZES = (0, 1, 100_000, 50_000_000)


def noise(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def exchange(nodes, names):
    """Everybody sends every size in every priority to everybody; all arrives whole, from whom it says."""
    for name in names:
        nodes.start(name)
    nodes.enter(1)
    payloads = {size: noise(size, size) for size in SIZES}
    for name, wire in nodes.wires.items():
        for to in names:
            for size in SIZES[: 3 if len(names) > 2 and name != "a" else 4]:
                for priority in range(3):
                    header = numbered(Kind.CONTRIBUTION, size)
                    header.contribution.part, header.contribution.section = priority, "stage-0"
                    wire.send(to, header, payloads[size], priority)
    expected = len(names) * 9 + (3 if len(names) > 2 else 3 * len(names))
    for name, wire in nodes.wires.items():
        for message in receive(wire, expected, 60):
            assert message.header.run == "run-1" and message.header.view == 1
            assert message.header.session == nodes.sessions[message.sender]
            assert message.header.contribution.section == "stage-0"
            assert message.payload.dtype == np.uint8 and message.payload.flags.writeable
            assert np.array_equal(message.payload, payloads[number_of(message.header)]), name
        assert wire.poll(0.05) == []


def test_two_nodes(nodes):
    exchange(nodes, "ab")


def test_two_nodes_with_tls(secure_nodes):
    exchange(secure_nodes, "ab")


def test_three_nodes_with_tls(certificates, thread_nodes):
    thread_nodes.certificates = certificates
    exchange(thread_nodes, "abc")


def test_a_payload_in_pieces_and_of_any_dtype(thread_nodes):
    a, b = thread_nodes.start("a"), thread_nodes.start("b")
    thread_nodes.enter(1)
    weights = np.arange(100_000, dtype=np.float32).reshape(100, 1000)
    a.send("b", numbered(Kind.STATE), [b"head", weights, memoryview(b"")])
    payload = receive(b)[0].payload
    assert bytes(payload[:4]) == b"head"
    assert np.array_equal(payload[4:].view(np.float32).reshape(weights.shape), weights)


def test_what_is_sent_may_change_afterwards(thread_nodes):
    a, b = thread_nodes.start("a"), thread_nodes.start("b")
    thread_nodes.enter(1)
    data = noise(3_000_000)
    sent = data.copy()
    a.send("b", numbered(Kind.STATE), data)
    data[:] = 0
    assert np.array_equal(receive(b)[0].payload, sent)


def test_what_lies_in_shared_memory_is_sent_to_all_from_there_and_freed_with_its_last_view(thread_nodes):
    a, b, c = (thread_nodes.start(name) for name in "abc")
    thread_nodes.enter(1)
    idle = a._blocks.sending.in_use
    data = noise(3_000_000)
    placed = a.place(iter(([data[:9].tobytes(), data[9:2_000_000].data], [data[2_000_000:].data])), 2)
    once = a._blocks.sending.in_use
    for to in "bbc":
        a.send(to, numbered(Kind.RESULT), placed)
    assert a._blocks.sending.in_use == once > idle + 3_000_000
    del placed
    came = [message.payload for wire, count in ((b, 2), (c, 1)) for message in receive(wire, count)]
    assert all(np.array_equal(payload, data) for payload in came)
    while a.under_way:
        assert a.poll(0.05) == []
    short, longer = [data[:1000].data], [data[1000:1001].data, data[1001:].data]  # than the first promised
    uneven = a.place(iter((short, longer)), 2)
    assert bytes(uneven) == data.tobytes()
    assert a._blocks.sending.in_use < once + 10_000  # in the room of the first
    first, came = came[0][5:7], None
    assert bytes(first) == bytes(data[5:7]) and len(b._blocks.done_with) == 1  # a view keeps its block, not the other


def test_no_handler_of_a_signal_runs_as_the_last_view_goes(thread_nodes):
    """What it raises there (Ctrl-C) would be lost; handlers run between bytecodes, so there must be none."""
    a, b = thread_nodes.start("a"), thread_nodes.start("b")
    thread_nodes.enter(1)
    a.send("b", numbered(Kind.STATE), noise(3_000_000))
    payload, ran = receive(b)[0].payload, []
    sys.setprofile(lambda frame, event, argument: ran.append(frame) if event == "call" else None)
    try:
        payload = None
    finally:
        sys.setprofile(None)
    assert payload is None and ran == [] and len(b._blocks.done_with) == 1


def test_order_is_kept_within_a_priority(thread_nodes):
    a, b = thread_nodes.start("a"), thread_nodes.start("b")
    thread_nodes.enter(1)
    for number in range(300):
        a.send("b", numbered(Kind.ACTIVATION, number), noise([10, 70_000, 400_000][number % 3]), 0)
    assert [number_of(message.header) for message in receive(b, 300)] == list(range(300))


def test_urgent_messages_overtake_bulk(thread_nodes):
    a, b = thread_nodes.start("a", max_upload=160e6), thread_nodes.start("b")  # a second for what is to be overtaken
    thread_nodes.enter(1)
    a.send("b", numbered(Kind.STATE), b"warm")
    receive(b)
    a.send("b", numbered(Kind.STATE), noise(20_000_000), 2)
    a.send("b", numbered(Kind.ACTIVATION), b"now", 0)
    assert [message.header.kind for message in receive(b, 2)] == [Kind.ACTIVATION, Kind.STATE]


# ---- views ---------------------------------------------------------------------------------


def test_a_message_of_a_coming_view_waits_for_it(thread_nodes):
    a, b = thread_nodes.start("a"), thread_nodes.start("b")
    a.enter(1, thread_nodes.members())
    a.send("b", numbered(Kind.READY), b"early")
    assert b.poll(0.5) == []
    b.enter(1, thread_nodes.members())
    assert bytes(receive(b)[0].payload) == b"early"


def test_messages_of_an_older_view_are_dropped_and_counted(thread_nodes):
    a, b = thread_nodes.start("a"), thread_nodes.start("b")
    thread_nodes.enter(1)
    a.send("b", numbered(Kind.READY), b"1")
    receive(b)
    b.leave_view()
    a.send("b", numbered(Kind.READY), b"too late")
    assert b.poll(0.5) == []
    thread_nodes.enter(2)
    a.send("b", numbered(Kind.READY), b"2")
    assert bytes(receive(b)[0].payload) == b"2"
    assert b.statistics()["of another view"] == 1
    a.send("b", numbered(Kind.READY, view=1), b"stale")
    assert a.dropped == 1 and b.poll(0.2) == []


def test_another_session_is_not_heard(thread_nodes):
    a, b = thread_nodes.start("a"), thread_nodes.start("b")
    members = thread_nodes.members()
    a.enter(1, members)
    members[0].session = "a-2"
    b.enter(1, members)
    a.send("b", numbered(Kind.READY), b"from the past")
    deadline = time.monotonic() + 60
    while "from another session" not in b.statistics() and time.monotonic() < deadline:
        assert not [event for event in b.poll(0.1) if isinstance(event, Received)]
    assert b.statistics()["from another session"] == 1


def test_a_node_outside_the_view_is_not_heard(thread_nodes):
    a, b, c = (thread_nodes.start(name) for name in "abc")
    thread_nodes.enter(1, "a", "b")
    c.enter(1, thread_nodes.members())
    c.send("b", numbered(Kind.READY), b"let me in")
    deadline = time.monotonic() + 60
    while "from a node outside the view" not in b.statistics() and time.monotonic() < deadline:
        assert not [event for event in b.poll(0.1) if isinstance(event, Received)]
    assert b.statistics()["from a node outside the view"] == 1
    with pytest.raises(ValueError, match="c is not a member of view 1"):
        a.send("c", numbered(Kind.READY))


def test_another_run_is_refused(thread_nodes):
    a = thread_nodes.start("a")
    thread_nodes.start("b", run="run-2")
    a.enter(1, thread_nodes.members())
    assert "is in run run-1, node b is in run-2" in wait_for(a, PeerLost).why


def test_a_false_name_is_refused(certificates, thread_nodes):
    """Node a shows c's certificate while it says that it is a."""
    thread_nodes.certificates = certificates
    a = thread_nodes.start("a", **certificates("c"))
    thread_nodes.start("b")
    a.enter(1, thread_nodes.members())
    assert "says it is a, but its certificate says otherwise" in wait_for(a, PeerLost).why


def test_without_a_certificate_nobody_gets_in(certificates, thread_nodes):
    thread_nodes.certificates = certificates
    a = thread_nodes.start("a", secure=False)
    b = thread_nodes.start("b")
    a.enter(1, thread_nodes.members())
    assert wait_for(a, PeerLost).peer == "b"
    assert b.poll(0.2) == []


# ---- breaks --------------------------------------------------------------------------------


def test_a_killed_peer_is_lost_and_nothing_is_truncated(processes):
    a, b = processes.start("a"), processes.start("b")
    processes.enter(1)
    payload = noise(120_000_000)
    a.send("b", numbered(Kind.STATE), b"hello")
    receive(b)
    a.send("b", numbered(Kind.STATE), payload, 2)
    time.sleep(0.05)
    kill(a)
    others = []
    assert wait_for(b, PeerLost, others=others).peer == "a"
    # Either it was all there already, or nothing of it.
    assert all(
        np.array_equal(event.payload, payload) for event in [*others, *b.poll(0.3)] if isinstance(event, Received)
    )
    with pytest.raises(RunFailed, match="I/O process was ended by SIGKILL"):
        for _ in range(100):
            a.poll(0.1)


def test_a_peer_that_comes_back_in_a_new_session(processes):
    a, b = processes.start("a"), processes.start("b")
    processes.enter(1)
    b.send("a", numbered(Kind.STATE), b"1")
    receive(a)
    kill(b)
    b.close("")
    assert wait_for(a, PeerLost).peer == "b"
    a.leave_view()
    b = processes.start("b", session="b-2")
    processes.enter(2)
    payload = noise(5_000_000)
    a.send("b", numbered(Kind.STATE), payload)
    b.send("a", numbered(Kind.STATE), payload)
    assert np.array_equal(receive(a)[0].payload, payload)
    assert np.array_equal(receive(b)[0].payload, payload)


def test_the_io_process_ends_with_its_trainer(processes):
    a = processes.start("a")
    process = a._host._process
    a._end.close()  # what the kernel does when the trainer dies
    assert process.wait(60) == 0


def test_a_taken_port_is_named(nodes):
    a = nodes.start("a")
    with pytest.raises(FarflungError, match=f"cannot listen on 127.0.0.1:{a.port}"):
        nodes.start("b", listen=f"127.0.0.1:{a.port}")


# ---- bounds --------------------------------------------------------------------------------


def test_memory_is_bounded_on_both_sides_and_nothing_is_stuck(thread_nodes):
    """Both flood each other without polling, over the limits of sender and receiver: it all arrives in the end."""
    limits = {"send_limit": 20 << 20, "receive_limit": 8 << 20}
    a, b = thread_nodes.start("a", **limits), thread_nodes.start("b", **limits)
    thread_nodes.enter(1)
    payload = noise(3_000_000)
    for _ in range(6):
        a.send("b", numbered(Kind.STATE), payload)
        b.send("a", numbered(Kind.STATE), payload)
    time.sleep(0.5)
    for _ in range(14):
        a.send("b", numbered(Kind.STATE), payload)
        assert a._blocks.sending.in_use <= (20 << 20) + 8192
        for message in b.poll(0.0):
            assert np.array_equal(message.payload, payload)
            b.send("a", numbered(Kind.ACTIVATION), b"")
    first, second = receive_all(a, b)
    assert len(first) and len(second)


def receive_all(a, b):
    got = [], []
    quiet = 0
    while quiet < 5:
        new = a.poll(0.1), b.poll(0.1)
        quiet = 0 if any(new) else quiet + 1
        for into, events in zip(got, new, strict=True):
            into += [event for event in events if isinstance(event, Received)]
    return got


def test_to_itself_without_the_network(thread_nodes):
    a = thread_nodes.start("a")
    thread_nodes.enter(1)
    a.send("a", numbered(Kind.RESULT, 7), [b"x", b"y"])
    message = a.poll()[0]
    assert (message.sender, bytes(message.payload), message.header.view) == ("a", b"xy", 1)
    assert message.header.session == "a-1"
    assert a.statistics()["updates"] == 0


def test_mistakes_of_the_caller(thread_nodes):
    a = thread_nodes.start("a")
    a.send("b", numbered(Kind.READY))
    assert a.dropped == 1  # outside any view
    thread_nodes.enter(1)
    with pytest.raises(ValueError, match="priority 3"):
        a.send("a", numbered(), priority=3)
    with pytest.raises(ValueError, match="section"):
        a.send("a", Header(kind=Kind.RESULT_HELD, held=Held(section="#1")))


# ---- counting ------------------------------------------------------------------------------


def test_a_small_message_costs_few_bytes(thread_nodes):
    """Everything that a 10 kB contribution adds to its payload, its acknowledgement included."""
    a, b = thread_nodes.start("a"), thread_nodes.start("b")
    thread_nodes.enter(1)
    header = Header(
        kind=Kind.CONTRIBUTION,
        contribution=Contribution(section="stage-0", round=300, part=1, chain=2**63 + 7, sizes=[9]),
    )
    for _ in range(2):  # the first one carries the name
        a.send("b", header, bytes(10_000))
        receive(b)
        time.sleep(0.1)
        before = a.statistics()["updates"] + b.statistics()["updates"]
    a.send("b", header, bytes(10_000))
    receive(b)
    time.sleep(0.1)
    overhead = a.statistics()["updates"] + b.statistics()["updates"] - before - 10_000
    assert 0 < overhead < 100, overhead
    a.send("b", Header(kind=Kind.RESULT_HELD, held=Held(section="stage-0", round=300, part=1)))
    receive(b)
    time.sleep(0.1)
    control = a.statistics()["updates"] + b.statistics()["updates"] - before - 10_000 - overhead
    assert 0 < control < 50, control


def test_categories(thread_nodes):
    a, b = thread_nodes.start("a"), thread_nodes.start("b")
    thread_nodes.enter(1)
    for kind, size in ((Kind.ACTIVATION, 1000), (Kind.RESULT, 100_000), (Kind.STATE, 1_000_000)):
        a.send("b", numbered(kind), bytes(size))
    receive(b, 3)
    counts = a.statistics()
    assert 1000 < counts["activations"] < 1100
    assert 100_000 < counts["updates"] < 100_100
    assert 1_000_000 < counts["other"] < 1_001_000


def test_links_are_measured(nodes):
    a, b = nodes.start("a", probe_patience=4.0), nodes.start("b")  # a loaded machine answers late too
    gone = nodes.members()[1]
    gone.name, gone.address = "c", "127.0.0.1:9"
    links = a.measure([*nodes.members(), gone]).links
    assert [link.to for link in links] == ["b", "c"]
    assert links[0].latency_s > 0 and links[0].bandwidth_bps > 1e6
    assert links[1].bandwidth_bps == 0
    nodes.enter(1)
    b.send("a", numbered(Kind.STATE), b"after")
    assert bytes(receive(a)[0].payload) == b"after"


def test_the_io_process_never_imports_torch():
    import subprocess
    import sys

    code = "import sys, farflung.node.io.main, farflung.node.wire.client; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_a_forgotten_wire_leaves_nothing(recwarn):
    wire = ProcessWire.start(WireConfig("r", "a", "s", listen="127.0.0.1:0"), process=False)
    wire.close("")
    wire.close("")
    del wire
    gc.collect()
    assert not recwarn.list
