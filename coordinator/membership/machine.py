"""Which nodes are in the run and which view they train: a pure state machine, ``apply(state, event, now)``.

    waiting ──enough nodes, links measured──> flushing ──all answered──> preparing ──all prepared──> training ──> done
       ^                                         ^  │                        │                          │
       └───────── no plan is possible ───────────┼──┘                        │                          │
                                                 └── a death, a leave, ──────┴───── the same, a join, ──┘
                                                     the next number                a broken connection

* Views are numbered from 1. A number for which nodes have flushed is never used for another view.
* A node that dies while others flush is only dropped from those waited for: its view was not announced yet. A node
  that dies while a view is prepared makes that view void, and the next number follows.
* From the announcement of a view to its start, its position is pinned, because nodes may have adopted it already.
* A joiner measures its links while the others train; it costs them a view change only if the plan gives it a place.
* A spare that goes away changes nothing, unless others still fetch from it.
* A joiner whose state would take longer to fetch than a step first follows a member of its stage as a spare
  (shadows.py), and gets its place when it has caught up. If it cannot follow, the others wait for it where that is
  short or the plan needs it; else it stays a spare.
* No node is put out because something takes long, but only because nothing moved for the patience of the link, of the
computation, or of both (proto/connections/patience.py).
* A broken connection between two live nodes costs a view change only if the plan needs it and it stays down: most are
restored in a moment, and nothing is lost.
* A node that leaves after its last step, before all have finished, costs a view change: the others may still need it
for an evaluation.
* A node whose frozen weights are not the run's is put out before the view trains, and the others go on without it.
* Nodes that report different histories of a section cause a view change, at most one in 10 s.
* A node that is drained, paused, or on its way out has no place in the next plan. It is asked for its last contribution
  first, and stays a member of the view that replaces it, because the others may need its state. While the whole run is
  paused there is no view: every node keeps its state, and waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from . import signals as s
from .given import Given
from .handlers import connections, departures, joining, preparing, reports, ticking, tuning, wishes
from .members import Planner, put
from .phases import catching_up, finishing, flushing
from .phases.planning import why_needed
from .questions import Unanswered
from .state import DONE, Asking, Known, Patience, Result, State
from .transitions import caused, counted, named, told
from .transitions import noted as transited


class Membership:
    """Has the method ``apply``. Holds no state of its own."""

    def __init__(
        self,
        planner: Planner | None = None,
        fetch_s: Patience = lambda name, plan: 0.0,
        follow: bool = True,
        known: Known | None = None,
    ) -> None:
        """The arguments are the fields of ``Given``."""
        self.given = Given(planner, fetch_s, follow, known or Known())

    def apply(self, state: State, event: s.Input, now: float) -> tuple[State, list[s.Effect], str]:
        """(the next state, the effects, why). ``why`` is empty when nothing changed that a person would want to know.

        Besides its arguments it reads only measurements (``known``, ``fetch_s``). Impossible: this event can't occur in
        this state.
        """
        if state.phase == DONE and not isinstance(event, s.Over):
            return state, [], ""
        counting = counted(state)
        cause = named(counting.events, event)
        if isinstance(event, s.Planned):
            asking = state.asking
            if asking is None or asking.number != event.number:
                raise told(state, cause, "nobody asked for this plan")
            answers = (*state.answers, (asking.question, event.answer))
            after, effects = self._take(replace(counting, asking=None, answers=answers), asking.event, now)
            cause = f"{cause} for {asking.cause}"
        elif isinstance(event, s.Undecidable):
            if state.asking is None or state.asking.number != event.number:
                raise told(state, cause, "nothing waits for this plan")
            after, effects = replace(counting, asking=None, answers=()), []
        elif state.asking is not None:
            raise told(state, cause, f"{state.asking.cause} has to be decided first, which waits for a plan")
        else:
            after, effects = self._take(counting, event, now)
        after = transited(state, after, cause)
        return after, caused(effects, cause), after.why if after.why != state.why else ""

    def _take(self, state: State, event: s.Input, now: float) -> Result:
        """Handle an event. If it needs a plan that is not there yet, only ``State.asking`` changes, and the plan is
        asked for."""
        try:
            after, effects = self._handle(state, event, now)
        except Unanswered as wanted:
            number = state.asked + 1
            asking = Asking(number, wanted.question, event, named(state.events, event))
            why = f"{asking.cause} needs a plan of {len(wanted.question.names)} nodes"
            return replace(state, asked=number, asking=asking), [s.Ask(number, wanted.question, why)]
        return (replace(after, answers=()) if after.answers else after), effects

    def cannot_do_without(self, state: State, name: str) -> str:
        """Why the others could not train if this node had no place; empty where they could, or no view trains now.
        Unanswered: this needs a plan that is not yet among ``state.answers``."""
        return why_needed(self.given, state, name)

    # ---- one event ---------------------------------------------------------------------------

    def _handle(self, state: State, event: s.Input, now: float) -> Result:
        of_the_run = _OF_THE_RUN.get(type(event))
        if of_the_run is not None:
            return of_the_run(self.given, state, event, now)
        of_a_node = _OF_A_NODE.get(type(event)) or _ABOUT_A_NODE.get(type(event))
        if of_a_node is None:
            raise told(state, named(state.events, event), "there is no such event")
        name, session = event.name, event.session  # type: ignore[union-attr]  # every event of these tables has them
        node = state.nodes.get(name)
        if node is None or node.session != session:
            return state, []
        if type(event) in _OF_A_NODE:
            state = put(state, replace(node, heard=now, doubted=False))
        return of_a_node(self.given, state, event, now)


# ---- the table: event type -> handler ----------------------------------------------------------------

_Handler = Callable[[Given, State, Any, float], Result]
"""(given, state, event, now). now: seconds of the coordinator's clock."""

