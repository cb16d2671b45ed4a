"""Orders of the coordinator that interrupt a trainer, as exceptions: they are raised wherever it handles messages."""

from __future__ import annotations

from ...proto import control_pb2
from ...proto.errors import FarflungError, Parted


class ViewEnds(Exception):
    """The coordinator has announced another view: flush."""

    def __init__(self, order: control_pb2.Flush) -> None:
        super().__init__(order.why)
        self.order = order


class Stopped(Exception):
    """The coordinator says that this node's work is over."""

    def __init__(self, stop: control_pb2.Stop) -> None:
        super().__init__(stop.why)
        self.why, self.failed, self.refused = stop.why, stop.failed, stop.refused
        self.again = stop.again


def error_of(stopped: Stopped) -> FarflungError | None:
    """The error that a coordinator's stop means for this node; None: it is the ordinary end."""
    if stopped.again:
        return Parted(stopped.why, "start it again: it comes back under its key")
    if stopped.refused:
        hint = "`farflung join LINK` begins anew; if a person has put this node out, ask the one at the coordinator"
        return FarflungError(stopped.why, hint, 3)
    if stopped.failed:
        return FarflungError(stopped.why, "the coordinator's log says more", 4)
    return None
