"""Bytes written to gRPC, by what they were for, and counts of what was dropped.

All bytes that are handed to gRPC count: payloads, headers, frames, acknowledgements, and gRPC's own 5-byte prefix of
each message. Layers below (HTTP/2 frames, TLS, TCP/IP) do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict

from ...proto.control_pb2 import Sent
from ...proto.data_pb2 import Kind
from .link_watch import LinkWatch
from .uplink import Uplink

GRPC_PREFIX = 5

UPDATES = "updates"
ACTIVATIONS = "activations"
OTHER = "other"
CATEGORIES = (UPDATES, ACTIVATIONS, OTHER)

_CATEGORY: dict[int, str] = {
    Kind.CONTRIBUTION: UPDATES,
    Kind.CONTRIBUTION_REQUEST: UPDATES,
    Kind.RESULT: UPDATES,
    Kind.RESULT_HELD: UPDATES,
    Kind.RESULT_REQUEST: UPDATES,
    Kind.DIFFERENCE: UPDATES,
    Kind.READY: UPDATES,
    Kind.COMMIT: UPDATES,
    Kind.ACTIVATION: ACTIVATIONS,
    Kind.ACTIVATION_GRADIENT: ACTIVATIONS,
    Kind.NACK: ACTIVATIONS,
}


def category_of(kind: int) -> str:
    """UPDATES, ACTIVATIONS or OTHER for a data_pb2.Kind; an acknowledgement has the category of its message."""
    return _CATEGORY.get(kind, OTHER)


class Traffic:
    """Counters of one node's I/O process."""

    def __init__(self, tell_arriving: Callable[[int], None] = lambda count: None, max_upload: float = 0.0) -> None:
        """``tell_arriving(count)`` is called with the number of messages that have arrived in part. ``max_upload``:
        bits per second; 0: no limit."""
        self.uplink = Uplink(max_upload)
        self.sent: Counter[str] = Counter(dict.fromkeys(CATEGORIES, 0))
        self.sent_to: Counter[str] = Counter()  # peer -> bytes on this node's link to it
        self.arrived: Counter[str] = Counter()  # peer -> bytes that it sent to this node
        self.watch = LinkWatch()
        self.dropped: Counter[str] = Counter()  # why -> messages
        self._tell_arriving, self._arriving = tell_arriving, 0
        self.came = 0
        """Bytes that have arrived from all peers and the coordinator."""
        self._reported: Counter[str] = Counter()
        self._reported_to: Counter[str] = Counter()

    def wrote(self, parts: Iterable[tuple[str, int]], to: str = "") -> None:
        """One gRPC message of (category, bytes) parts was written; its prefix counts with the first."""
        prefix = GRPC_PREFIX
        for category, length in parts:
            self.sent[category] += length + prefix
            self.uplink.spent(length + prefix)
            if to:
                self.sent_to[to] += length + prefix
            prefix = 0

    def took_in(self, count: int, sender: str = "") -> None:
        """Count ``count`` bytes received from a peer, or of the coordinator's artifacts."""
        self.came += count
        if sender:
            self.arrived[sender] += count

    def arriving(self, change: int) -> None:
        """One message more (1) or less (-1) has arrived in part."""
        self._arriving += change
        self._tell_arriving(self._arriving)

    def since_last(self) -> dict[str, int]:
        """Bytes of each category since the last call; a step's report carries them."""
        new = {category: self.sent[category] - self._reported[category] for category in CATEGORIES}
        self._reported = Counter(self.sent)
        return new

    def to_since_last(self) -> list[Sent]:
        """Bytes sent to each peer since the last call, and the link measurements of that time."""
        new, full = self.sent_to - self._reported_to, self.watch.take()
        self._reported_to = Counter(self.sent_to)
        return [
            Sent(peer=peer, bytes=new[peer], **(asdict(full[peer]) if peer in full else {}))
            for peer in dict.fromkeys((*new, *full))
        ]
