"""The web page of a live run: its data, its addresses, its start and stop."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..observe.history import History
from ..observe.metrics import Counts, registry_of, text_of
from ..run.people.commands import KINDS, Command
from ..run.run import Run
from ..store.rows import ViewRow
from .access import load_tokens, write_scrape
from .app import Page, make_app
from .feed import Feed
from .server import PageServer, url_of

LINK_S = 24 * 3600.0
"""Seconds for which a join line of the page admits nodes; the page makes a new one after half of that."""


class RunSource:
    """The page's Source for a run."""

    def __init__(self, run: Run, state: Path) -> None:
        self._run, self._state = run, state

    @property
    def history(self) -> History:
        return self._run.steps.history

    def record(self) -> dict[str, Any]:
        """The status record."""
        return self._run.status(self._state)

    def views(self) -> Sequence[ViewRow]:
        """All views, oldest first."""
        return self._run.context.store.views.all()

    def commands(self) -> Sequence[str]:
        """The commands that may be given now: names from ``commands.KINDS``."""
        return () if self._run.is_over else KINDS


class RunPage:
    """The web page and the metrics of one run, from ``start`` to ``stop``."""

    def __init__(
        self,
        run: Run,
        state: Path,
        bound: socket.socket,
        certificate: tuple[Path, Path] | None,
        *,
        run_id: str,
        advertised_host: str,
        counts: Counts,
        make_link: Callable[[float], str],
        proved: Callable[[tuple[str, int] | None], None] = lambda end: None,
    ) -> None:
        """``bound``: server.bind's socket; ``certificate``: for TLS; ``make_link(seconds)``: a new link for nodes.
        ``proved(end)``: the connection with this far end has shown a token."""
        self._make_link, self._link, self._link_made = make_link, "", 0.0
        self._closing = asyncio.Event()
        self._run = run
        tokens = load_tokens(state, run_id)
        write_scrape(state, tokens.viewer, certificate)
        feed = Feed(RunSource(run, state))
        registry = registry_of(lambda: feed.record, counts, run.steps.observed)
        secure = certificate is not None
        page = Page(
            tokens,
            feed,
            self._join_line,
            self._command,
            lambda: text_of(registry),
            self._closing,
            secure=secure,
            proved=proved,
        )
        url = url_of(bound, secure, advertised_host)
        self.url, self.viewer_url = f"{url}#{tokens.operator}", f"{url}#{tokens.viewer}"
        self._server = PageServer(make_app(page), bound, certificate)

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()

    async def stop(self) -> None:
        """Tell all viewers that the run has ended, and close."""
        self._closing.set()
        await self._server.stop()

    def _join_line(self) -> str:
        if time.time() - self._link_made > LINK_S / 2:
            self._link, self._link_made = self._make_link(LINK_S), time.time()
        return f"farflung join {self._link}"

    async def _command(self, command: str, node: str, argument: str) -> str:
        return await self._run.operator.commanded(Command(command, node, argument, by="the operator's page"))


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    return ipaddress.ip_address(bound.getsockname()[0]).is_loopback
