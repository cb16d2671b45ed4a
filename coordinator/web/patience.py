"""How long the page's port waits for a client that sends or reads nothing, and how many connections it keeps.

The page shares the coordinator's file descriptors: idle connections to the page must not keep nodes out.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

STALL_S = 30.0
"""Seconds between two checks of a connection; one without progress since the last check is ended."""
MOST_CONNECTIONS = 512
"""Most connections; beyond them, the oldest one that waits for a request is ended for a new one."""


class PatientProtocol(H11Protocol):
    """One connection of the page."""

    _look: asyncio.TimerHandle | None = None
    _before: tuple[str, object] | None = ("asks", None)
    """What it waited for at the last check; None: nothing."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look = self.loop.call_later(STALL_S, self._look_again)
        if len(self.connections) > MOST_CONNECTIONS:
            idle = [one for one in self.connections if isinstance(one, PatientProtocol) and one.has_no_request]
            oldest = min(idle, key=lambda one: one._look.when() if one._look else 0.0, default=self)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    @property
    def has_no_request(self) -> bool:
        """Whether it waits for a request or the rest of one."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _look_again(self) -> None:
        """End a connection whose request is as incomplete, or whose answer is as unread, as at the last check."""
        state: tuple[str, object] | None = None
        if self.has_no_request:
            state = ("asks", self.cycle)  # the cycle of the last request, None before the first
        elif self.flow.write_paused:
            state = ("reads", self.transport.get_write_buffer_size())
        if state is not None and state == self._before:
            self.transport.abort()
            return
        self._before = state
        self._look = self.loop.call_later(STALL_S, self._look_again)
