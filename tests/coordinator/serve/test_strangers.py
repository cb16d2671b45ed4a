"""An outsider without a ticket against a real coordinator: silent connections, calls that never end, no descriptors."""

import asyncio
import contextlib
import json
import os
import resource
import socket
import time
from pathlib import Path

import pytest
from half_sent import HalfSent

from farflung.proto import control_pb2 as pb
from farflung.proto.connections import door as doors
from farflung.proto.connections import rpc
from farflung.proto.connections.door import Door, raise_descriptor_limit, too_many
from farflung.proto.connections.sockets import end_of
from farflung.proto.words.link import parse_link

LONG = [("steps = 12", "steps = 100000"), ("stages = 2\npipelines = 2\n", "stages = 2\n")]
UNSAVED = ("[checkpoint]\nevery = 4\n", "[checkpoint]\nevery = 100000\n")
"""Checkpoints come 12 times a second here and move a coordinator's memory by 70 MB, more than strangers do."""


def test_which_connections_have_to_go():
    now = 100.0
    young = {("10.0.0.1", port): now - 1 for port in range(1000)}
    assert too_many(young, now, per_address=10) == [], "an honest caller may still be among them"
    since = {("10.0.0.1", port): now - 8 + port / 100 for port in range(100)}
    since[("10.0.0.2", 1)] = now - 9
    gone = too_many(since, now, per_address=90)
    assert gone == [("10.0.0.1", port) for port in range(10)], "the oldest, and only of that address"
    assert too_many({("10.0.0.3", 1): now - 31.0}, now) == [("10.0.0.3", 1)]
    many = {(f"10.0.1.{host}", 1): now - 6 - host / 1000 for host in range(50)}
    assert too_many(many, now, most=40) == [(f"10.0.1.{host}", 1) for host in range(49, 39, -1)]


def test_the_far_end_of_a_call():
    assert end_of("ipv4:10.0.0.1:55") == end_of("ipv6:%5B::ffff:10.0.0.1%5D:55") == ("10.0.0.1", 55)
    assert end_of("ipv6:%5Bfd00::1%5D:567") == ("fd00::1", 567)
    assert end_of("ipv6:[fe80::1%25eth0]:55") == ("fe80::1", 55) and end_of("unix:/x") is None


