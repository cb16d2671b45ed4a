"""Statements that wait in memory while a database can't be written: of each row the newest, up to a limit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .engines.database import Statement

MOST = 50_000
"""Most waiting statements; about 20 MB. A step has two or three."""
ROOM = MOST // 10
"""Statements that are dropped together, to make room."""
_INSERT = re.compile(r"insert into (\w+)")
_LESS = {"steps", "evals", "eval_sets", "warnings", "links", "work", "scores"}
"""Tables that only people read: a run does not need their oldest rows."""


def fitting(late: Sequence[Statement], keys: Mapping[str, Sequence[str]]) -> tuple[list[Statement], int]:
    """(the statements to keep, in order; the number of lost rows). At most ``MOST - ROOM`` are kept, if enough of them
    may be dropped.

    ``keys``: table -> the columns of its key, which are the first of its rows. A row that a later one replaces does not
    count as lost. Rows of views, nodes and meta are never dropped.
    """
    newest: dict[object, Statement] = {}
    for number, (sql, values) in enumerate(late):
        found = _INSERT.match(sql)
        which: object = number
        if found and found[1] in keys:
            which = (found[1], *values[: len(keys[found[1]])])
        newest.pop(which, None)  # it moves to the newest statement's place
        newest[which] = (sql, values)
    kept = list(newest.values())
    spare = max(0, len(kept) - (MOST - ROOM))
    gone = {at for at, (sql, _) in enumerate(kept) if spare and (found := _INSERT.match(sql)) and found[1] in _LESS}
    gone = set(sorted(gone)[:spare])
    return [one for at, one in enumerate(kept) if at not in gone], len(gone)
