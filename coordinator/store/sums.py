"""Sums over all steps of a run, read from the rows once and kept up to date from then on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from .engines.database import Database
from .rows import StepRow
from .schema import SUMMED
from .writer import Writer


class Sums:
    """Steps, samples, tokens and the byte counters of a run. Not thread safe, as the store is not."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database, self._writer = database, writer
        self._known: tuple[int, dict[str, int]] | None = None
        """(the last step, the sums up to it), after the first question; None before."""

    def forget(self) -> None:
        """Rows may have been deleted or written by another process: the next question reads all rows."""
        self._known = None

    @contextlib.contextmanager
    def adding(self, row: StepRow) -> Iterator[None]:
        """Encloses the writing of a step and then adds its numbers. If the step replaces an earlier one, or the write
        fails, the next question reads all rows."""
        known, self._known = self._known, None
        yield
        if known is not None and row.step > known[0]:
            sums = {name: known[1][name] + getattr(row, name) for name in SUMMED}
            self._known = row.step, {"steps": known[1]["steps"] + 1, **sums}

    def now(self, newest: Callable[[], tuple[int, int] | None]) -> dict[str, int]:
        """The sums. ``newest``: (the step after which the newest view began, the samples that its weights have seen).
        After going back to a checkpoint, some samples of earlier steps are not in the weights and are trained again.
        """
        if self._known is None:
            sums = ", ".join(f"coalesce(sum({name} * 1.0), 0)" for name in SUMMED)  # sums of integers would overflow
            last, *found = self._database.read(f"select coalesce(max(step), 0), count(*), {sums} from steps")[0]
            totals = dict(zip(("steps", *SUMMED), map(int, found), strict=True))
            if begun := newest():
                query = "select coalesce(sum(samples * 1.0), 0) from steps where step > ?"
                totals["samples"] = begun[1] + int(self._database.read(query, (begun[0],))[0][0])
            if self._writer.late:
                for row in self._writer.late_steps:
                    if row.step > last:
                        totals["steps"] += 1
                        totals.update({name: totals[name] + getattr(row, name) for name in SUMMED})
                return totals
            self._known = int(last), totals
        return dict(self._known[1])
