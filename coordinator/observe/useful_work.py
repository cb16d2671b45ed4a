"""The ledger of useful work: the samples that each node has trained, and their worth as judges scored it.

A node's samples are those that the plan gave its pipeline for the steps that it reported, so no node can claim more.
Scores are sums over the judges (membership/faults/judged.py) and have no effect here. No I/O but one file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from ...proto.process.files import write_whole
from ..membership.faults.judged import value_of
from ..store.rows import ScoreRow, WorkRow

LEDGER = "ledger.jsonl"
"""In the state folder, a line a node."""


class UsefulWork:
    """Sums since the run began; ``unsaid`` returns the rows that are not in the database yet."""

    def __init__(self, works: Iterable[WorkRow], scores: Iterable[ScoreRow]) -> None:
        self._works = {row.node: row for row in works}
        self._scores = {(row.node, row.judge): row for row in scores}
        self._new: dict[str, None] = {}
        self._judged: dict[tuple[str, str], None] = {}

    def step(self, node: str, samples: int, now: float) -> None:
        """A node has reported a step; its pipeline had ``samples`` of it."""
        old = self._works.get(node, WorkRow(node, 0, 0, now))
        self._works[node] = replace(old, samples=old.samples + samples, steps=old.steps + 1, time=now)
        self._new[node] = None

    def judged(self, judge: str, said: Mapping[str, tuple[float, float]], now: float) -> None:
        """A judge's scores ``own`` and ``held`` of some nodes' contributions to a round."""
        for node, (own, held) in said.items():
            old = self._scores.get((node, judge), ScoreRow(node, judge, 0, 0.0, 0.0, 0.0, time=now))
            value = old.score + value_of(own, held)
            new = replace(old, count=old.count + 1, own=old.own + own, held=old.held + held, score=value, time=now)
            self._scores[node, judge] = new
            self._judged[node, judge] = None

    def unsaid(self) -> tuple[list[WorkRow], list[ScoreRow]]:
        """Rows that have changed since this was last asked."""
        works, scores = [self._works[one] for one in self._new], [self._scores[one] for one in self._judged]
        self._new, self._judged = {}, {}
        return works, scores


def ledger(works: Iterable[WorkRow], scores: Iterable[ScoreRow]) -> list[dict[str, Any]]:
    """A record of each node, as ``status --json`` and the file have it.

    ``score``: the median over the judges of the mean of what each said; about 1 for a node that trains its samples,
    None where no judge has scored. ``useful_samples``: samples times the score, from 0 to 1.
    """
    said: dict[str, list[ScoreRow]] = {}
    for one in scores:
        said.setdefault(one.node, []).append(one)
    records = []
    for row in works:
        given = [one for one in said.get(row.node, ()) if one.count]
        score = median(one.score / one.count for one in given) if given else None
        judges = {
            one.judge: {"contributions": one.count, "own": one.own / one.count, "held": one.held / one.count}
            for one in given
        }
        useful = None if score is None else row.samples * max(0.0, min(1.0, score))
        records.append(
            {
                "node": row.node,
                "steps": row.steps,
                "samples": row.samples,
                "score": score,
                "useful_samples": useful,
                "judged": sum(one.count for one in given),
                "judges": judges,
            }
        )
    return records


def write_ledger(state: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Rewrite the ledger file in a run's state folder. OSError."""
    write_whole(state / LEDGER, "".join(json.dumps(record) + "\n" for record in records).encode())
