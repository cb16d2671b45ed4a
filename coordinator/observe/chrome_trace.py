"""Traces of several nodes as one in Chrome's format, which Perfetto and chrome://tracing open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...proto.messages.trace import NodeTrace
from ...proto.process.files import write_whole


class Recorded(NamedTuple):
    """A node's trace, and how far its clock is ahead of the coordinator's, give or take ``error`` seconds."""

    trace: NodeTrace
    offset: float
    error: float


def merged(run: str, nodes: Mapping[str, Recorded], missing: Mapping[str, str]) -> dict[str, Any]:
    """The whole trace: a process for each node, its rows as threads, times in microseconds from the first span on.

    ``missing``: name -> why there is no trace of that node.
    """
    starts = [span.start - one.offset for one in nodes.values() for span in one.trace.spans]
    zero = min(starts, default=0.0)
    made: list[dict[str, Any]] = []
    for process, (name, one) in enumerate(sorted(nodes.items()), 1):
        made.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}})
        rows = {row: number for number, row in enumerate(sorted({span.row for span in one.trace.spans}), 1)}
        for row, number in rows.items():
            place = {"ph": "M", "pid": process, "tid": number}
            made.append({**place, "name": "thread_name", "args": {"name": row}})
            made.append({**place, "name": "thread_sort_index", "args": {"sort_index": number}})
        for span in one.trace.spans:
            since = span.start - one.offset - zero
            start, end = (
                round(since * 1e6, 1),
                round((since + span.seconds) * 1e6, 1),
            )  # so that nested spans stay nested
            event = {
                "ph": "X",
                "pid": process,
                "tid": rows[span.row],
                "name": span.name,
                "ts": start,
                "dur": round(end - start, 1),
            }
            made.append({**event, "args": {"of": span.detail}} if span.detail else event)
    exact = max((one.error for one in nodes.values()), default=0.0)
    clocks = f"each node's is within {exact * 1e3:.3g} ms of the coordinator's (half of the shortest round trip to it)"
    about = {
        "run": run,
        "clocks": f"{clocks}; two nodes', within the sum of their clock_error_ms",
        "nodes": {
            name: {
                "steps": list(one.trace.steps),
                "clock_error_ms": round(one.error * 1e3, 4),
                **({"left_out": one.trace.note} if one.trace.note else {}),
            }
            for name, one in sorted(nodes.items())
        },
        "missing": dict(missing),
    }
    return {"traceEvents": made, "displayTimeUnit": "ms", "otherData": about}


def write(path: Path, trace: dict[str, Any]) -> None:
    """Write it as JSON, whole or not at all."""
    write_whole(path, json.dumps(trace, separators=(",", ":")).encode())
