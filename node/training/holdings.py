"""What a node has and does at the moment. View changes alone change it; everybody else looks it up here."""

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
    """One node's."""

    context: NodeContext
    """Of the newest view that this node has prepared for."""
    resources: Resources
    traffic: StateTraffic
    state: StageState | None = None
    """Of the node's place."""
    kept: StageState | None = None
    """Of the place before, while others may still ask for it."""
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
        """What this node holds of the model at the present round: its place, and the one before while it moves."""
        return [state for state in (self.state, self.kept) if state is not None]

    def drop_states(self) -> None:
        """Nothing of what is held is the group's: a peer's state, or a checkpoint's, takes its place."""
        self.state = self.kept = self.previous = None
