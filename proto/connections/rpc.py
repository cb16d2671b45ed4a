"""gRPC as farflung uses it: options, credentials, metadata and the one method between nodes.

Every channel and server is made here, so that limits, keepalive and trust are the same everywhere.
The values and their reasons: messages are bounded (bulk travels in chunks), pings are frequent enough
to notice a vanished host and the server allows exactly those pings (a default server ends the
connection with "too many pings"), and a port that is taken is an error instead of being shared.

Trust
    coordinator   serves TLS with a certificate that is no CA and signed by itself. Callers trust it and nothing else
                  (`coordinator_channel`), so no other can be shown to them, on whichever connection.
    node          serves mutual TLS with its own certificate; a peer is verified against the CA of nodes, and its
                  certificate must be that of its very name (`peer_channel`, `peer_server_credentials`, `is_peer`).
    insecure      `authority` empty: no TLS anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from .. import control_pb2_grpc
from ..words import names
from ..words.border import printable
from .patience import patience

CHUNK = 1 << 20
"""Bytes of payload in one message of a bulk transfer."""

MESSAGE_LIMIT = 8 << 20
"""Bytes of the largest gRPC message that either side accepts."""

SILENCE_S, CONNECT_S = 10.0, 20.0
"""Seconds until a ping counts as unanswered, and seconds that one attempt to connect may take, on a near link; on a far
one patience.py adds round trips."""
FARTHEST_S = 2.0
"""The round-trip time in seconds that a server assumes for its callers: a satellite's."""

PEER_SERVICE = "farflung.Peer"
PEER_METHOD = "/farflung.Peer/Exchange"
"""The generic bidirectional stream of bytes between two nodes (frames of proto.messages.frame)."""

SESSION_KEY = "farflung-session"
TICKET_KEY = "farflung-ticket"
_BY_TICKET = ("Join", "Status", "Command", "Profile", "Generate")
COORDINATOR_NAME = "coordinator"
"""DNS name in the coordinator's certificate, whatever its address is."""

Options = list[tuple[str, Any]]

CoordinatorServicer = control_pb2_grpc.CoordinatorServicer
add_CoordinatorServicer_to_server = control_pb2_grpc.add_CoordinatorServicer_to_server
CoordinatorStub = control_pb2_grpc.CoordinatorStub


@dataclass(frozen=True)
class Credentials:
    """The certificates that one side shows and trusts, all PEM. All empty: no TLS."""

    authority: bytes = b""  # the certificate of the nodes' CA
    certificate: bytes = b""  # this node's, signed by the CA
    key: bytes = field(default=b"", repr=False)
    pinned: bytes = b""  # the coordinator's own certificate

    @property
    def secure(self) -> bool:
        return bool(self.authority)


# ---- options -------------------------------------------------------------------------------


def _common_options(round_trip_s: float = 0.0) -> Options:
    # A lost packet over a satellite, round trip 2 s, costs 6 s. Only clients know the round trip to the other end.
    silence = round(1e3 * patience(SILENCE_S, round_trip_s))
    return [
        ("grpc.max_send_message_length", MESSAGE_LIMIT),
        ("grpc.max_receive_message_length", MESSAGE_LIMIT),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", silence),
        ("grpc.keepalive_permit_without_calls", 1),
        # keepalive_timeout acts through TCP; this is for a stopped process or a middlebox, whose kernel still answers.
        # It is longer, because a ping waits behind the queue of a slow uplink.
        ("grpc.http2.ping_timeout_ms", silence),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def channel_options(target_name: str | None = None, round_trip_s: float = 0.0) -> Options:
    """Options of a client channel. `target_name`: the name that the server's certificate must have; `round_trip_s`: the
    round-trip time to the server, 0: not known."""
    options = [
        *_common_options(round_trip_s),
        ("grpc.use_local_subchannel_pool", 1),  # channels share no connections
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 3_000),
        # In spite of its name, this is the time that one attempt to connect may take: TCP and TLS need 3 round trips.
        ("grpc.min_reconnect_backoff_ms", round(1e3 * patience(CONNECT_S, round_trip_s))),
        ("grpc.enable_http_proxy", 0),
    ]
    if target_name is not None:
        options.append(("grpc.ssl_target_name_override", target_name))
    return options


