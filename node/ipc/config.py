"""The settings that a node's I/O process gets at its start."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...proto import PROTOCOL
from ...proto.connections import rpc


@dataclass(frozen=True)
class WireConfig:
    """Settings of the I/O process; `join` makes them (`Joined.config`)."""

    run: str
    name: str
    session: str
    secret: str = field(default="", repr=False)
    coordinator: str = ""  # HOST:PORT; empty: no control stream (tests)
    listen: str = "0.0.0.0:0"
    dials_out: bool = False  # nobody can dial this node: it opens the streams of both directions
    authority: bytes = b""  # PEM; empty: insecure
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    pinned: bytes = b""  # the coordinator's certificate
    protocol: int = PROTOCOL  # the protocol number of the run
    certificate_life: float = 0.0  # seconds from the start until it expires; 0: it is not renewed
    heartbeat: float = 1.0  # seconds
    max_upload: float = 0.0  # bits a second, 0 for no limit
    send_limit: int = 2 << 30  # bytes that may wait for the network; beyond that `send` blocks
    receive_limit: int = 1 << 30  # bytes that may wait for the trainer; beyond that no stream is read
    probe_patience: float = 5.0  # seconds in which a measured link must connect or answer
    metrics: str = ""  # HOST:PORT where Prometheus may ask; empty: nowhere
    patience: float = 120.0  # seconds without progress after which a fetch or store gives up

    @property
    def credentials(self) -> rpc.Credentials:
        return rpc.Credentials(self.authority, self.certificate, self.key, self.pinned)
