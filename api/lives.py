"""Whether a member of ``farflung.group`` joins again after a life has ended; the rules are a node's (node/rejoin.py).

The user's loop does not notice: it computes, or waits in ``g.step()``, until it gets another share of a step.
"""

from __future__ import annotations

from collections.abc import Callable

from ..node.device.limits import Owner, Wish
from ..node.ipc.pipe import IoEnded
from ..node.rejoin import Backoff, Crashes, mends, told, wait
from ..proto.errors import FarflungError


class Lives:
    """The lives of one member, the first of which has begun."""

    def __init__(
        self,
        owner: Owner,
        tell: Callable[[str], None],
        crashes: Crashes | None = None,
        backoff: Backoff | None = None,
        pause: Callable[[float, Owner], Wish | None] = wait,
    ) -> None:
        """``owner``: the loop's wishes; if it leaves, there is no other life. ``tell``: shows a sentence to the
        user."""
        self._owner, self._tell, self._wait = owner, tell, pause
        self._crashes, self._backoff = crashes or Crashes(), backoff or Backoff()

    def again(self, problem: BaseException | None, lived_s: float) -> bool:
        """Whether there is another life after one that lasted ``lived_s`` seconds and ended by ``problem``. Waits until
        it may begin."""
        if isinstance(problem, IoEnded):
            if not self._crashes.again():
                return False
            pause, said = 0.0, f"{problem.message}: this node joins again under its key, with what the others hold"
        elif isinstance(problem, FarflungError) and mends(problem, was_in=True):
            pause = self._backoff.next(lived_s)
            said = told(problem, pause)
        else:
            return False
        self._tell(said)
        return self._wait(pause, self._owner) is None
