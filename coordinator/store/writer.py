"""Writes statements; what the database does not take waits in memory, in order."""

from __future__ import annotations

import time

from . import late
from .engines.database import Database, Locked, NoRoom, Statement
from .rows import StepRow
from .schema import KEYS

LOCKED_AGAIN_S = 1.0
"""After that a file that another process holds is tried again."""
_MANY = 100
"""Statements that wait, from which on a full database is tried no more often than a locked one."""


class Writer:
    """``late``: the statements that wait; ``given_up``: rows for people that were lost for want of room."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.late: list[Statement] = []
        self.late_steps: list[StepRow] = []
        """Steps among them."""
        self.given_up = 0
        self.locked_until = 0.0
        """Nothing is tried until then."""
        self._locked = ""
        """Why not."""

    def write(self, *statements: Statement) -> None:
        """Write these after what waits, in one transaction; or let them wait."""
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
        """Write what had to wait. Why it still cannot be written, empty when nothing waits."""
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
        if isinstance(error, Locked) or len(self.late) > _MANY:  # all of it is sent with each try
            self._locked, self.locked_until = error.message, time.monotonic() + LOCKED_AGAIN_S
