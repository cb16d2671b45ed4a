"""What `Wire.poll` returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...proto import control_pb2 as control
from ...proto.data_pb2 import Header


@dataclass(frozen=True)
class Received:
    """A complete, verified message of a member of the current view. ``payload``: uint8, owned by the receiver."""

    sender: str
    header: Header
    payload: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class OrderEvent:
    """An order of the coordinator (never of an older term; Measure is answered by the I/O process itself)."""

    order: control.Order


@dataclass(frozen=True)
class PeerLost:
    """The connection to a member of the view broke. One event until it is back; the coordinator has the report."""

    peer: str
    why: str


@dataclass(frozen=True)
class CoordinatorLost:
    """The control stream broke; reports wait, and the I/O process tries to connect again without limit."""

    why: str


@dataclass(frozen=True)
class CoordinatorBack:
    """The control stream is open again, to a coordinator of this term."""

    term: int


Event = Received | OrderEvent | PeerLost | CoordinatorLost | CoordinatorBack