def server_options() -> Options:
    """Options of a server: as many pings as our clients send, bounded streams, no shared port."""
    return [
        *_common_options(),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_concurrent_streams", 128),
        # Time for TCP, TLS and the first frame of HTTP/2, even from the farthest client. A connection without calls is
        # ended after a minute; its client dials again.
        ("grpc.server_handshake_timeout_ms", round(1e3 * patience(SILENCE_S, FARTHEST_S))),
        ("grpc.max_connection_idle_ms", 60_000),
        ("grpc.so_reuseport", 0),
    ]


# ---- credentials ---------------------------------------------------------------------------


def coordinator_server_credentials(certificate: bytes, key: bytes) -> grpc.ServerCredentials:
    """Server-side TLS: the coordinator proves itself by its certificate, callers prove themselves by metadata. PEM."""
    return grpc.ssl_server_credentials([(key, certificate)])


def peer_server_credentials(present: Callable[[], Credentials]) -> grpc.ServerCredentials:
    """Mutual TLS: only certificates that the CA signed get through the handshake.

    ``present`` is called when a connection begins, so that a renewed certificate is shown from the next connection on.
    gRPC is given a configuration only if it changed, because a change during another handshake would crash it.
    """
    shown = present()

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        now = present()
        if now is shown:
            return None
        shown = now
        return _server_certificate(now)

    fetch: Any = renewed  # its None is documented, and missing in the stubs
    return grpc.dynamic_ssl_server_credentials(_server_certificate(shown), fetch, require_client_authentication=True)