async def test_the_door_ends_what_shows_nothing_and_leaves_who_did(monkeypatch):
    monkeypatch.setattr(doors, "GRACE_S", 0.0)
    monkeypatch.setattr(doors, "PER_ADDRESS", 3)
    kept = []
    server = await asyncio.start_server(lambda *streams: kept.append(streams), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    now = [0.0]
    door = Door(port, clock=lambda: now[0])
    members = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    for _, writer in members:
        door.proved(writer.get_extra_info("sockname"))
    strangers = []
    for _ in range(8):
        strangers.append(await asyncio.open_connection("127.0.0.1", port))
        await door.look()
        now[0] += 1.0
    await door.look()
    heard = [asyncio.ensure_future(reader.read()) for reader, _ in (*members, *strangers)]
    await asyncio.wait_for(asyncio.gather(*heard[2:7]), 60)
    assert door.ended == 5 and not any(one.done() for one in heard[7:]), "the newest three stay"
    now[0] += 40.0
    await door.look()
    await asyncio.wait_for(asyncio.gather(*heard[7:]), 60)
    assert door.ended == 8 and not any(one.done() for one in heard[:2])
    for one in heard:
        one.cancel()
    for _, writer in (*members, *strangers, *kept):
        writer.close()
    server.close()
    await asyncio.sleep(0.05)


def memory_of(pid):
    """Bytes of memory that a process has now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmRSS:")))


@pytest.fixture
def closing():
    """Closes what it is given when the test ends, failed or not: what is left open is told to the next test."""
    with contextlib.ExitStack() as given:

        def close_later(one):
            given.callback(one.close)
            return one

        yield close_later


@pytest.fixture
def many_descriptors():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if raise_descriptor_limit() < 4096:
        pytest.skip("this machine lets a process have few descriptors")
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_members_notice_nothing_of_strangers(cluster, process, many_descriptors, eventually, closing):
    """2,000 silent connections and 64 joins without a ticket of which a byte is missing, beside a run that trains."""
    coordinator = process(cluster.job(*LONG, UNSAVED), min_nodes=2, listen="127.0.0.1:0")
    link = parse_link((await coordinator.event("listening"))["link"])
    a, b = await cluster.node(link, "a"), await cluster.node(link, "b")
    await eventually(lambda: a.step > 3)
    before = memory_of(coordinator.pid)
    silent = []
    for number in range(2000):
        one = closing(socket.socket())
        one.setblocking(False)
        one.bind((f"127.0.0.{2 + number % 4}", 0))
        with contextlib.suppress(BlockingIOError):
            one.connect(("127.0.0.1", link.port))
        silent.append(one)
    attacks = await asyncio.to_thread(lambda: [closing(HalfSent(link.port, 32, source="127.0.0.9")) for _ in range(2)])
    await asyncio.gather(*(asyncio.to_thread(attack.pump, 60.0) for attack in attacks))
    assert all(len(attack.answered) == 32 or not attack.open for attack in attacks), "each is answered unread"
    took, step = [], a.step
    for _ in range(5):
        began = time.perf_counter()
        channel = rpc.coordinator_channel(link.address, a.authority)
        reply = await rpc.coordinator_stub(channel).Status(pb.StatusRequest(run=link.run, ticket=link.ticket))
        took.append(time.perf_counter() - began)
        await channel.close()
        assert json.loads(reply.status)["phase"] == "training"
    grown = memory_of(coordinator.pid) - before
    print(f"status took at most {max(took):.3f} s, memory grew by {grown / 2**20:.0f} MiB")
    assert grown < 128 << 20, "one of the two would hold 512 MiB"
    await eventually(lambda: a.step > step + 20)
    assert not (await cluster.fake(link, "c").join()).refused, "who has a ticket joins meanwhile"
    status = json.loads((await a.stub.Status(pb.StatusRequest(run=link.run, ticket=link.ticket))).status)
    assert {one["node"]: one["in"] for one in status["nodes"] if one["node"] in "ab"} == {"a": True, "b": True}

    def is_over(one):
        with contextlib.suppress(BlockingIOError):
            try:
                return one.recv(1) == b""
            except OSError:
                return True
        return False

    await eventually(lambda: sum(map(is_over, silent)) == len(silent), timeout=60.0)
    assert a.stopped is None and b.stopped is None


@pytest.mark.parametrize("method", ["Describe", "Fetch", "Status", "Command", "Profile", "Generate", "Held"])
async def test_nobody_without_a_secret_has_a_message_read(cluster, method, closing):
    coordinator = cluster.coordinator()
    link = await coordinator.link
    attack = closing(await asyncio.to_thread(HalfSent, link.port, 4, f"/farflung.Coordinator/{method}"))
    await asyncio.to_thread(attack.pump, 60.0)
    assert len(attack.answered) == 4, "although no message is whole"


async def test_a_call_of_an_earlier_version_is_told_what_to_do(cluster):
    coordinator = cluster.coordinator()
    link = await coordinator.link
    node = cluster.fake(link, "a")
    await node.join()
    old = pb.JoinRequest(run=link.run, ticket=link.ticket, name="b")
    reply = await rpc.CoordinatorStub(node.channel).Join(old, timeout=60)
    assert "shows no ticket" in reply.refused and "pip install farflung==" in reply.refused


async def test_a_checkpoint_is_refused_and_not_lost_where_no_descriptor_is_left(cluster, eventually):
    coordinator = cluster.coordinator(cluster.job(*LONG), min_nodes=2)
    link = await coordinator.link
    a, b = await cluster.node(link, "a"), await cluster.node(link, "b")
    await eventually(lambda: a.step > 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
    taken = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        step = a.step
        await eventually(lambda: a.step > step + 10)
        assert not coordinator.task.done() and not coordinator.task.cancelled()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in taken:
            os.close(one)
    refused = [one["message"] for one in coordinator.events if one["event"] == "warning"]
    assert any("Too many open files" in message for message in refused), refused
    before = len([one for one in coordinator.events if one["event"] == "checkpoint"])
    await coordinator.event("checkpoint", before + 1)
    assert a.stopped is None and b.stopped is None
