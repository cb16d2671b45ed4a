"""Two machines with one key (a node's folder was copied): the first one stays, the second is refused.

A node that joins with a known key ends the earlier session of that key. If the earlier node is alive, it would join
again, and the two would put each other out for ever. So such a join first waits for a heartbeat of the earlier session:
one that arrives shows that there are two machines. A node that was killed, cut off or suspended sends none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ....proto.errors import Refused

HEARTBEATS_S = 1.5
"""Seconds. Heartbeats that were under way when the question arose do not count; one is sent every second."""
SILENCE_S = 5.0
_LOOK_S = 0.05


def lives(heard: float | None, asked: float, now: float) -> bool | None:
    """Whether the node of a session is alive; None: not known yet. ``heard``: when its last heartbeat came, None where
    it has no open control stream; ``asked``: when the question arose. All in seconds of one clock."""
    if heard is None:
        return False
    if heard - asked >= HEARTBEATS_S:
        return True
    return False if now - max(heard, asked) >= SILENCE_S else None


async def check_alone(lives_now: Callable[[], bool | None], name: str, address: str) -> None:
    """Refused: another machine has the key of ``name``, at ``address``, and is in the run."""
    while (found := lives_now()) is None:  # noqa: ASYNC110 -- silence is no event
        await asyncio.sleep(_LOOK_S)
    if found:
        message = f"{name} is in the run already, at {address}, with this same key: two machines have one folder"
        hint = "give this machine a folder and a name of its own: --cache DIR --name OTHER"
        raise Refused(message, hint)
