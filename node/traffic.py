"""Bytes written to gRPC, by what they were for, and counts of what was dropped.

Counted is everything that is handed to gRPC: payloads, headers, frames, acknowledgements, and gRPC's own
5-byte prefix of each message. Below that (HTTP/2 frames, TLS, TCP/IP) nothing is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..proto.data_pb2 import Kind

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
    Kind.READY: UPDATES,
    Kind.COMMIT: UPDATES,
    Kind.ACTIVATION: ACTIVATIONS,
    Kind.ACTIVATION_GRADIENT: ACTIVATIONS,
    Kind.NACK: ACTIVATIONS,
}


def category_of(kind: int) -> str:
    """UPDATES, ACTIVATIONS or OTHER for a data_pb2.Kind; an acknowledgement has that of its message."""
    return _CATEGORY.get(kind, OTHER)


class Traffic:
    """Counters of one node's I/O process."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter(dict.fromkeys(CATEGORIES, 0))
        self.dropped: Counter[str] = Counter()  # why -> messages
        self._reported: Counter[str] = Counter()

    def wrote(self, parts: Iterable[tuple[str, int]]) -> None:
        """One gRPC message of (category, bytes) parts was written; its prefix counts with the first."""
        prefix = GRPC_PREFIX
        for category, length in parts:
            self.sent[category] += length + prefix
            prefix = 0

    def since_last(self) -> dict[str, int]:
        """Bytes of each category since the last call: what a step's report carries."""
        new = {category: self.sent[category] - self._reported[category] for category in CATEGORIES}
        self._reported = Counter(self.sent)
        return new
