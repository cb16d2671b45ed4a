"""Steps: what each trained and sent, and the sums over all of them."""

from __future__ import annotations

from ..connection import Connection
from ..rows import StepRow
from ..sums import Sums
from .views import ViewRows


class StepRows:
    """All steps of the run that count: a view that goes back deletes those after its first."""

    def __init__(self, connection: Connection, sums: Sums, views: ViewRows) -> None:
        self._connection, self._sums, self._views = connection, sums, views

    def put(self, row: StepRow) -> None:
        """Store a step; a step trained again replaces the earlier one."""
        writer = self._connection.writer
        with self._sums.adding(row):
            self._connection.put([row])
            if writer.late:
                writer.late_steps.append(row)

    def all(self) -> list[StepRow]:
        """All steps, in order."""
        return self._connection.by_step(StepRow, None)

    def newest(self, last: int) -> list[StepRow]:
        """The newest ``last`` steps, in order."""
        return self._connection.by_step(StepRow, last)

    def curve(self, points: int) -> list[tuple[int, int, int, float, int, float, int, int]]:
        """All steps in about ``points`` rows at most; each row merges the same number of neighbouring steps.

        A row: last step, number of steps, number of steps with a loss, and the sums of loss, tokens, seconds, bytes
        sent (updates and activations), and the bytes that fp16 would have sent.
        """
        last = self._connection.read("select coalesce(max(step), 0) from steps")[0][0]
        width = max(1, -(-int(last) // points))
        rows = self._connection.read(
            "select max(step), count(*), count(loss), coalesce(sum(loss), 0), sum(tokens * 1.0), sum(seconds), "
            "sum(bytes_updates * 1.0) + sum(bytes_activations * 1.0), sum(bytes_dense * 1.0) "
            f"from steps group by step / {width} order by 1"
        )
        kinds = (int, int, int, float, int, float, int, int)
        return [tuple(kind(value) for kind, value in zip(kinds, row, strict=True)) for row in rows]  # type: ignore[misc]

    def totals(self) -> dict[str, int]:
        """Sums over all steps: steps, samples, tokens and the byte counters."""
        return self._sums.now(self._views.begun)

    def bytes_until(self, step: int) -> tuple[int, int]:
        """(sent, in fp16): bytes of updates and activations of all steps up to this one."""
        query = (
            "select coalesce(sum(bytes_updates * 1.0 + bytes_activations * 1.0), 0), "
            "coalesce(sum(bytes_dense * 1.0), 0) from steps where step <= ?"
        )
        sent, dense = self._connection.read(query, (step,))[0] if step > 0 else (0, 0)
        return int(sent), int(dense)
