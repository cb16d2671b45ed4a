"""What the owner of this machine wants its node to do other than train: pause, end after some hours, leave on
SIGTERM."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TERM_SECONDS = 15.5
"""Seconds after SIGTERM for the last contribution and the round that takes it; the view change needs the rest of 20
s."""
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Wish:
    """The owner's wish that the node has no place in the run: it ``stays`` as a spare, or leaves. ``why`` continues the
    sentence "NAME is ...". ``seconds``: how long the node waits for a round that takes its last contribution."""

    why: str
    stays: bool = False
    seconds: float = 60.0


@dataclass(frozen=True)
class Limits:
    """The most that the node may use; 0: no limit. upload: bit/s; memory, disk: bytes; hours: from the process
    start."""

    upload: float = 0.0
    memory: int = 0
    disk: int = 0
    hours: float = 0.0


class Owner:
    """The owner's present wish, and the limits.

    Args:
        pause_file: the node pauses while this file exists.
        offload_folder: where the moments lie that a job offloads; None: in main memory.
    """

    def __init__(
        self,
        pause_file: Path | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        offload_folder: Path | None = None,
    ) -> None:
        self.limits, self.offload_folder = limits or Limits(), offload_folder
        self._pause_file, self._clock = pause_file, clock
        self._began = self._looked = clock()
        self._file_there = pause_file is not None and pause_file.exists()
        self.paused = False
        """Toggled by SIGUSR1."""
        self.taken_away = False
        """SIGTERM has come."""
        self.listens = False
        """Whether a trainer polls `wish`; then SIGTERM need not interrupt anything."""

    def wish(self) -> Wish | None:
        """What the owner wants now; None: that it trains. Looks for the file at most twice a second."""
        now = self._clock()
        if self.taken_away:
            return Wish("being taken away with its machine (SIGTERM)", seconds=TERM_SECONDS)
        hours = self.limits.hours
        if hours and now - self._began > 3600 * hours:
            return Wish(f"leaving: its owner gave it {hours:g} hours")
        if self._pause_file is not None and now - self._looked >= _LOOK_SECONDS:
            self._looked, self._file_there = now, self._pause_file.exists()
        if self._file_there:
            return Wish(f"paused by its owner: {self._pause_file} exists", stays=True)
        if self.paused:
            return Wish("paused by its owner (SIGUSR1)", stays=True)
        return None
