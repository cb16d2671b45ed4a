"""Where a coordinator listens, and which address its link names."""

from __future__ import annotations

import errno
import socket

import grpc.aio

from ....proto.connections import rpc
from ....proto.errors import FarflungError
from ....proto.words.link import join_address, split_address
from ...trust.authority import Authority
from ..calls.gate import Gate
from .options import Options

_ANYWHERE = ("0.0.0.0", "::", "*")
_LOOPBACK = "127.0.0.1"


def reserve(listen: str) -> socket.socket:
    """A socket bound to the address but not listening, so that the port stays reserved while the data are read.

    gRPC starts after that, because the profile runs in a child process and gRPC does not support forking.
    """
    host, port = split_address(listen, "--listen")
    hint = "choose another with --listen HOST:PORT"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        reserved = socket.socket(family, socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise FarflungError(f"cannot listen on {listen}: {host} does not resolve: {error.strerror}", hint) from None
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(address)
    except OSError as error:
        reserved.close()
        if error.errno == errno.EADDRINUSE:
            raise FarflungError(
                f"cannot listen on {listen}: the port is taken", f"stop what listens there, or {hint}"
            ) from None
        raise FarflungError(f"cannot listen on {listen}: {(error.strerror or str(error)).lower()}", hint) from None
    return reserved


def server_on(reserved: socket.socket, listen: str, authority: Authority | None, gate: Gate) -> grpc.aio.Server:
    """A gRPC server on the reserved port, with TLS where there is an authority."""
    server = grpc.aio.server(options=rpc.server_options(), interceptors=[gate])
    credentials = None
    if authority is not None:
        credentials = rpc.coordinator_server_credentials(authority.certificate, authority.key)
    host, port = split_address(listen)[0], reserved.getsockname()[1]
    try:
        rpc.bind(server, join_address(host, port), credentials)
    except OSError as error:
        raise FarflungError(str(error), "choose another address with --listen HOST:PORT") from None
    return server


def advertised(options: Options, port: int) -> str:
    """HOST:PORT for the link: from --advertise, else the address of --listen, else this machine's own."""
    if options.advertise:
        host, wished = split_address(options.advertise, "--advertise")
        return join_address(host, wished or port)
    host, _ = split_address(options.listen, "--listen")
    return join_address(_own_address() if host in _ANYWHERE else host, port)


def reached_here(listen: str, port: int) -> str:
    """HOST:PORT by which this machine itself reaches the coordinator."""
    host = split_address(listen, "--listen")[0]
    return join_address(_LOOPBACK if host in _ANYWHERE else host, port)


def only_here(options: Options, address: str) -> str:
    """A warning when other machines can't use the link's address although the coordinator listens on all addresses;
    else empty."""
    if options.advertise or split_address(options.listen)[0] not in _ANYWHERE or split_address(address)[0] != _LOOPBACK:
        return ""
    return (
        f"the link says {_LOOPBACK}, where only this machine finds the coordinator, as it has no default route: "
        "start it with --advertise HOST:PORT"
    )


def _own_address() -> str:
    """This machine's address on its default route (nothing is sent), or loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return _LOOPBACK
