"""Tells each node how it does, now and then, when that has changed."""

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
"""Between two rounds of advice."""
NODES = 200
"""With more nodes it is given more rarely: with five times as many, five times as rarely."""


class Advising:
    """``status()``: the run's status, which is what advice is made of."""

    def __init__(self, streams: Streams, status: Callable[[], dict[str, Any]], clock: Callable[[], float]) -> None:
        self._streams, self._status, self._clock = streams, status, clock
        self._at = -math.inf
        self._said: dict[str, pb.Advice] = {}
        """Session -> what it was told last."""

    def advise(self) -> None:
        """Tell whoever has not heard it yet, if it is time."""
        now = self._clock()
        if now - self._at < max(EVERY_S, EVERY_S * len(self._streams) / NODES):
            return
        self._at = now
        try:
            record = self._status()
            known = seen(record)
        except Exception:  # whatever it is, training does not end for want of good advice
            log.exception("no advice for the nodes")
            return
        for stream in self._streams.all():
            found = pb.Advice(**told(record, stream.name, known))
            if self._said.get(stream.session) != found:
                self._said[stream.session] = found
                self._streams.say(pb.Order(notice=pb.Notice(advice=found)), stream)
        self._said = {one.session: self._said[one.session] for one in self._streams.all()}
