"""How messages move in the simulator: the transport's rules, the queue of one direction, and the lines it uses."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..networks.devices import Matrix
from ..networks.network import Network


@dataclass(frozen=True)
class Transport:
    """How messages move.

    pieces: number of pieces in which a message is sent; pieces of different messages share links fairly. coupled:
    receives and sends of a device take turns. send_buffer, receive_buffer: pieces that the sender's buffer holds, and
    the receiver's until the receiver takes them (coupled only).
    """

    pieces: int = 1
    coupled: bool = False
    send_buffer: int = 2
    receive_buffer: int = 3


OVERLAPPED = Transport()


@dataclass(frozen=True)
class Span:
    """Something that a device did, with its start and end in seconds. kind: "F", "B", "send" or "receive" (coupled
    transport)."""

    device: int
    kind: str
    label: str
    start: float
    end: float
    peer: int = -1


@dataclass
class Trace:
    """What happened: seconds until the last device is done, and what each one did.

    done: float64 [n devices], when each finished its list. busy: float64 [n], seconds of compute. link_busy: seconds
    that each (sender, receiver) carried bits. spans: in order of their end, if they were asked for.
    """

    seconds: float
    done: Matrix
    busy: Matrix
    link_busy: dict[tuple[int, int], float]
    shared_busy: dict[str, float]
    spans: list[Span] = field(default_factory=list)


@dataclass
class Flow:
    """One direction between two devices, with the pieces on it."""

    sender: int
    receiver: int
    latency: float
    rates: list[tuple[int, float]]
    window: int = 1 << 60
    queued: list[tuple[float, tuple[int, ...], bool]] = field(default_factory=list)
    next: int = 0
    sending: bool = False
    consumed: int = 0
    left: int = 0
    busy: float = 0.0
    arrived: dict[tuple[int, ...], int] = field(default_factory=dict)


class Resources:
    """The servers (in the sense of queueing) that a flow passes: its link, and uplinks and downlinks of devices and
    sites."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.names: list[str] = []
        self.free: list[float] = []
        self.busy: list[float] = []
        self._known: dict[str, int] = {}

    def _server(self, name: str) -> int:
        if name not in self._known:
            self._known[name] = len(self.names)
            self.names.append(name)
            self.free.append(0.0)
            self.busy.append(0.0)
        return self._known[name]

    def of_link(self, sender: int, receiver: int) -> list[tuple[int, float]]:
        """(server, seconds a bit) of everything between two devices."""
        network = self.network
        source, target = network.devices[sender], network.devices[receiver]
        found = [(f"link {source.name}>{target.name}", float(network.bandwidth[sender, receiver]))]
        if source.upload is not None:
            found.append((f"uplink of {source.name}", source.upload))
        if target.download is not None:
            found.append((f"downlink of {target.name}", target.download))
        if source.region != target.region:
            if source.region in network.site_upload:
                found.append((f"uplink of {source.region}", network.site_upload[source.region]))
            if target.region in network.site_download:
                found.append((f"downlink of {target.region}", network.site_download[target.region]))
        return [(self._server(name), 1.0 / rate if rate > 0 else float("inf")) for name, rate in found]
