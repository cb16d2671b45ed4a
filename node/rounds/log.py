"""Sends the results of each applied round to the spares that follow this member's place, as soon as it is complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...proto import data_pb2
from ..context import ROUND
from .protocol.headers import contribution_header, result_header
from .round_link import RoundLink


class RoundLog:
    """The log of all sections of a node; the sections have the same round numbers."""

    def __init__(self, links: Mapping[str, RoundLink], send: Callable[..., None]) -> None:
        self._links, self._send = links, send
        self._wanted: dict[str, tuple[int, int]] = {}
        self._norms: dict[int, float] = {}

    def committed(self, norm: float) -> None:
        """Gradient mode: the step of the last round was taken with this global norm."""
        logs = [link.rounds.log for link in self._links.values()]
        if logs and all(logs):
            self._norms[logs[0][-1].round] = norm
            self._norms = {number: kept for number, kept in self._norms.items() if number >= logs[0][0].round}

    def request(self, sender: str, number: int, request: int) -> None:
        """``sender`` asks for a round; this replaces its earlier request. The answers carry the number ``request``."""
        self._wanted[sender] = (number, request)
        self.tick()

    def tick(self) -> None:
        """Answer the requests for rounds that are applied now."""
        applied = min((link.rounds.applied for link in self._links.values()), default=-1)
        for name, (number, request) in list(self._wanted.items()):
            if number <= applied:
                del self._wanted[name]
                self._tell(name, number, request, applied)

    def _tell(self, to: str, number: int, request: int, applied: int) -> None:
        count = 0

        def send(header: data_pb2.Header, payload: Any) -> None:
            # More urgent than pieces of a snapshot: behind seconds of these, rounds would arrive too slowly.
            self._send(to, header, payload, ROUND)

        logged = {
            name: next((one for one in link.rounds.log if one.round == number), None)
            for name, link in self._links.items()
        }
        if all(logged.values()):
            for name, one in logged.items():
                assert one is not None
                for result in one.results.values():
                    send(result_header(name, number, one.chain, result, request), result.payload)
                for (part, index), sent in one.contributions.items():
                    plain = replace(sent, signature=b"", certificate=b"")  # a spare checks only digests
                    send(contribution_header(name, number, part, 0, plain, of=index, request=request), sent.payload)
                count += len(one.results) + len(one.contributions)
        norm = self._norms.get(number, 0.0)
        end = data_pb2.RoundEnd(round=number, messages=count, applied=applied, norm=norm, request=request)
        send(data_pb2.Header(kind=data_pb2.ROUND_END, round_end=end), b"")
