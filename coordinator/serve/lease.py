"""Standing by and leading, where several coordinators use one database.

All of them run the same command. The one that holds the lease leads; the others ask for the lease once a second and
take over when it ends: at once when the leader releases it, else LEASE_S seconds after its last renewal.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator

from .. import events
from ..store.engines.database import LeaseLost, NoRoom
from ..store.engines.postgresql import LEASE_S, PostgreSQL

_ASK_S = 1.0


async def stand_by(server: PostgreSQL, emit: events.Emit, stop: asyncio.Event) -> bool:
    """Wait until this coordinator leads (returns True) or ``stop`` is set (False). Each reason for waiting is shown
    once."""
    who, said = f"{socket.gethostname()}:{os.getpid()}", ""
    while not stop.is_set():
        try:
            if server.take_lease(who):
                emit(events.event("notice", message=f"leads the run in {server.name} from now on", node=""))
                return True
            sentence = f"stands by: {server.leader() or 'nobody'} leads the run in {server.name}"
        except (LeaseLost, NoRoom) as error:
            sentence = f"stands by: {error.message}"
        if sentence != said:
            said = sentence
            emit(events.event("notice", message=sentence, node=""))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stop.wait(), _ASK_S)
    return False


@contextlib.asynccontextmanager
async def leading(server: PostgreSQL) -> AsyncIterator[None]:
    """Renew the lease while the block runs, and release it afterwards. If it is lost, the next write or tick raises
    LeaseLost."""
    keeping = asyncio.create_task(_keep(server))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        with contextlib.suppress(LeaseLost, NoRoom):
            server.release_lease()


async def _keep(server: PostgreSQL) -> None:
    with contextlib.suppress(LeaseLost):
        while True:
            await asyncio.sleep(LEASE_S / 5)
            server.renew_lease()