_OF_THE_RUN: Mapping[type, _Handler] = {
    s.Joined: joining.joined,
    s.Beats: reports.beats,
    s.StepFinished: reports.step_finished,
    s.Steps: reports.steps_finished,
    s.CheckpointComplete: finishing.checkpoint_complete,
    s.CheckpointSound: preparing.checkpoint_sound,
    s.CheckpointLost: preparing.checkpoint_lost,
    s.NotStored: finishing.checkpoint_not_stored,
    s.Apart: connections.plan_apart,
    s.Hold: wishes.hold,
    s.Release: wishes.release,
    s.Evict: wishes.evict,
    s.Readmit: wishes.readmit,
    s.Pause: wishes.pause,
    s.GoOn: wishes.go_on,
    s.Changed: wishes.change_job,
    s.Save: wishes.save,
    s.Replan: wishes.replan,
    s.Tuned: tuning.tuned,
    s.Over: reports.over,
    s.Tick: ticking.tick,
}
"""The handler of each type of event. ``apply`` itself handles Planned and Undecidable."""
_OF_A_NODE: Mapping[type, _Handler] = {
    s.Hello: joining.hello,
    s.Heard: reports.beat,
    s.Measured: joining.links_known,
    s.Flushed: flushing.take_flushed,
    s.Prepared: preparing.prepared,
    s.Kept: reports.keeps,
    s.CaughtUp: catching_up.caught_up,
    s.Finished: finishing.finished,
    s.Leaving: wishes.leaving,
    s.Back: wishes.came_back,
    s.Unreadable: preparing.unreadable,
    s.Waits: reports.says_it_waits,
    s.Accused: connections.complained,
}
"""Events that a node itself reports; they also count as a sign of life. Those of an ended session are ignored."""
_ABOUT_A_NODE: Mapping[type, _Handler] = {
    s.Left: departures.left,
    s.StreamEnded: connections.stream_ended,
    s.Dialled: connections.dialled,
}
"""Events that the coordinator finds out about a node's present session."""
HANDLERS: Mapping[type, _Handler] = {**_OF_THE_RUN, **_OF_A_NODE, **_ABOUT_A_NODE}
