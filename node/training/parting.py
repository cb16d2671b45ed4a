"""A node that is to give up its place: who asked for it, and when the coordinator is told that it may go.

Its owner wants it (a pause, SIGTERM, a limit), or the coordinator asks for it. The node goes when a round has taken
what it had learnt, when waiting for a round is pointless, or at once if no coordinator is there to give its place away.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ...proto import control_pb2
from ..device.limits import Wish
from .endings import Stopped
from .holdings import Holdings
from .modes.final_contribution import left_unsaid, say_all, say_no_more_than_usual
from .steps.view_training import ViewTraining

ALONE_SECONDS = 1800.0
"""Seconds without a coordinator after which a node that has nothing to train leaves."""


@dataclass
class LeaveWish:
    """A wish to have no place, since ``step`` and the time ``began``. ``told``: the coordinator knows."""

    wish: Wish
    step: int
    told: bool = False
    began: float = field(default_factory=time.monotonic)


def handed_over(training: ViewTraining | None, leaving: LeaveWish, now: float) -> bool:
    """Whether a round that began after the wish is applied, or waiting for one is pointless."""
    if training is None or training.view.step >= training.view.last_step:
        return True
    # A value from the view's beginning does not count: x may still contain what the view before left.
    if training.mode.reached > max(leaving.step, training.view.position.step):
        return True
    return now - leaving.began > leaving.wish.seconds


class Parting:
    """Handles the wishes that one node gives up its place. Raises Stopped if the node must leave without a
    coordinator."""

    def __init__(self, holdings: Holdings, clock: Callable[[], float] = time.monotonic) -> None:
        self._holdings, self._clock = holdings, clock
        self._own: LeaveWish | None = None
        """The owner's wish."""
        self._asked: LeaveWish | None = None
        """The coordinator's wish, until it is answered."""
        self._alone_since: float | None = None
        """Since when no coordinator has answered."""

    # ---- what happens ----------------------------------------------------------------------

    def coordinator(self, lost: bool) -> None:
        """The coordinator is lost, or back. It may have restarted, and then does not know the owner's wish."""
        self._alone_since = self._clock() if lost else None
        self.has_place()

    def has_place(self) -> None:
        """The node got a place in spite of its wish: the coordinator may have restarted, so tell it again."""
        if self._own is not None:
            self._own.told = False

    def leave(self, order: control_pb2.Leave) -> None:
        """The coordinator wants the node to leave its place."""
        self._asked = self._begin(Wish(order.why, order.stays))

    # ---- what is done about it ----------------------------------------------------------------

    def work(self) -> None:
        """Tell the coordinator that this node wants no place, as soon as it may go."""
        self._look_at_owner()
        context, training = self._holdings.context, self._holdings.training
        agreed = context.job.updates.agreed  # without agreement the neighbours have what the node had
        for leaving in (self._own, self._asked):
            if leaving is None or leaving.told or (agreed and not handed_over(training, leaving, self._clock())):
                continue
            if self._alone_since is not None and not leaving.wish.stays:  # no coordinator can give its place away
                raise Stopped(control_pb2.Stop(why=leaving.wish.why))
            leaving.told = True
            rest = left_unsaid(training.view, training.mode.reached) if training is not None and agreed else ""
            wish = control_pb2.Leaving(
                why=leaving.wish.why + rest, stays=leaving.wish.stays, asked=leaving is self._asked
            )
            context.report(control_pb2.Report(leaving=wish))
        if self._asked is not None and self._asked.told:
            self._asked = None

    def _look_at_owner(self) -> None:
        wish = self._holdings.resources.owner.wish()
        if wish == (self._own.wish if self._own else None):
            return
        context, training = self._holdings.context, self._holdings.training
        if wish is None:
            context.report(control_pb2.Report(back=control_pb2.Back()))
            if training is not None:
                say_no_more_than_usual(training.view)
            context.tell("no longer paused")
        self._own = self._begin(wish) if wish else None

    def _begin(self, wish: Wish) -> LeaveWish:
        context, training = self._holdings.context, self._holdings.training
        if training is not None and context.job.updates.agreed:
            say_all(training.view, context.wire.uplink())
        return LeaveWish(wish, self._holdings.step)

    def leave_if_alone(self) -> None:
        """Raise Stopped if this node has nothing to train and no coordinator has answered for ALONE_SECONDS."""
        if self._alone_since is not None and self._clock() - self._alone_since > ALONE_SECONDS:
            what = "has trained its last step" if self._holdings.training is not None else "is a spare"
            alone = f"no coordinator has answered for {ALONE_SECONDS / 60:.0f} min"
            raise Stopped(control_pb2.Stop(why=f"it {what}, and {alone}: join again when there is one"))
