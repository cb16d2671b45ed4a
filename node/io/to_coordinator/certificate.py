"""Renews a node's certificate before it expires: open connections stay, later ones show the new certificate."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

from ....proto import control_pb2 as control
from ....proto.words.link import split_address
from ...device import identity
from ...peers.greeting import Self


class CertificateKeeper:
    """Renews the certificate of one node; ``port``: the port that it listens on."""

    def __init__(self, me: Self, key: bytes, listen: str, report: Callable[[control.Report], None]) -> None:
        """``key``: of the certificate. ``listen``: the address that the node listens on."""
        self._me, self._key, self._listen, self._report = me, key, listen, report
        self._renewed: asyncio.Future[control.Certificate] | None = None
        self.port = 0

    def take(self, certificate: control.Certificate) -> None:
        """The coordinator has sent the renewed certificate."""
        if self._renewed is not None and not self._renewed.done():
            self._renewed.set_result(certificate)

    async def keep(self, life: float) -> None:
        """Renew the certificate after two thirds of ``life`` seconds; ask again until the coordinator has answered."""
        request = identity.certificate_request(self._key, self._me.name)
        while True:
            await asyncio.sleep(life * 2 / 3)
            self._renewed = asyncio.get_running_loop().create_future()
            while not self._renewed.done():
                self._report(control.Report(renew=control.Renew(certificate_request=request)))
                await asyncio.wait([self._renewed], timeout=min(60.0, life / 12))
            renewed = self._renewed.result()
            life = renewed.life
            # For new connections; open ones stay.
            self._me.credentials = replace(self._me.credentials, certificate=renewed.certificate)
            await self._connect_to_itself()  # gRPC loads it now, not when two connections arrive at once

    async def _connect_to_itself(self) -> None:
        host, _ = split_address(self._listen)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, self.port)
            writer.close()
