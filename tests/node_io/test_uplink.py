"""The owner's limit on what a node sends."""

import asyncio
import time

from numbered import number_of, numbered
from wires import receive

from farflung.node.peers.uplink import ON_THE_WIRE, Uplink
from farflung.proto.data_pb2 import Kind


async def test_the_rate_is_kept():
    """8 Mbit/s is 1 MB/s: half a second's worth at once, then what comes in."""
    now = 0.0
    uplink = Uplink(8e6, lambda: now)
    assert uplink.write == 100_000
    await uplink.ready()
    uplink.spent(1_500_000)
    waiting = asyncio.create_task(uplink.ready())
    for _ in range(20):
        now += 0.05
        await asyncio.sleep(0.002)
        assert not waiting.done()
    now = (1_500_000 * ON_THE_WIRE - 500_000) / 1e6 + 0.01
    while not waiting.done():
        await asyncio.sleep(0.01)
        now += 0.01
    now += 60
    uplink.spent(500_000)
    waiting = asyncio.create_task(uplink.ready())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done(), "a silence does not save up more than half a second"
    waiting.cancel()


async def test_no_limit():
    uplink = Uplink()
    uplink.spent(10**12)
    await uplink.ready()


def test_a_wire_keeps_it(thread_nodes):
    """Twice 1 MB at 8 Mbit/s is 2 s, less the burst and the last write."""
    slow, fast = thread_nodes.start("a", max_upload=8e6), thread_nodes.start("b")
    thread_nodes.enter(1)
    began = time.monotonic()
    for step in (1, 2):
        slow.send("b", numbered(Kind.STATE, step), bytes(1_000_000), 2)
    assert [number_of(message.header) for message in receive(fast, 2, 60)] == [1, 2]
    assert time.monotonic() - began > 1.3
