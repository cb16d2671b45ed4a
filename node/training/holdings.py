"""A node's present state and activities. Only view changes change it; other code reads it."""

from __future__ import annotations

from dataclasses import dataclass

from ..context import NodeContext
from ..state.stage_state import StageState
from ..state.transfers.traffic import StateTraffic
from .following.standby import Follower
from .resources import Resources
from .steps.view_training import ViewTraining


@dataclass
class Holdings:
    """The holdings of one node."""

    context: NodeContext
    """The context of the newest view that this node has prepared for."""
    resources: Resources
    traffic: StateTraffic
    state: StageState | None = None
    """The state of the node's place."""
    kept: StageState | None = None
    """The state of the place before, while peers may still ask for it."""
    training: ViewTraining | None = None
    previous: ViewTraining | None = None
    """The training of the view before, whose rounds' log and reference peers may still ask for."""
    follower: Follower | None = None
    """The place that this node follows as a spare."""
    begun_at: int = 0
    """The step with which the newest view began."""

    @property
    def view(self) -> int:
        """The newest view that this node has prepared for; 0 before the first."""
        return self.context.view

    @property
    def step(self) -> int:
        """The last step that is finished here."""
        return self.begun_at if self.training is None else self.training.view.step

    @property
    def held(self) -> list[StageState]:
        """The states that this node holds at the present round: of its place, and, during a move, of the one before."""
        return [state for state in (self.state, self.kept) if state is not None]

    def drop_states(self) -> None:
        """Drop all states, which are not the group's any more; a peer's state or a checkpoint's replaces them."""
        self.state = self.kept = self.previous = None
