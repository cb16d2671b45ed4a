"""A run's status with the data of each node that only the running coordinator has: for ``status``, the page and
advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..observe.status import status_of
from .context import RunContext
from .deciding import Deciding
from .judging.verdicts import Verdicts
from .nodes.attendance import Live
from .nodes.streams import Streams
from .reports.step_reports import StepReports


@dataclass(frozen=True, kw_only=True)
class LiveStatus:
    """The live status. ``live``: node -> what its last heartbeat said."""

    context: RunContext
    deciding: Deciding
    streams: Streams
    steps: StepReports
    verdicts: Verdicts
    live: Mapping[str, Live]

    @property
    def reached(self) -> tuple[int, int]:
        """(the newest step that is trained, the step of the newest checkpoint); 0: none."""
        state = self.deciding.state
        return max(self.steps.reached, state.view.position.step if state.view else 0), state.newest.step

    def nodes(self) -> dict[str, dict[str, Any]]:
        """What only this process knows of each node."""
        now, silent = self.context.clock(), Live()
        observed = self.steps.observed.nodes(now)
        return {
            name: {
                "attending": name in self.streams,
                "heard_s": round(now - node.heard, 1),
                "refused": self.verdicts.refusals.of((name, node.session)),
                "score": self.verdicts.judged.score(name),
                "doing": self.live.get(name, silent).doing,
                "trainer_age": round(self.live.get(name, silent).trainer_age, 1),
                **observed.get(name, {}),
            }
            for name, node in self.deciding.state.nodes.items()
        }

    def record(self, state: Path) -> dict[str, Any]:
        """The run's status, as ``farflung status`` has it. ``state``: the state folder."""
        links = self.steps.observed.links(self.context.clock())
        return status_of(self.context.store, state, True, live=self.nodes(), used=links)
