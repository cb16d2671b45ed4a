"""What only a running coordinator knows of each node, for ``status``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..membership.state import State
from .judging.verdicts import Verdicts
from .nodes.attendance import Live
from .nodes.streams import Streams


def live_status(
    state: State,
    streams: Streams,
    live: Mapping[str, Live],
    verdicts: Verdicts,
    observed: Mapping[str, Mapping[str, Any]],
    now: float,
) -> dict[str, dict[str, Any]]:
    """A record for each node that is in. ``live``: from their heartbeats; ``observed``: from their reports of steps."""
    silent = Live()
    return {
        name: {
            "attending": name in streams,
            "heard_s": round(now - node.heard, 1),
            "refused": verdicts.refusals.of((name, node.session)),
            "score": verdicts.judged.score(name),
            "doing": live.get(name, silent).doing,
            "trainer_age": round(live.get(name, silent).trainer_age, 1),
            **observed.get(name, {}),
        }
        for name, node in state.nodes.items()
    }
