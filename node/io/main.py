"""The start and the end of the node's I/O process: one event loop that owns every connection of the node.

`node/wire/spawn.py` starts it as `python -m farflung.node.io.main`, with a socket pair to the trainer and two
shared-memory arenas; tests run the same code as a task in a thread (thread.py). It never imports torch. It ends when
the trainer closes its end of the pipe, or dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from typing import Any

from ...proto.process.logs import set_up as set_up_logs
from ..ipc.arena import Arena, keep_freed_memory
from ..ipc.config import WireConfig
from ..ipc.pipe import LoopEnd, To
from .process import IoProcess


async def serve_trainer(pipe: socket.socket, send_arena: Arena, receive_arena: Arena) -> None:
    """Runs one I/O process on this loop until the trainer closes the pipe or dies."""
    loop = asyncio.get_running_loop()
    messages: asyncio.Queue[tuple[Any, ...] | None] = asyncio.Queue()
    _, end = await loop.create_connection(
        lambda: LoopEnd(messages.put_nowait, lambda: messages.put_nowait(None)), sock=pipe
    )
    first = await messages.get()
    if first is None:
        return
    process = IoProcess(WireConfig(**first[1]), end, send_arena, receive_arena)
    farewell: tuple[str, float] = ("", 0.0)
    try:
        await process.start()
        while (message := await messages.get()) is not None:
            if message[0] == To.CLOSE:
                farewell = (message[1], message[2])
                break
            process.take(message)
    finally:
        await process.stop(*farewell)
        end.close()


def main(arguments: list[str]) -> None:
    """Arguments: descriptors of the pipe and of the two arenas, and the arenas' size."""
    keep_freed_memory()
    # Only the trainer handles a signal to the process group: it says goodbye, and this process ends when it does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    set_up_logs()
    pipe, send, receive, size = map(int, arguments)
    arenas = [Arena(descriptor, size) for descriptor in (send, receive)]
    os.close(send)
    os.close(receive)
    work = serve_trainer(socket.socket(fileno=pipe), *arenas)
    try:
        import uvloop
    except ImportError:  # not made for Windows
        asyncio.run(work)
    else:
        uvloop.run(work)


if __name__ == "__main__":
    main(sys.argv[1:])
