"""Links: what was measured between each two nodes, in each direction."""

from __future__ import annotations

from collections.abc import Mapping

from ..connection import Connection
from ..schema import LINK, upsert


class LinkRows:
    """The newest measurement of each link."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(self, source: str, target: str, latency_s: float, bandwidth_bps: float, now: float) -> None:
        """Store a measured link: seconds one way, bits per second."""
        self.put_all({(source, target): (latency_s, bandwidth_bps)}, now)

    def put_all(self, found: Mapping[tuple[str, str], tuple[float, float]], now: float) -> None:
        """Store measured links, (source, target) -> (seconds one way, bits per second), in one transaction."""
        rows = [(*pair, *numbers, now) for pair, numbers in found.items()]
        if rows:
            self._connection.write(*(upsert("links", dict(zip(LINK, row, strict=True))) for row in rows))

    def forget(self, name: str) -> None:
        """Delete what was measured of a node's links."""
        self._connection.write(("delete from links where source = ? or target = ?", (name, name)))

    def all(self) -> list[tuple[str, str, float, float]]:
        """Measured links: from, to, seconds one way, bits per second."""
        found = self._connection.read("select source, target, latency_s, bandwidth_bps from links")
        return [(source, target, latency, rate) for source, target, latency, rate in found]

    def ages(self, now: float) -> dict[tuple[str, str], float]:
        """Seconds since each link was measured; ``now`` by the clock of ``put``."""
        found = self._connection.read("select source, target, time from links")
        return {(source, target): max(0.0, now - float(when)) for source, target, when in found}