def _server_certificate(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    pair = (credentials.key, credentials.certificate)
    return grpc.ssl_server_certificate_configuration([pair], credentials.authority)


def bind(server: grpc.aio.Server | grpc.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """Opens HOST:PORT (port 0: any free one), with TLS if credentials are given, and returns the port.

    Raises OSError when the address cannot be bound.
    """
    try:
        port = (
            server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
        )
    except RuntimeError as error:  # what newer grpc raises
        raise OSError(f"cannot listen on {address}: {error}") from error
    if port == 0:  # what older grpc returns
        raise OSError(f"cannot listen on {address}")
    return int(port)


def coordinator_channel(address: str, pinned: bytes, round_trip_s: float = 0.0) -> grpc.aio.Channel:
    """An asyncio channel to the coordinator; `pinned` is its certificate in PEM, empty for insecure."""
    if not pinned:
        return grpc.aio.insecure_channel(address, options=channel_options(round_trip_s=round_trip_s))
    trust = grpc.ssl_channel_credentials(pinned)
    return grpc.aio.secure_channel(address, trust, options=channel_options(COORDINATOR_NAME, round_trip_s))


def blocking_coordinator_channel(address: str, pinned: bytes) -> grpc.Channel:
    """As `coordinator_channel`, for code without an event loop: join, status, and a person's commands."""
    if not pinned:
        return grpc.insecure_channel(address, options=channel_options())
    trust = grpc.ssl_channel_credentials(pinned)
    return grpc.secure_channel(address, trust, options=channel_options(COORDINATOR_NAME))


def peer_channel(address: str, peer: str, credentials: Credentials, round_trip_s: float = 0.0) -> grpc.aio.Channel:
    """An asyncio channel to the node `peer`, whose certificate must be for that name."""
    if not credentials.secure:
        return grpc.aio.insecure_channel(address, options=channel_options(round_trip_s=round_trip_s))
    trust = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)
    return grpc.aio.secure_channel(address, trust, options=channel_options(names.dns_name(peer), round_trip_s))


def coordinator_stub(channel: grpc.aio.Channel | grpc.Channel) -> Any:
    """The coordinator's methods on a channel; untyped, because one stub serves both kinds of channel.

    The ticket of a request is sent in the call's metadata too, so that the server can check it before it reads the
    message.
    """
    stub: Any = CoordinatorStub(channel)
    for name in _BY_TICKET:
        setattr(stub, name, _showing_its_ticket(getattr(stub, name)))
    return stub


def _showing_its_ticket(method: Any) -> Any:
    def call(request: Any, *, metadata: Sequence[tuple[str, str]] | None = None, **keys: Any) -> Any:
        return method(request, metadata=(*(metadata or ()), *ticket_metadata(request.ticket)), **keys)

    return call


# ---- metadata ------------------------------------------------------------------------------


def session_metadata(name: str, session: str, secret: str) -> tuple[tuple[str, str], ...]:
    """Metadata by which a node proves itself to the coordinator in every call after Join."""
    return ((SESSION_KEY, f"{name} {session} {secret}"),)


def ticket_metadata(ticket: str) -> tuple[tuple[str, str], ...]:
    """Metadata by which a call shows its ticket; empty if the text cannot be a ticket."""
    return ((TICKET_KEY, ticket),) if ticket.isascii() and ticket.isprintable() and ticket else ()


def parse_ticket(metadata: Sequence[tuple[str, str | bytes]] | None) -> str | None:
    """The ticket in a call's `context.invocation_metadata()`; None: it has none."""
    return next((str(value) for key, value in metadata or () if key == TICKET_KEY), None)


def no_session(found: tuple[str, str, str] | None) -> str:
    """The sentence with which a call without a valid session ends (`parse_session`)."""
    return f"the session of {found[0] if found else 'a caller without session'} is over; join again"


def parse_session(metadata: Sequence[tuple[str, str | bytes]] | None) -> tuple[str, str, str] | None:
    """(name, session, secret) in a call's `context.invocation_metadata()`; None: it has none."""
    for key, value in metadata or ():
        if key == SESSION_KEY and isinstance(value, str):
            parts = value.split(" ")
            if len(parts) == 3 and all(parts):
                return parts[0], parts[1], parts[2]
    return None


# ---- the method between nodes --------------------------------------------------------------

BROKEN = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""What a read or write on a stream raises when the other side is gone (a write may raise any of them)."""


def why_broken(error: BaseException) -> str:
    """Why a stream ended, in few words, e.g. "Connection refused (111)"."""
    if isinstance(error, grpc.aio.AioRpcError):
        last = (error.details() or "").strip().rstrip("]").split(": ")[-1]
        return printable(last) or error.code().name
    return printable(str(error)) or type(error).__name__


END: Any = grpc.aio.EOF  # type: ignore[attr-defined, unused-ignore]
"""What `read()` returns at the end of a stream, also of one whose sender was killed."""

PeerCall = Any  # grpc.aio.StreamStreamCall[bytes, bytes]
PeerContext = Any  # grpc.aio.ServicerContext[bytes, bytes]


def peer_method(channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...] = ()) -> PeerCall:
    """The client's end of PEER_METHOD: an open stream with write(bytes) and read() -> bytes.

    metadata: `session_metadata`, where the other end is the coordinator.
    """
    identity: Any = None  # no serialisers: bytes go through as they are
    method = channel.stream_stream(PEER_METHOD, request_serializer=identity, response_deserializer=identity)
    return method(None, metadata=metadata or None)


def peer_handler(serve: Callable[[PeerContext], Awaitable[None]]) -> grpc.GenericRpcHandler[bytes, bytes]:
    """The server's end: `serve(context)` uses `context.read()` and `context.write()` until it returns."""

    async def exchange(_: object, context: PeerContext) -> None:
        await serve(context)

    handler = grpc.stream_stream_rpc_method_handler(exchange)
    return grpc.method_handlers_generic_handler(PEER_SERVICE, {"Exchange": handler})


def is_peer(context: PeerContext, name: str) -> bool:
    """Whether the caller's certificate is that of the node with this name; False without TLS."""
    found = context.auth_context().get("x509_subject_alternative_name", ())
    return names.dns_name(name).encode() in found
