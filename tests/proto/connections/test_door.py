"""Who watches the connections to a port may be told to stop at any moment."""

import asyncio
import socket
import threading

from farflung.proto.connections import door
from farflung.proto.connections.door import Door


async def test_what_a_look_finds_after_it_was_broken_off_is_closed(monkeypatch):
    began, goes_on = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = {("127.0.0.1", 1): server.dup()}

        def connections(ports):
            began.set()
            goes_on.wait(60)
            return found

        monkeypatch.setattr(door, "_connections", connections)
        looking = asyncio.create_task(Door(1).look())
        await asyncio.to_thread(began.wait, 60)
        looking.cancel()
        await asyncio.wait([looking])
        goes_on.set()
        await asyncio.get_running_loop().shutdown_default_executor()
        assert [one.fileno() for one in found.values()] == [-1]
