"""What signals to a node's process mean.

SIGTERM (a spot instance's warning): the last contribution, a view without this node, exit 0, all within 20 s. SIGUSR1:
a pause, and again for its end. SIGINT is Python's own: a goodbye, and nothing more.
"""

from __future__ import annotations

import signal
from types import FrameType

from .device.limits import Owner

TAKEN_AWAY = "its machine is being taken away (SIGTERM)"
GONE_SECONDS = 18.0
"""After SIGTERM. Then the node leaves as it is, and the goodbye may take another second or two."""


class Terminated(BaseException):
    """SIGTERM: the machine is about to be taken away, and there is nothing to hand over, or no time left.

    A signal handler raises it at any point of the program. It is a BaseException so that ``except Exception`` does not
    catch it.
    """


def obey_signals(owner: Owner) -> None:
    """Install the signal handlers, which turn signals into the owner's wishes."""

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the goodbye
        owner.taken_away = True
        if not owner.listens:
            raise Terminated
        signal.setitimer(signal.ITIMER_REAL, GONE_SECONDS)

    def out_of_time(number: int, frame: FrameType | None) -> None:
        raise Terminated

    def toggle(number: int, frame: FrameType | None) -> None:
        owner.paused = not owner.paused

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGALRM, out_of_time)
    signal.signal(signal.SIGUSR1, toggle)


def out_of_danger() -> None:
    """The node is leaving: cancel the timer that SIGTERM started."""
    signal.setitimer(signal.ITIMER_REAL, 0)
