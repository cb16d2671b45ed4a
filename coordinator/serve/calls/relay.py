"""The relay between two nodes that cannot be dialled: the coordinator joins their streams and passes messages on.

For each direction the sender opens one stream and the receiver another (``you_send`` in its greeting). When both are
open, each gets its WELCOME; then messages pass unread, one at a time in each direction, so a slow receiver slows its
sender. After a break, messages without an acknowledgement are sent again on the next stream, as on any link.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from ....proto.connections import rpc
from ....proto.connections.door import Door
from ....proto.connections.sockets import end_of
from ....proto.data_pb2 import Greeting
from ....proto.messages import frame as frames
from ....proto.messages.frame import Frame, FrameError, Kind

log = logging.getLogger(__name__)

MOST_WAITING = 64
"""Most streams of one node that wait for their other end. A link has one in each direction, and a few for bulk."""
PATIENCE_S = 10.0
"""Seconds that one end waits for the other; then it has to ask again."""

Key = tuple[str, str, str, str]
"""Name and session of the sender, name and session of the receiver."""


class _Refused(Exception):
    """The relay refuses a stream; the message is sent to the node."""


@dataclass(eq=False)
class _End:
    """One node's stream. ``other`` is set when the two streams are joined, ``ended`` when they end.

    ``welcomed``: it was sent its WELCOME, which has to be the first message.
    """

    context: rpc.PeerContext
    joined: asyncio.Event = field(default_factory=asyncio.Event)
    welcomed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    other: _End | None = None


class Relay:
    """Serves the method of peers at the coordinator. ``knows(name, session, secret)``: whether these belong to a
    session of the run.

    Two nodes are joined if each has asked for the other, and only if neither can be dialled, because relayed bytes use
    the coordinator's own line.
    """

    def __init__(
        self,
        run: str,
        knows: Callable[[str, str, str], bool],
        door: Door | None = None,
        meets: Callable[[str, str], bool] = lambda name, session: True,
    ) -> None:
        """``door``: is told which connections have shown a session. ``meets(name, session)``: whether the node is in
        the run and can't be dialled."""
        self._run, self._knows, self._door, self._meets = run, knows, door or Door(), meets
        self._waiting: dict[tuple[Key, bool], _End] = {}

    async def serve(self, context: rpc.PeerContext) -> None:
        """Serve one end, from its greeting to the end of either stream."""
        with contextlib.suppress(*rpc.BROKEN):
            try:
                session = self._session(context)  # before anything is read
                key, receives = self._greeting(await context.read(), session)
                await self._meet(_End(context), key, receives)
            except (_Refused, FrameError) as error:
                await _write(context, Frame(Kind.REFUSE, head=str(error).encode()))

    async def _meet(self, end: _End, key: Key, receives: bool) -> None:
        mine, theirs = (key, receives), (key, not receives)
        if (old := self._waiting.pop(mine, None)) is not None:
            old.ended.set()  # it dialled again: this stream replaces the older one
        other = self._waiting.pop(theirs, None)
        try:
            if other is not None:
                end.other, other.other = other, end
                other.joined.set()
            else:
                me = key[2:] if receives else key[:2]
                waits = sum((other[2:] if there else other[:2]) == me for other, there in self._waiting)
                if waits >= MOST_WAITING:
                    raise _Refused(f"{me[0]} has {waits} streams that wait at the relay")
                self._waiting[mine] = end
                await _first(end.joined, end.ended, PATIENCE_S)
                if end.other is None:
                    raise _Refused(f"{key[0] if receives else key[2]} has not come to the relay")
            await self._pass_on(end)
        finally:
            end.ended.set()
            if end.other is not None:
                end.other.ended.set()
            if self._waiting.get(mine) is end:
                del self._waiting[mine]

    async def _pass_on(self, end: _End) -> None:
        """Pass this end's messages to the other end, until either stream ends."""
        assert end.other is not None
        await _write(end.context, Frame(Kind.WELCOME))
        end.welcomed.set()
        copying = asyncio.create_task(self._copy(end.context, end.other))
        ended = asyncio.create_task(end.ended.wait())
        try:
            await asyncio.wait([copying, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            copying.cancel()
            ended.cancel()
            await asyncio.gather(copying, ended, return_exceptions=True)

    async def _copy(self, source: rpc.PeerContext, sink: _End) -> None:
        await sink.welcomed.wait()
        while (message := await source.read()) is not rpc.END:
            await sink.context.write(message)

    def _session(self, context: rpc.PeerContext) -> tuple[str, str, str]:
        session = rpc.parse_session(context.invocation_metadata())
        if session is None or not self._knows(*session):
            who = session[0] if session else "a caller without one"
            raise _Refused(f"the session of {who} is over, or another's")
        self._door.proved(end_of(context.peer()))
        return session

    def _greeting(self, message: object, session: tuple[str, str, str]) -> tuple[Key, bool]:
        if not isinstance(message, bytes) or not message:
            raise _Refused("the stream ended before its greeting")
        first = frames.decode(message)[0]
        try:
            greeting = Greeting.FromString(bytes(first.head))
        except DecodeError:
            raise _Refused("the greeting cannot be read") from None
        if first.kind is not Kind.HELLO or greeting.run != self._run:
            raise _Refused(f"no greeting of a node of run {self._run}")
        if session[:2] != (greeting.name, greeting.session):
            raise _Refused(f"the session of {greeting.name} is over, or another's")
        me, peer = (greeting.name, greeting.session), (greeting.to, greeting.to_session)
        for one in (me, peer):
            if me == peer or not self._meets(*one):
                raise _Refused(f"{me[0]} and another node do not meet here: both must be in the run, and dial out")
        return ((*peer, *me) if greeting.you_send else (*me, *peer)), greeting.you_send


async def _first(joined: asyncio.Event, ended: asyncio.Event, patience: float) -> None:
    """Waits for either, for a limited time."""
    tasks = [asyncio.create_task(event.wait()) for event in (joined, ended)]
    try:
        await asyncio.wait(tasks, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _write(context: rpc.PeerContext, frame: Frame) -> None:
    await context.write(b"".join(frames.encode(frame)))
