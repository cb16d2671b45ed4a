"""Writes statements; those that the database can't store now wait in memory, in order."""

from __future__ import annotations

import time

from . import late
from .engines.database import Database, Locked, NoRoom, Statement
from .rows import StepRow
from .schema import KEYS

LOCKED_AGAIN_S = 1.0
"""Seconds after which a file that another process locks is tried again."""
_MANY = 100
"""From this many waiting statements on, a full database is tried no more often than a locked one."""


class Writer:
    """``late``: the statements that wait; ``given_up``: rows for people that were lost because memory was full."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.late: list[Statement] = []
        self.late_steps: list[StepRow] = []
        """Numbers of the steps in ``late``."""
        self.given_up = 0
        self.locked_until = 0.0
        """No write is tried before this time."""
        self._locked = ""
        """Why the last write failed."""

    def write(self, *statements: Statement) -> None:
        """Write these statements after the waiting ones, in one transaction; or queue them."""
        try:
            if not (self.late and time.monotonic() < self.locked_until):
                self._database.write([*self.late, *statements])
                self.late, self.late_steps = [], []
                return
        except NoRoom as error:
            self._note(error)
        self.late += statements
        if len(self.late) > late.MOST:
            self.late, gone = late.fitting(self.late, KEYS)
            self.given_up += gone
            del self.late_steps[: -late.MOST]

    def catch_up(self) -> str:
        """Write what waits. Returns why that still fails; empty when nothing waits any more."""
        try:
            if self.late:
                if time.monotonic() < self.locked_until:
                    return self._locked
                self._database.write(self.late)
                self.late, self.late_steps = [], []
        except NoRoom as error:
            self._note(error)
            return error.message
        return ""

    def _note(self, error: NoRoom) -> None:
        if isinstance(error, Locked) or len(self.late) > _MANY:  # each try sends all of them
            self._locked, self.locked_until = error.message, time.monotonic() + LOCKED_AGAIN_S
