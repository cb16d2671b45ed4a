"""Records the membership machine's events as they happen: a folder of compressed files, the newest 64 MiB of them.

A file begins with the machine's state and has a line for each event: the event, its time, the measurements that the
machine read while it decided, and the result. So every file can be run again alone. No secret of a run is an input of
the machine; names and addresses of nodes are, as in the database.
"""

from __future__ import annotations

import json
import logging
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..membership import signals as s
from ..membership.state import Known, Patience, State
from .kinds import VALUES, effect_text, event_plain

log = logging.getLogger(__name__)

FOLDER = "events"
VERSION = 1
SEGMENT_BYTES, KEPT_BYTES = 8 << 20, 64 << 20
"""Bytes of one file, after which the next begins; and of all files, beyond which the oldest are deleted."""
WRITE_S = 1.0
"""Seconds for which events wait in memory; the last ones before a coordinator is killed are missing in the
recording."""
AGAIN_S = 60.0
"""Seconds after a failed write until another file is begun."""
_LEVEL = 3


class Readings:
    """The measurements that the machine reads while it decides an event, in order; they are recorded with the event."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, float]] = []

    def known(self, known: Known) -> Known:
        """The function, such that each value that it returns is remembered."""
        trips, rates, steps = known.round_trip_s, known.rate_bps, known.step_s
        return Known(
            self._read("round trip", trips),
            self._read("rate", rates),
            self._read("step", steps),
            self._read("slowest", known.slowest_bps),
        )

    def fetch_s(self, fetch_s: Patience) -> Patience:
        """The function, such that each value that it returns is remembered."""
        return self._read("fetch", fetch_s)

    def _read(self, what: str, of: Callable[..., float]) -> Callable[..., float]:
        def read(*about: Any) -> float:
            value = of(*about)
            self.taken.append((what, value))
            return value

        return read


class Recorder:
    """``folder``: made when the first event comes. ``life``: the coordinator's term; ``follow``: as the machine's."""

    def __init__(self, folder: Path, life: int, follow: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.readings = Readings()
        self._folder, self._life, self._follow, self._clock = folder, life, follow, clock
        self._lines: list[str] = []
        self._number, self._size = 0, 0
        self._file: Path | None = None
        self._packer = zlib.compressobj(_LEVEL)
        self._next = self._again = 0.0

    def note(self, before: State, event: s.Input, now: float, after: State, effects: list[s.Effect], why: str) -> None:
        """An event was decided."""
        changed = (after.phase, after.number) != (before.phase, before.number)
        line: dict[str, Any] = {"at": now, "is": event_plain(event)}
        if effects:
            line["made"] = [effect_text(effect) for effect in effects]
        if changed:
            line["to"] = [after.phase, after.number]
        if why:
            line["why"] = why
        self._add(before, line)

    def broke(self, before: State, event: s.Input, now: float, error: Exception) -> None:
        """An event could not be decided: it changed nothing."""
        self._add(before, {"at": now, "is": event_plain(event), "broke": type(error).__name__})

    def write(self) -> None:
        """What is due, to the disk."""
        now = self._clock()
        if self._lines and now >= self._next:
            self._next = now + WRITE_S
            self._write(now)

    def close(self) -> None:
        """All that is not written yet."""
        if self._lines:
            self._write(self._clock())

    def _add(self, before: State, line: dict[str, Any]) -> None:
        if taken := self.readings.taken:
            line["read"] = list(taken)
            taken.clear()
        if self._file is None:
            if self._clock() < self._again:
                return
            self._begin(before)
        self._lines.append(json.dumps(line, separators=(",", ":")))

    def _begin(self, state: State) -> None:
        self._number, self._size = self._number + 1, 0
        self._file = self._folder / f"{self._life:06}-{self._number:06}.z"
        self._packer = zlib.compressobj(_LEVEL)
        head = {"version": VERSION, "follow": self._follow, "state": VALUES.plain(state), "events": state.events}
        self._lines = [json.dumps(head, separators=(",", ":"))]

    def _write(self, now: float) -> None:
        assert self._file is not None
        text, self._lines = "\n".join([*self._lines, ""]), []
        data = self._packer.compress(text.encode()) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                file.write(data)
            self._size += len(data)
            if self._size >= SEGMENT_BYTES:
                self._file = None
                self._forget()
        except OSError as error:
            log.warning("what happens is not recorded in %s: %s; it is tried again", self._folder, error)
            self._file, self._again = None, now + AGAIN_S

    def _forget(self) -> None:
        """The oldest files, beyond what is kept."""
        files = sorted(self._folder.glob("*.z"))
        sizes = [file.stat().st_size for file in files]
        while len(files) > 1 and sum(sizes) > KEPT_BYTES:
            files.pop(0).unlink()
            sizes.pop(0)
