"""What waits in memory while a database takes nothing: of each row the newest, and never more than fits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .engines.database import Statement

MOST = 50_000
"""Statements; some 20 MB. A step has two or three."""
ROOM = MOST // 10
"""Statements that are dropped at once, to make room."""
_INSERT = re.compile(r"insert into (\w+)")
_LESS = {"steps", "evals", "eval_sets", "warnings", "links", "work", "scores"}
"""Tables for people: without their oldest rows a run goes on as well."""


def fitting(late: Sequence[Statement], keys: Mapping[str, Sequence[str]]) -> tuple[list[Statement], int]:
    """The statements to keep, in order, at most ``MOST - ROOM`` where that many can be spared; and how many were lost.

    ``keys``: of each table the columns of its key, with which its rows begin. A row that a later one replaces is not
    lost. Views, nodes and the run's own facts are never.
    """
    newest: dict[object, Statement] = {}
    for number, (sql, values) in enumerate(late):
        found = _INSERT.match(sql)
        which: object = number
        if found and found[1] in keys:
            which = (found[1], *values[: len(keys[found[1]])])
        newest.pop(which, None)  # its place is that of the newest
        newest[which] = (sql, values)
    kept = list(newest.values())
    spare = max(0, len(kept) - (MOST - ROOM))
    gone = {at for at, (sql, _) in enumerate(kept) if spare and (found := _INSERT.match(sql)) and found[1] in _LESS}
    gone = set(sorted(gone)[:spare])
    return [one for at, one in enumerate(kept) if at not in gone], len(gone)
