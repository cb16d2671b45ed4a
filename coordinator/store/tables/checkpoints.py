"""Checkpoints: which are complete, and where."""

from __future__ import annotations

from ..connection import Connection
from ..rows import CheckpointRow


class CheckpointRows:
    """The rows of the complete checkpoints that are kept. coordinator/checkpoints has the files."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(self, row: CheckpointRow) -> None:
        """Note a complete checkpoint."""
        self._connection.put([row])

    def all(self) -> list[CheckpointRow]:
        """Complete checkpoints that are kept, oldest first."""
        return self._connection.rows(CheckpointRow, "order by step")

    def forget(self, step: int) -> None:
        """Note that a checkpoint was removed."""
        self._connection.write(("delete from checkpoints where step = ?", (step,)))
