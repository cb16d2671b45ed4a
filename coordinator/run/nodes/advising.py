"""Sends each node its advice from time to time, when it has changed."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from ....proto import control_pb2 as pb
from ...observe.advice import seen, told
from .streams import Streams

log = logging.getLogger(__name__)

EVERY_S = 10.0
"""Seconds between two rounds of advice."""
NODES = 200
"""Above this many nodes the interval grows in proportion to their number."""


class Advising:
    """``status()`` returns the run's status record, from which advice is computed."""

    def __init__(self, streams: Streams, status: Callable[[], dict[str, Any]], clock: Callable[[], float]) -> None:
        self._streams, self._status, self._clock = streams, status, clock
        self._at = -math.inf
        self._said: dict[str, pb.Advice] = {}
        """Session -> the advice that it was sent last."""

    def advise(self) -> None:
        """Send new advice to the nodes, if it is time."""
        now = self._clock()
        if now - self._at < max(EVERY_S, EVERY_S * len(self._streams) / NODES):
            return
        self._at = now
        try:
            record = self._status()
            known = seen(record)
        except Exception:  # training must not end because advice fails
            log.exception("no advice for the nodes")
            return
        for stream in self._streams.all():
            found = pb.Advice(**told(record, stream.name, known))
            if self._said.get(stream.session) != found:
                self._said[stream.session] = found
                self._streams.say(pb.Order(notice=pb.Notice(advice=found)), stream)
        self._said = {one.session: self._said[one.session] for one in self._streams.all()}
