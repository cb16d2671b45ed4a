"""Dials a node back to find out whether it is alive; a node that cannot be dialled has to reconnect by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from ....proto.connections.patience import patience
from ....proto.errors import FarflungError
from ....proto.words.link import split_address
from ...membership import signals as s
from .round_trips import RoundTrips
from .sessions import Sessions
from .streams import Streams

DIAL_S = 2.0
"""Seconds that a dialled node may take to answer, in addition to a few round trips."""
RETURN_S = 2.0
"""Seconds that a node that can't be dialled may take to reopen its control stream, in addition to a few round trips."""
_LOOK_S = 0.2


class DialBack:
    """Finds out whether a node is alive whose control stream ended, or which is silent."""

    def __init__(self, sessions: Sessions, streams: Streams, trips: RoundTrips, clock: Callable[[], float]) -> None:
        self._sessions, self._streams, self._trips, self._clock = sessions, streams, trips, clock

    async def ask(self, effect: s.Dial) -> s.Dialled:
        """Whether the node is alive, and if not, why."""
        row = self._sessions.get(effect.name)
        if row is not None and row.dials_out:
            why = await self._await_return(effect)
        else:
            why = await dial(effect.address, patience(DIAL_S, self._trips.of(effect.name)))
        return s.Dialled(effect.name, effect.session, not why, why)

    async def _await_return(self, effect: s.Dial) -> str:
        """For a node that cannot be dialled: empty when its control stream is open or was reopened; else why not."""
        waits = patience(RETURN_S, self._trips.of(effect.name))
        deadline = self._clock() + waits
        while (stream := self._streams.get(effect.name)) is None or stream.session != effect.session:
            if self._clock() > deadline:
                return f"it only dials out, and did not within {waits:.1f} s"
            await asyncio.sleep(_LOOK_S)
        return ""


async def dial(address: str, timeout: float) -> str:
    """Connect to HOST:PORT and hang up; empty when that worked, else why not."""
    try:
        host, port = split_address(address)
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), timeout)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    except (TimeoutError, asyncio.TimeoutError):
        return f"no answer within {timeout:g} s"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else str(error)
    except (FarflungError, ValueError) as error:
        return str(error)
    return ""
