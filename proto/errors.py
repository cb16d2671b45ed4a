"""Errors that a person reads.

    FarflungError       exit status 2: something that the person can change
    ├── JobError        2: the job file, or what it points to, is wrong
    ├── Unreachable     2: no coordinator answers at the given address
    ├── Refused         3: the coordinator refused (ticket, version, name, address)
    │   └── NotNow      3: it may take this node later
    └── RunFailed       4: the run started and could not be finished
        └── Parted      4: this node lost the run: it can join again

The front door prints ``error: message`` and ``hint: hint``, without a traceback, and exits with ``status``.
"""

from __future__ import annotations

OWN = (Exception, SystemExit)
"""What code of a person's own may raise at a call: ``sys.exit()`` in it must name that code, as any error does."""


class FarflungError(Exception):
    """What happened and where (``message``), what to type or change next (``hint``), and the exit ``status``."""

    status = 2

    def __init__(self, message: str, hint: str = "", status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if status is not None:
            self.status = status

    @property
    def told(self) -> str:
        """The error as one string, for a reply: a line for the message, then one for the hint."""
        return f"{self.message}\n{self.hint}"

    @classmethod
    def of(cls, told: str) -> FarflungError:
        """The error from the string that ``told`` made, as an instance of this class."""
        message, _, hint = told.partition("\n")
        return cls(message, hint)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class JobError(FarflungError):
    """The job file, or a file that it names, is wrong."""

    status = 2


class Unreachable(FarflungError):
    """No coordinator answers at the given address. A first join ends with this; a node that was in the run waits."""


class Refused(FarflungError):
    """The coordinator refused a node or a command."""

    status = 3


class NotNow(Refused):
    """The coordinator refused a node for a reason that may pass. A first join ends with this; a node that was in the
    run asks again."""


class RunFailed(FarflungError):
    """The run failed after it had started."""

    status = 4


class Parted(RunFailed):
    """This node and the run have lost each other; the run goes on, and the node joins again under its key."""
