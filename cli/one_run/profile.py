"""``farflung profile``: asks the coordinator for the nodes' traces, and writes them as one."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...coordinator.observe.chrome_trace import Recorded, merged, write
from ...proto.control_pb2 import ProfilePart
from ...proto.errors import Refused, RunFailed
from ...proto.messages.trace import BadTrace, unpack
from ...proto.words.fields import checked
from ..screen.output import Output

VIEWER = "https://ui.perfetto.dev"


def collect(output: Output, run: str, parts: Iterable[ProfilePart], path: Path) -> dict[str, Any]:
    """Merge the parts into one trace and write it. Returns a record of it. Refused, or RunFailed where no node sent a
    trace."""
    nodes: dict[str, Recorded] = {}
    missing: dict[str, str] = {}
    for part in parts:
        if checked(part).refused:
            raise Refused.of(part.refused)
        if part.told:
            output.note(part.told)
        elif part.missing:
            missing[part.node] = part.missing
            output.note(f"{part.node} is missing: {part.missing}", "warning")
        else:
            try:
                nodes[part.node] = Recorded(unpack(part.trace), part.offset, part.error)
            except BadTrace as problem:
                missing[part.node] = problem.message
    if not nodes:
        why = "; ".join(f"{name}: {why}" for name, why in missing.items()) or "the coordinator sent nothing"
        raise RunFailed(f"there is no trace: {why}", "farflung status says what the nodes do")
    write(path, merged(run, nodes, missing))
    return {
        "path": str(path),
        "nodes": {name: list(one.trace.steps) for name, one in nodes.items()},
        "missing": missing,
        "clock_error_s": max(one.error for one in nodes.values()),
        "viewer": VIEWER,
    }


def default_path(state: str) -> Path:
    """A path that does not exist yet, in the run's folder or the working folder."""
    name = time.strftime("trace-%Y%m%d-%H%M%S.json")
    return Path(state) / name if Path(state).is_dir() else Path(name)


def sentences(found: dict[str, Any]) -> str:
    """A trace in sentences for people."""
    steps = [
        f"{name}: {f'steps {done[0]} to {done[-1]}' if done else 'no whole step'}"
        for name, done in found["nodes"].items()
    ]
    missing = [f"missing: {name}, {why}" for name, why in found["missing"].items()]
    exact = f"clocks exact to {found['clock_error_s'] * 1e3:.2g} ms"
    return "\n".join([*steps, *missing, exact, f"wrote {found['path']}; open it at {found['viewer']}"])
