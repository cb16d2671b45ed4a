"""uvicorn on the coordinator's own event loop, on a socket that was bound before anything was started."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from ...proto.errors import FarflungError
from ...proto.words.link import join_address, split_address
from .patience import PatientProtocol

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 7071
_GRACE_S = 2


def bind(address: str | None) -> socket.socket:
    """A bound socket. ``address`` None: 127.0.0.1:7071, or another port of loopback where that one is taken.

    FarflungError: the address can't be bound.
    """
    host, port = split_address(address, "--page") if address else (DEFAULT_HOST, DEFAULT_PORT)
    try:
        return _bound(host, port)
    except OSError as error:
        if address is None:
            return _bound(host, 0)
        why = "the port is taken" if error.errno == errno.EADDRINUSE else (error.strerror or str(error)).lower()
        raise FarflungError(
            f"cannot show the page on {address}: {why}", "choose another address with --page, or --no-page"
        ) from None


def _bound(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def url_of(bound: socket.socket, secure: bool, advertised_host: str) -> str:
    """The page's address for a browser. A socket on every interface is reached at ``advertised_host``."""
    host, port = bound.getsockname()[:2]
    shown = advertised_host if host in ("0.0.0.0", "::") else host
    return f"http{'s' if secure else ''}://{join_address(shown, port)}/"


class _Quiet(uvicorn.Server):
    """Leaves the signals to the coordinator."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class PageServer:
    """Serves an application until ``stop``."""

    def __init__(self, app: ASGIApp, bound: socket.socket, certificate: tuple[Path, Path] | None = None) -> None:
        """``certificate``: files of the certificate and its key, for TLS."""
        files = {} if certificate is None else {"ssl_certfile": certificate[0], "ssl_keyfile": str(certificate[1])}
        self._server = _Quiet(
            uvicorn.Config(
                app,
                http=PatientProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE_S,
                **files,  # type: ignore[arg-type]
            )
        )
        self._socket = bound
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to serve; requests are answered as soon as the event loop runs."""
        self._task = asyncio.create_task(self._server.serve([self._socket]), name="web page")

    async def stop(self) -> None:
        """Answer what is being answered, close everything."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()
