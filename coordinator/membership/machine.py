"""Who is in the run and which view they train: a pure state machine, ``apply(state, event, now)``.

    waiting ──enough nodes, links measured──> flushing ──all answered──> preparing ──all prepared──> training ──> done
       ^                                         ^  │                        │                          │
       └───────── no plan is possible ───────────┼──┘                        │                          │
                                                 └── a death, a leave, ──────┴───── the same, a join, ──┘
                                                     the next number                a broken connection

* Views are numbered from 1; a number that was flushed for is never used for another view.
* A node that dies while others flush is only dropped from those waited for: its view was not announced yet. A node
  that dies while a view is prepared makes that view void, and the next number follows.
* From the announcement of a view to its start its position is pinned: nodes may have taken it over already.
* A joiner measures its links while the others train; it costs them a view change only if the plan wants it.
* A spare that goes away changes nothing, unless others still fetch from it.
* A joiner whose part would take longer to fetch than a step follows its like as a spare first (shadows.py), and gets
  its place when it has caught up. One that cannot makes the others wait if that is short, or if they cannot do without
  it; else it stays a spare.
* Nobody is put out for the seconds that something takes: only when nothing has moved for the patience of the link, of
  what is being computed, or of both (proto/patience.py).
* A broken connection between two that answer costs a view change only if it is needed and stays down: most are there
  again in a moment, and lose nothing.
* A node that goes away after its last step does, until all have finished: the others may still evaluate with it.
* A node whose frozen weights are not the run's is put out before the view trains, and the others go on without it.
* Nodes that report different histories of a section make a view change, at most one in 10 s.
* A node that is drained, paused, or on its way out has no place in the next plan. It is asked for its last contribution
  first, and stays a member of the view that replaces it, for its state is what the others may need. While the whole run
  is paused nobody has a view: everybody keeps what it has, and waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...proto.patience import Watch, patience
from ...scheduler.errors import PlanError
from ...scheduler.plans import Plan
from . import signals as s
from .handovers import handovers, lost
from .last_checkpoint import NOT_DONE, Last, Unstored, last_of
from .learnt import noted
from .majority import Split, split
from .measuring import ALL, chosen
from .members import (
    DONE,
    FLUSHING,
    PREPARING,
    TRAINING,
    WAITING,
    Asking,
    Change,
    Known,
    Node,
    Patience,
    Planner,
    Result,
    State,
    all_finished,
    arrived,
    beaten,
    expected_bases,
    in_view,
    lacks_checkpoint,
    leaves,
    no_place,
    plannable,
    put,
    trains,
)
from .overdue import overdue
from .questions import Question, Unanswered, answer_to
from .resume import Resume, fresh_layers, planned_nodes, resume
from .shadows import CATCHES_UP, place_to_follow, shadows
from .standstill import Claim
from .steps import stepped
from .stuck import ASKED_S, ask, awake, is_aside, standing
from .transitions import caused, counted, named, told
from .transitions import noted as transited
from .unreadable import apart, cannot_read, distrust, judged
from .waits import MOVING, aside, look

_STALL_S = 1.0  # a longer gap between two ticks is the coordinator's own, and nobody's silence
_BROKEN_AFTER, _BROKEN_WITHIN_S = 3, 60.0
_DISAGREEMENTS = 2
_AT_ONCE = 64  # nodes up to which each answer of a waiting run is looked at when it comes
_PEERS_IN_TIME = 4  # a node measures one link after the other; of so many, slow ones, within `measure_s`
_DIVERGED_AGAIN_S = 10.0
_STEPS_OF_PATIENCE = 10
_LATE_S = 5.0
_SAY_AGAIN_S = 10.0
"""Until a flush is sent again to who has not answered it: whatever carries an order may lose it."""
_WORTH_S = 60.0
"""Others stand still for so long for a node that cannot catch up otherwise, or ten steps."""
_TRIPS_DOWN = 3
"""Round trips beside `Rules.down_s` until a broken connection costs a view change."""


class Membership:
    """``apply``. Holds no state of its own."""

    def __init__(
        self,
        planner: Planner | None = None,
        fetch_s: Patience = lambda name, plan: 0.0,
        follow: bool = True,
        known: Known | None = None,
    ) -> None:
        """``planner``: one that answers at once; without it plans are asked for (questions.py). ``follow``: whether
        spares can, for which rounds have to be agreed on."""
        self._planner, self._fetch_s, self._follow, self._known = planner, fetch_s, follow, known or Known()

    def apply(self, state: State, event: s.Input, now: float) -> tuple[State, list[s.Effect], str]:
        """The next state, what to do, and why (empty when nothing changed that a person would want to know).

        Nothing else has a say in it but what was measured (``known``, ``fetch_s``). Impossible: no such event can be.
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
        """An event. One that needs a plan which nobody has worked out yet changes nothing, and asks."""
        try:
            after, effects = self._handle(state, event, now)
        except Unanswered as wanted:
            number = state.asked + 1
            asking = Asking(number, wanted.question, event, named(state.events, event))
            why = f"{asking.cause} needs a plan of {len(wanted.question.names)} nodes"
            return replace(state, asked=number, asking=asking), [s.Ask(number, wanted.question, why)]
        return (replace(after, answers=()) if after.answers else after), effects

    def _search(self, state: State, names: tuple[str, ...], current: Plan | None) -> Plan:
        """A plan of these. PlanError: there is none. Unanswered: it has to be asked for first."""
        if self._planner is not None:
            return self._planner(names, current, state.broken)
        return answer_to(Question(names, current, state.broken), state.answers)

    def cannot_do_without(self, state: State, name: str) -> str:
        """Why nobody could train if this node had no place; empty where the others can, or nobody trains now.
        Unanswered: that takes a plan, which is to be among ``state.answers``."""
        if state.view is None or state.phase in (WAITING, DONE) or name not in state.nodes:
            return ""
        try:
            self._plan(state, tuple(other for other in plannable(state) if other != name), state.view.plan)
        except PlanError as error:
            return str(error)
        return ""

    # ---- one event ---------------------------------------------------------------------------

    def _handle(self, state: State, event: s.Input, now: float) -> Result:
        of_the_run = _OF_THE_RUN.get(type(event))
        if of_the_run is not None:
            return of_the_run(self, state, event, now)
        of_a_node = _OF_A_NODE.get(type(event)) or _ABOUT_A_NODE.get(type(event))
        if of_a_node is None:
            raise told(state, named(state.events, event), "there is no such event")
        name, session = event.name, event.session  # type: ignore[union-attr]  # every event of these tables has them
        node = state.nodes.get(name)
        if node is None or node.session != session:
            return state, []
        if type(event) in _OF_A_NODE:
            state = put(state, replace(node, heard=now, doubted=False))
        return of_a_node(self, state, event, now)

    def _over(self, state: State, event: s.Over, now: float) -> Result:
        return replace(state, phase=DONE, why=event.why), []

    def _beats(self, state: State, event: s.Beats, now: float) -> Result:
        return beaten(state, event, now), []

    def _beat(self, state: State, event: s.Heard, now: float) -> Result:
        return beaten(state, s.Beats((event,)), now), []

    def _stepped(self, state: State, event: s.StepFinished, now: float) -> Result:
        return stepped(state, ((event, now),)), []

    def _all_stepped(self, state: State, event: s.Steps, now: float) -> Result:
        return stepped(state, event.finished), []

    def _stored(self, state: State, event: s.CheckpointComplete, now: float) -> Result:
        if event.position.step < state.newest.step:
            return state, []
        state = replace(state, newest=event.position, unsent=event.unsent, saving=False)
        return self._check_finished(state, now)

    def _not_stored(self, state: State, event: s.NotStored, now: float) -> Result:
        if state.unstored is not None and state.unstored.step == event.step:
            return state, []
        return self._check_finished(replace(state, unstored=Unstored(event.step, event.why, now)), now)

    def _left(self, state: State, event: s.Left, now: float) -> Result:
        return self._gone(state, state.nodes[event.name], event.why, now)

    def _stream_ended(self, state: State, event: s.StreamEnded, now: float) -> Result:
        node = state.nodes[event.name]
        state = put(state, replace(node, attending=False))
        why = f"the control stream of {node.name} ended: {event.why}"
        return state, [s.Dial(node.name, node.session, node.address, why)]

    def _links_known(self, state: State, event: s.Measured, now: float) -> Result:
        return self._progress(put(state, replace(state.nodes[event.name], measured=True)), now)

    def _keeps(self, state: State, event: s.Kept, now: float) -> Result:
        said = (event.step, event.view, event.name, event.norm, event.moved)
        return replace(state, kept=noted(state.kept, *said)), []

    def _is_back(self, state: State, event: s.Back, now: float) -> Result:
        return self._returned(state, event.name, f"{event.name} is back", now)

    def _complained(self, state: State, event: s.Accused, now: float) -> Result:
        if event.mended:
            return self._mended(state, event), []
        return self._diverged(state, event, now) if event.diverged else self._accused(state, event)

    def _joined(self, state: State, event: s.Joined, now: float) -> Result:
        effects: list[s.Effect] = []
        old = state.nodes.get(event.name)
        if old is not None and old.session != event.session:
            why = f"{event.name} came back as a new session"
            state, effects = self._gone(state, old, why, now)
            effects = [s.Fence(old.name, old.session, why), *effects]
        elif old is not None:
            return state, []
        node = Node(event.name, event.session, event.address, heard=now, dials_out=event.dials_out)
        if is_aside(state, event.name, now):
            node = replace(node, stuck="set aside: it held the others up before")
        why = f"{event.name} joined from {event.address}"
        if event.dials_out:
            why += ", where nobody can dial it: it dials the others"
        state = replace(put(state, node), last_join=now, why=why)
        return state, [*effects, s.Say("joined", event.name, why)]

    def _hello(self, state: State, event: s.Hello, now: float) -> Result:
        """A control stream is (again) open: say again what may have been lost with the old one."""
        state = put(state, arrived(state.nodes[event.name], event))
        to, change, view = (event.name,), state.change, state.view
        if state.phase == WAITING:
            member = state.view is not None and in_view(state, event.name, state.view)
            if state.restored and (event.view or member) and not state.begun:
                why = f"{event.name} comes back from view {event.view or (state.view.number if state.view else 0)}"
                state = replace(state, begun=True, last_join=now, why=why)
            return self._progress(state, now)
        if state.phase == FLUSHING and change and event.name in change.awaited and event.name not in change.flushed:
            return state, [s.SendFlush(to, change.number, change.why)]
        if state.phase == PREPARING and change and state.pinned and event.name in change.awaited:
            if event.name not in change.prepared:
                return state, [s.SendView(to, state.pinned, state.pinned.why)]
        elif state.phase == TRAINING and view and in_view(state, event.name, view):
            if event.view == view.number:
                return state, [s.SendStart(to, view.number, f"view {view.number} trains")]
            if event.name in view.plan.nodes:
                return self._begin(state, f"{event.name} lost its place in view {view.number}", now)
        return state, []

    def _dialled(self, state: State, event: s.Dialled, now: float) -> Result:
        node = state.nodes[event.name]
        complaints = state.accused.get(node.name, {})
        state = replace(state, accused={name: who for name, who in state.accused.items() if name != node.name})
        if not event.reachable:
            if not node.attending:
                return self._gone(state, node, f"its stream ended and it does not answer: {event.why}", now)
            if node.doubted:
                silent = f"no heartbeat for {now - node.heard:.0f} s"
                return self._gone(state, node, f"{silent}, and it does not answer: {event.why}", now)
        if state.phase != TRAINING or state.view is None:
            return state, []
        # Both answer, so the connection is likely there again in a moment, and then nothing is lost. A spare's never
        # costs anybody anything: it asks again for what it lacks.
        training = set(state.view.plan.nodes)
        down = {(by, node.name): (now, why) for by, why in complaints.items() if {by, node.name} <= training}
        return replace(state, down={**down, **state.down}), []

    def _mended(self, state: State, event: s.Accused) -> State:
        down = {pair: found for pair, found in state.down.items() if pair != (event.name, event.peer)}
        others = {by: why for by, why in state.accused.get(event.peer, {}).items() if by != event.name}
        accused = {**state.accused, event.peer: others} if event.peer in state.accused else state.accused
        return replace(state, down=down, accused=accused)

    def _still_down(self, state: State, now: float) -> Result:
        """A connection that is needed is down for too long: a view change, and another plan if it happens often."""
        for (by, name), (since, why) in state.down.items():
            trip = max(self._known.round_trip_s(by), self._known.round_trip_s(name))
            if now - since <= state.rules.down_s + _TRIPS_DOWN * trip:
                continue
            pair = (min(by, name), max(by, name))
            recent = [item for item in state.complaints if now - item[0] < _BROKEN_WITHIN_S]
            recent.append((now, *pair))
            state = replace(state, complaints=tuple(recent))
            sentence = f"the connection between {by} and {name} has been down for {now - since:.0f} s: {why}"
            effects: list[s.Effect] = []
            if sum(1 for item in recent if item[1:] == pair) >= _BROKEN_AFTER and pair not in state.broken:
                state = replace(state, broken=state.broken | {pair})
                planned_apart = f"{pair[0]} and {pair[1]} keep losing each other and are planned apart"
                effects.append(s.Say("warning", by, planned_apart))
            state, more = self._begin(state, sentence, now)
            return state, effects + more
        return state, []

    def _gone(self, state: State, node: Node, why: str, now: float) -> Result:
        """A node is out. Whether that changes the view depends on what it did there."""
        nodes = {name: other for name, other in state.nodes.items() if name != node.name}
        state = replace(state, down={pair: found for pair, found in state.down.items() if node.name not in pair})
        sentence = f"{node.name} left: {why}"
        stepped = {name: when for name, when in state.stepped.items() if name != node.name}
        state = replace(state, nodes=nodes, why=sentence, unplannable=frozenset(), stepped=stepped)
        effects: list[s.Effect] = [s.Say("left", node.name, why), s.Fence(node.name, node.session, sentence)]
        state, more = self._missing(state, node, sentence, now)
        return state, effects + more

    def _stands_still(self, state: State, node: Node, idle: float, now: float) -> Result:
        """Everybody waits for a node whose trainer does nothing: it is asked, then the others go on without it."""
        if node.questioned is None:
            node, effects = ask(node, idle, now)
            return put(state, node), effects
        if now - node.questioned <= ASKED_S:
            return state, []
        node = replace(node, stuck=f"stuck: its trainer has done nothing for {idle:.0f} s")
        why = f"{node.name} is {node.stuck}"
        state = replace(put(state, node), why=why, unplannable=frozenset())
        state, effects = self._missing(state, node, why, now)
        return state, [s.Say("warning", node.name, f"{why}; it may have a place again when it acts"), *effects]

    def _says_it_waits(self, state: State, event: s.Waits, now: float) -> Result:
        view = state.view
        if state.phase != TRAINING or view is None or event.view != view.number or not trains(state, event.name, view):
            return state, []
        claim = Claim(now, frozenset(event.peers), event.moves)
        return replace(state, waits={**state.waits, event.name: claim}), []

    def _held_up(self, state: State, now: float) -> Result:
        """No step ends, and all trainers say that they act: who holds the others up is known by whom they wait for."""
        state, found = look(state, now, self._fetch_s)
        if not found.why:
            return state, []
        if found.asked:
            return state, [s.Say("warning", "", found.why), s.SendNotice(found.asked, found.why)]
        if found.apart is not None:
            return self._apart(state, s.Apart(*found.apart, f"{found.why}: they are planned apart"), now)
        node = state.nodes.get(found.out)
        if node is None:
            return state, [s.Say("warning", "", found.why)]
        return self._set_aside(state, node, found.why, now)

    def _set_aside(self, state: State, node: Node, held: str, now: float) -> Result:
        """A node that has ``held`` the others up has no place for some time."""
        node = replace(node, stuck=f"set aside: {held}")
        why = f"{node.name} is {node.stuck}"
        state = replace(put(state, node), why=why, unplannable=frozenset())
        state, effects = self._missing(state, node, why, now)
        hint = f"it may have a place again in {(state.held_up_by[node.name].until - now) / 60:.0f} min"
        return state, [s.Say("warning", node.name, f"{why}; {hint}"), *effects]

    def _missing(self, state: State, node: Node, sentence: str, now: float) -> Result:
        """What follows for the view where a node is not there any more, or as good as."""
        effects: list[s.Effect] = []
        change = state.change
        if state.phase == TRAINING and state.view and in_view(state, node.name, state.view, node.session):
            training = set(state.view.plan.nodes)
            if node.name in training and training - set(state.finished):
                state, more = self._begin(state, sentence, now)
                return state, effects + more
            state, more = self._check_finished(state, now)
            return state, effects + more
        if state.phase == PREPARING and change and node.name in change.awaited:
            assert state.pinned is not None
            needed = {*state.pinned.plan.nodes, *(name for names in state.pinned.holders for name in names)}
            if node.name in needed:
                state, more = self._begin(state, sentence, now)
                return state, effects + more
            change = replace(change, awaited=change.awaited - {node.name})
            state, more = self._check_prepared(replace(state, change=change), now)
            return state, effects + more
        if state.phase == FLUSHING and change and node.name in change.awaited:
            flushed = {name: answer for name, answer in change.flushed.items() if name != node.name}
            change = replace(change, awaited=change.awaited - {node.name}, flushed=flushed)
            state, more = self._check_flushed(replace(state, change=change), now)
            return state, effects + more
        state, more = self._progress(state, now)
        return state, effects + more

    def _accused(self, state: State, event: s.Accused) -> Result:
        peer = state.nodes.get(event.peer)
        if state.phase != TRAINING or peer is None or event.peer == event.name:
            return state, []
        asked = event.peer in state.accused
        said = {**state.accused.get(event.peer, {}), event.name: event.why}
        state = replace(state, accused={**state.accused, event.peer: said})
        why = f"{event.name} lost its connection to {event.peer}: {event.why}"
        return state, [] if asked else [s.Dial(peer.name, peer.session, peer.address, why)]

    def _apart(self, state: State, event: s.Apart, now: float) -> Result:
        """It is one's word against the other's: both stay, where they have nothing to do with each other."""
        pair = (min(event.name, event.peer), max(event.name, event.peer))
        if pair in state.broken:
            return state, []
        state = replace(state, broken=state.broken | {pair}, unplannable=frozenset())
        return self._anew(state, event.why, now, [s.Say("warning", event.name, event.why)])

    def _diverged(self, state: State, event: s.Accused, now: float) -> Result:
        """Two nodes cannot count each other's messages any more; the flush shows who is right."""
        if state.phase != TRAINING or state.view is None or state.diverged or event.peer == event.name:
            return state, []
        if not all(in_view(state, name, state.view) for name in (event.name, event.peer)):
            return state, []
        return self._judge(replace(state, diverged=(event.name, event.peer)), now)

    def _judge(self, state: State, now: float) -> Result:
        """Begin the view change that a difference needs, unless the last one was a moment ago."""
        assert state.diverged is not None
        if state.judged is not None and now - state.judged < _DIVERGED_AGAIN_S:
            return state, []
        name, peer = state.diverged
        why = f"{name} and {peer} hold different histories of a section"
        return self._begin(replace(state, judged=now), why, now)

    # ---- what people want ----------------------------------------------------------------------

    def _held(self, state: State, event: s.Hold, now: float) -> Result:
        state = replace(state, held={**state.held, event.name: event}, why=f"{event.name} is {event.why}")
        return self._make_room(state, event.name, now)

    def _released(self, state: State, event: s.Release, now: float) -> Result:
        state = replace(state, held={name: hold for name, hold in state.held.items() if name != event.name})
        return self._returned(state, event.name, event.why, now)

    def _evicted(self, state: State, event: s.Evict, now: float) -> Result:
        state = replace(state, held={name: hold for name, hold in state.held.items() if name != event.name})
        node = state.nodes.get(event.name)
        if node is None:
            return state, []
        state, effects = self._gone(state, node, event.why, now)
        return state, [s.SendStop((node.name,), f"{node.name} was {event.why}", refused=True), *effects]

    def _readmitted(self, state: State, event: s.Readmit, now: float) -> Result:
        broken = frozenset(pair for pair in state.broken if event.name not in pair)
        aside = {name: known for name, known in state.held_up_by.items() if name != event.name}
        state = replace(state, broken=broken, held_up_by=aside, suspected={})
        return replace(state, unplannable=frozenset(), why=event.why), []

    def _paused(self, state: State, event: s.Pause, now: float) -> Result:
        state = replace(state, paused=event.why, why=event.why)
        return self._anew(state, event.why, now, [s.SendNotice(tuple(sorted(state.nodes)), event.why)])

    def _goes_on(self, state: State, event: s.GoOn, now: float) -> Result:
        state = replace(state, paused="", unplannable=frozenset(), why=event.why)
        everybody = tuple(sorted(state.nodes))
        state, effects = self._progress(state, now)
        return state, [s.SendNotice(everybody, event.why), *effects]

    def _job_changed(self, state: State, event: s.Changed, now: float) -> Result:
        return self._anew(replace(state, job=event.job), event.why, now)

    def _saves(self, state: State, event: s.Save, now: float) -> Result:
        return self._anew(replace(state, saving=True), f"a checkpoint is wanted: {event.why}", now)

    def _anew(self, state: State, why: str, now: float, effects: list[s.Effect] | None = None) -> Result:
        """What is new of the run begins with a view: the next one, if that is not announced yet."""
        if state.phase == PREPARING or (state.phase == TRAINING and not all_finished(state)):
            state, more = self._begin(state, why, now)
            return state, [*(effects or ()), *more]
        return state, effects or []

    def _make_room(self, state: State, name: str, now: float) -> Result:
        """A node is to have no place any more, or has none and is to know why."""
        node, change = state.nodes.get(name), state.change
        if node is None:
            return state, []
        why, goes = f"{name} is {no_place(state, node)}", leaves(state, node)
        if state.phase == TRAINING and state.view and trains(state, name, state.view):
            if node.told_to_leave is not None:
                return state, []
            words = s.SendLeave((name,), no_place(state, node), stays=not goes)
            return put(state, replace(node, told_to_leave=now)), [words]
        if state.phase == PREPARING and state.pinned and name in state.pinned.plan.nodes:
            return self._begin(state, why, now)
        if change is not None and name in change.awaited:
            return state, []  # the others may need what it holds: it is told when the view trains
        if goes:
            return state, [s.SendStop((name,), why)]
        return state, [s.SendNotice((name,), f"{name} is a spare: {why}")]

    def _leaving(self, state: State, event: s.Leaving, now: float) -> Result:
        """Its last contribution is in."""
        node = state.nodes[event.name]
        if event.asked and not no_place(state, node):
            return state, []  # it may stay after all
        if not event.asked and event.stays:
            node = replace(node, away=event.why)
        elif not event.asked:
            node = replace(node, parting=event.why)
        state = put(state, node)
        if state.phase == TRAINING and state.view and trains(state, node.name, state.view):
            return self._anew(state, f"{node.name} is {event.why}", now)
        return self._make_room(state, node.name, now)

    def _returned(self, state: State, name: str, why: str, now: float) -> Result:
        """What kept a node from having a place is over."""
        state = replace(state, unplannable=frozenset(), why=why)
        node = state.nodes.get(name)
        if node is not None:
            node = replace(node, away="", told_to_leave=None, passed_over=False, returns=True)
            state = put(state, node)
        return self._progress(state, now)

    def _replanned(self, state: State, event: s.Replan, now: float) -> Result:
        """A view change, if the planner would now do it another way."""
        if state.phase != TRAINING or state.view is None or state.finished:
            return state, []
        try:
            plan = self._plan(state, plannable(state), state.view.plan)
        except PlanError:
            return state, []
        return (state, []) if plan.same_placement(state.view.plan) else self._begin(state, event.why, now)

    def _plan(self, state: State, names: tuple[str, ...], current: Plan | None) -> Plan:
        """A plan of those of ``names`` that may have a place; the others are spares, with the reason."""
        without = {name: why for name in names if (why := no_place(state, state.nodes[name]))}
        willing = tuple(name for name in names if name not in without)
        if not willing:
            raise PlanError("; ".join(f"{name} is {why}" for name, why in without.items()) or "no node is left")
        if current is not None:
            spares = {name: why for name, why in current.spares.items() if name in willing}
            current = current if spares == current.spares else replace(current, spares=spares)
        behind = {name: CATCHES_UP for name in willing if state.nodes[name].behind}
        behind |= {name: why for name in willing if (why := state.nodes[name].too_slow)}
        wanted = state.wanted
        try:
            ready = tuple(name for name in willing if name not in behind)
            if wanted is not None and {*wanted.nodes, *wanted.spares} == set(ready):
                plan = wanted  # it was made with these very nodes, and they hold what it gives them
            elif ready:
                plan = self._search(state, ready, current)
            else:
                raise PlanError(f"nobody but {', '.join(behind)} is there")
        except PlanError:
            if not behind:
                raise
            plan, behind = self._search(state, willing, current), {}
        spares = {**plan.spares, **behind, **without}
        return plan if spares == plan.spares else replace(plan, spares=spares)

    # ---- time --------------------------------------------------------------------------------

    def _tick(self, state: State, event: s.Tick, now: float) -> Result:
        state = replace(state, stored=event.stored)
        stalled = state.ticked is not None and now - state.ticked > _STALL_S
        state = replace(state, ticked=now)
        if stalled:
            nodes = {
                name: replace(node, heard=now, moved_at=now, acted=now, doubted=False)
                for name, node in state.nodes.items()
            }
            change = state.change and replace(state.change, began=now)
            return replace(state, nodes=nodes, moved_on=now, standstill=None, change=change), []
        effects: list[s.Effect] = []
        for node in list(state.nodes.values()):
            silent = now - node.heard
            if not node.arrived:
                if silent > state.rules.arrive_s:
                    why = f"it joined and did not come within {state.rules.arrive_s:g} s"
                    state, more = self._gone(state, node, why, now)
                    effects += more
                continue
            if silent <= state.rules.doubt_s or state.nodes.get(node.name) is not node:
                continue
            if silent > state.rules.silence_s:
                state, more = self._gone(state, node, f"no heartbeat for {state.rules.silence_s:g} s", now)
                effects += more
            elif not node.doubted:
                state = put(state, replace(node, doubted=True))
                why = f"{node.name} is silent for {silent:.0f} s"
                effects.append(s.Dial(node.name, node.session, node.address, why))
        for node, idle in list(standing(state, now)):
            if state.phase == TRAINING:
                state, more = self._stands_still(state, node, idle, now)
                effects += more
        state, more = self._held_up(state, now)
        effects += more
        for node in list(awake(state, now)):
            why, node = f"{node.name}'s trainer acts again", replace(node, stuck="", passed_over=False, returns=True)
            state = replace(put(state, node), unplannable=frozenset(), why=why)
        late = [
            name
            for name, node in state.nodes.items()
            if node.told_to_leave is not None and now - node.told_to_leave > state.rules.leave_s
        ]
        for name in late:
            if state.phase == TRAINING and (why := no_place(state, state.nodes[name])):
                state, more = self._anew(state, f"{name} is {why}", now)
                effects += more
        state, more = self._progress(state, now)
        return state, effects + more

    def _progress(self, state: State, now: float) -> Result:
        """What only needed time, or one more answer."""
        change = state.change
        if state.phase == WAITING and len(state.nodes) > _AT_ONCE and now != state.ticked:
            return state, []  # the next tick looks at what all of them said
        if state.phase == WAITING:
            return self._waiting(state, now)
        if state.phase == TRAINING and state.diverged:
            return self._judge(state, now)
        if state.phase == TRAINING and state.finished:
            return self._check_finished(state, now)
        if state.phase == TRAINING:
            for work in (self._still_down, self._admit):
                state, effects = work(state, now)
                if effects:
                    return state, effects
            return self._newcomers(state, now)
        if state.phase == DONE:
            return state, []
        assert change is not None
        late = change.awaited - set(change.flushed if state.phase == FLUSHING else change.prepared)
        if state.phase == PREPARING and change.sound is not None:
            state, effects = self._check_readable(state, now)
            if effects:
                return state, effects
        watch = change.watch.at(sum(state.nodes[name].moved for name in late), now)
        if watch is not change.watch:
            state = replace(state, change=replace(change, watch=watch))
        if state.phase == FLUSHING and now - max(change.said, change.began) > _SAY_AGAIN_S:
            again = (name for name in late if state.nodes[name].attending)
            assert state.change is not None
            state = replace(state, change=replace(state.change, said=now))
            return state, [s.SendFlush(tuple(sorted(again)), change.number, change.why)]
        if state.phase == PREPARING and (slow := self._slow_joiners(state, now)):
            assert state.pinned is not None
            why, effects = f"{', '.join(slow)} takes long to fetch its part", list[s.Effect]()
            if not any(state.nodes[name].cannot_follow for name in slow):
                state = self._to_catch_up(state, slow, state.pinned.plan)
            elif self._needs(state, set(slow)):
                assert state.change is not None
                return replace(state, change=replace(state.change, needs_all=True)), []
            else:
                state, effects = self._stays_spare(state, slow, f"all waited for {now - change.began:.0f} s")
            state, more = self._begin(state, why, now)
            return state, effects + more
        if held := overdue(state, late, self._least, self._known.slowest_bps, now):
            return self._overdue(state, *held, now)
        if watch.gives_up(now) and not self._waits(state, late, now - watch.since):
            stood = f"nothing has moved for {now - watch.since:.0f} s"
            what = "no answer to the flush" if state.phase == FLUSHING else "not prepared"
            return self._expel(state, late, f"{what}, and {stood}", now)
        return state, []

    def _overdue(self, state: State, name: str, longest: float, now: float) -> Result:
        """A node says that it moves, and has had longer than what it has to do can take (overdue.py)."""
        assert state.change is not None
        what = "did not answer the flush" if state.phase == FLUSHING else f"did not prepare view {state.number}"
        why = f"{name} {what} within {longest:.0f} s, which is {MOVING} times what it takes, and says that it moves"
        if self._needs(state, {name}):
            state = replace(state, change=replace(state.change, needs_all=True))
            return state, [s.Say("warning", name, f"{why}: nobody can train without it, so all wait")]
        return self._set_aside(aside(state, name, now), state.nodes[name], why, now)

    def _waits(self, state: State, names: frozenset[str] | set[str], stood: float) -> bool:
        """Whether these are waited for although nothing of them has moved for so long: nobody is out while it computes,
        or its link carries."""
        least = self._least(state, names)
        if stood <= least:
            return True
        trips = max((self._known.round_trip_s(name) for name in names), default=0.0)
        rates = [rate for name in names if (rate := self._known.rate_bps(name)) > 0]
        return stood <= patience(least, trips, min(rates, default=0.0))

    def _least(self, state: State, names: frozenset[str] | set[str]) -> float:
        rules = state.rules
        if state.phase != FLUSHING:
            return rules.prepare_s
        training = set(state.view.plan.nodes) if state.view else set()
        first = any(name in training and name not in state.stepped for name in names)  # it may be compiling
        return max(rules.first_s if first else rules.flush_s, _STEPS_OF_PATIENCE * state.slowest_s)

    def _expel(self, state: State, names: frozenset[str] | set[str], why: str, now: float) -> Result:
        effects: list[s.Effect] = []
        for name in sorted(names):
            node = state.nodes.get(name)
            if node is not None:
                effects.append(s.SendStop((name,), f"{why}; join again", failed=True, again=True))
                state, more = self._gone(state, node, why, now)
                effects += more
        return state, effects

    def _waiting(self, state: State, now: float) -> Result:
        rules = state.rules
        if state.paused:
            return replace(state, why=state.paused), []
        present = [node for node in state.nodes.values() if node.attending and not no_place(state, node)]
        without = "".join(f"; {node.name} is {why}" for node in state.nodes.values() if (why := no_place(state, node)))
        names = ", ".join(sorted(node.name for node in present)) or "nobody"
        wanted = 1 if state.begun else rules.wanted
        if len(present) < wanted:
            more = wanted - len(present)
            need = f"waiting for {more} more node{'s' if more > 1 else ''}"
            reason = f" ({rules.wanted_why})" if not state.begun else ""
            return replace(state, why=f"{need}{reason}; {names} in{without}"), []
        if frozenset(node.name for node in present) == state.unplannable:
            return state, []
        if not self._settled(state, now):
            return state, []
        state, effects = self._measure(state, present, now)
        if not all(state.nodes[node.name].measured for node in present):
            waiting = ", ".join(node.name for node in present if not state.nodes[node.name].measured)
            return replace(state, why=f"waiting for {waiting} to measure links"), effects
        if state.begun:
            why = f"{names} in: the run goes on"
        else:
            why = f"{len(present)} node{'s' if len(present) > 1 else ''} in: the run starts"
        state, more_effects = self._begin(state, why, now)
        return state, effects + more_effects

    def _settled(self, state: State, now: float) -> bool:
        """Whether the last join is long enough ago; after a restart, whether the old members had time to return."""
        if state.restored and state.view is not None and not state.number > state.view.number:
            back = {node.session for node in state.nodes.values() if node.attending}
            if {member.session for member in state.view.members} - back and state.begun:
                return now - state.last_join >= state.rules.return_s
        return now - state.last_join >= state.rules.settle_s

    def _measure(self, state: State, nodes: list[Node], now: float) -> Result:
        """Ask those that were never asked; those asked too long ago count as measured."""
        effects: list[s.Effect] = []
        asked: dict[str, list[s.Member]] = {}
        ordered = sorted(nodes, key=lambda node: node.name)
        most = min(len(state.nodes), ALL)
        old = [other.name for other in state.nodes.values() if other.measured]
        new = [node.name for node in ordered if not node.measured]
        for index, name in enumerate(new):
            node = state.nodes[name]
            if node.asked is None:
                # Each pair once, by its first; a joiner measures to those who are in already. Of many, to a few.
                peers = [*old, *new[index + 1 :]]
                asked[node.name] = [state.nodes[peer].member for peer in chosen(node.name, peers)]
            elif now - node.asked > (patience := state.rules.measure_s * max(1.0, most / _PEERS_IN_TIME)):
                why = f"{node.name} did not measure its links within {patience:.0f} s; guesses are used"
                state = put(state, replace(node, measured=True))
                effects.append(s.Say("warning", node.name, why))
        for name in list(asked):
            for peer in list(asked[name]):
                if peer.dials_out:  # it has to open the connection, so it measures the other way
                    asked.setdefault(peer.name, []).append(state.nodes[name].member)
        told = {}
        for name, wanted in asked.items():
            node = state.nodes[name]
            told[name] = replace(node, asked=now, measured=node.measured or not wanted)
            if wanted:
                effects.append(s.SendMeasure(name, tuple(wanted), f"{name} measures {len(wanted)} links"))
        return (replace(state, nodes={**state.nodes, **told}) if told else state), effects

    def _newcomers(self, state: State, now: float) -> Result:
        """Nodes that attend and are not in the view: measure them, then see whether the plan wants them."""
        view = state.view
        assert view is not None
        sessions = view.sessions
        outside = (  # first, for of a thousand nodes nearly all are in the view
            node
            for node in state.nodes.values()
            if sessions.get(node.name) != node.session or (node.returns and node.name not in view.plan.nodes)
        )
        new = [
            node
            for node in outside
            if node.attending and node.ready and not node.passed_over and not no_place(state, node)
        ]
        if not new or not self._settled(state, now):
            return state, []
        state, effects = self._measure(state, new, now)
        if not all(state.nodes[node.name].measured for node in new):
            return state, effects
        names = ", ".join(sorted(node.name for node in new))
        present = plannable(state)
        try:
            plan = self._plan(state, present, view.plan)
        except PlanError as error:
            plan, why = view.plan, str(error)
        else:
            why = "the plan is as fast without it"
        if plan.same_placement(view.plan):
            for node in new:
                said = plan.spares.get(node.name, why)
                state = put(state, replace(state.nodes[node.name], passed_over=True))
                effects.append(s.SendNotice((node.name,), f"{node.name} is a spare: {said}"))
            return replace(state, why=f"{names} is held as a spare: {why}"), effects
        lacking = [node.name for node in new if (node.name, node.session) not in state.eligible]
        late = [name for name in lacking if name in plan.nodes and self._fetch_s(name, plan) > state.slowest_s]
        state = self._to_catch_up(state, late, plan)
        back = all(node.returns for node in new)
        state, more = self._begin(state, f"{names} {'is back' if back else 'joined'}", now)
        return state, effects + more

    # ---- spares that catch up ------------------------------------------------------------------

    def _to_catch_up(self, state: State, names: list[str], plan: Plan) -> State:
        """These nodes, of which ``plan`` wants something, follow its like as spares first, if there is one."""
        assert state.view is not None
        for name in names if self._follow else ():
            node = state.nodes[name]
            if not node.cannot_follow and place_to_follow(plan, state.view.plan, name) is not None:
                state = replace(put(state, replace(node, behind=True)), wanted=plan)
        return state

    def _slow_joiners(self, state: State, now: float) -> list[str]:
        """Those for whom everybody waits longer than is good while a view is prepared; none if others are late too."""
        change, view = state.change, state.pinned
        assert change is not None and view is not None
        late = change.awaited - set(change.prepared)
        waited = now - change.began
        if not self._follow or view.checkpoint >= 0 or state.view is None or waited < max(_LATE_S, 3 * state.slowest_s):
            return []
        joiners = late & set(view.plan.nodes) - {name for names in view.holders for name in names}
        able = [
            name
            for name in sorted(joiners)
            if not state.nodes[name].cannot_follow and place_to_follow(view.plan, state.view.plan, name) is not None
        ]
        if late and set(able) == late:
            return able
        if late - joiners or waited < self._worth(state) or change.needs_all:
            return []
        return sorted(late)

    def _worth(self, state: State) -> float:
        """Seconds that everybody may stand still for one that cannot catch up while the others train."""
        return max(_WORTH_S, _STEPS_OF_PATIENCE * state.slowest_s)

    def _needs(self, state: State, names: set[str]) -> bool:
        """Whether nobody could train without these."""
        try:
            others = (name for name in plannable(state) if not no_place(state, state.nodes[name]))
            current = state.view.plan if state.view else None
            self._search(state, tuple(name for name in others if name not in names), current)
        except PlanError:
            return True
        return False

    def _caught_up(self, state: State, event: s.CaughtUp, now: float) -> Result:
        node, view = state.nodes[event.name], state.view
        if state.phase != TRAINING or view is None or event.view != view.number or state.finished:
            return state, []
        if all(one.node != node.name for one in view.shadows):
            return state, []
        if node.cannot_follow if event.failed else node.caught_up is not None:
            return state, []  # it says so again
        if event.failed:
            state = replace(state, eligible=state.eligible - {(node.name, node.session)})
            return self._cannot_follow(state, node, event.failed, now)
        state = replace(state, eligible=state.eligible | {(node.name, node.session)})
        return self._admit(put(state, replace(node, caught_up=now)), now)

    def _cannot_follow(self, state: State, node: Node, failed: str, now: float) -> Result:
        """A spare cannot catch up while the others train: they wait for it if that is short, else it stays a spare."""
        why = f"{node.name} cannot catch up as a spare: {failed}"
        wanted = node.behind and state.wanted is not None and node.name in state.wanted.nodes
        seconds = self._fetch_s(node.name, state.wanted) if wanted and state.wanted is not None else 0.0
        state = put(state, replace(node, behind=False, cannot_follow=True))
        if not wanted:
            return state, [s.Say("warning", node.name, why)]
        worth = self._worth(state)
        if seconds <= worth:
            return self._begin(state, why, now)
        faster = f"the others would wait for a link {max(1.1, seconds / worth):.2g} times as fast"
        return self._stays_spare(state, [node.name], f"{failed}; alone it would fetch for {seconds:.0f} s: {faster}")

    def _stays_spare(self, state: State, names: list[str], failed: str) -> Result:
        """These are left out from now on, with the reason, unless nobody could train without them."""
        effects: list[s.Effect] = []
        for name in names:
            reason = f"it cannot catch up with the others: {failed}"
            state = put(state, replace(state.nodes[name], too_slow=reason, behind=False, passed_over=True))
            effects.append(s.Say("warning", name, f"{name} stays a spare: {reason}"))
            effects.append(s.SendNotice((name,), f"{name} is a spare: {reason}"))
        still = any(node.behind for node in state.nodes.values())
        return replace(state, wanted=state.wanted if still else None), effects

    def _admit(self, state: State, now: float) -> Result:
        """Those who have caught up get their places: together, if the others take no more than twice as long."""
        behind = [node for node in state.nodes.values() if node.behind]
        for node in behind:
            since = max(state.started, node.moved_at)
            if node.caught_up is None and not self._waits(state, {node.name}, now - since):
                return self._cannot_follow(state, node, f"nothing has moved for {now - since:.0f} s", now)
        ready = {node.name: node.caught_up for node in behind if node.caught_up is not None}
        if not ready:
            return state, []
        first = min(ready.values())
        if len(ready) < len(behind) and now - first < first - state.started:
            return state, []
        verb = "have" if len(ready) > 1 else "has"
        return self._begin(state, f"{', '.join(sorted(ready))} joined and {verb} caught up", now)

    # ---- the view change -----------------------------------------------------------------------

    def _begin(self, state: State, why: str, now: float) -> Result:
        """Announce the next number; everybody who could be in it flushes."""
        number = state.number + 1
        awaited = frozenset(plannable(state))
        if not awaited:
            state = replace(state, phase=WAITING, change=None, number=number, finished={}, diverged=None)
            state, effects = self._waiting(state, now)
            return replace(state, why=f"{why}; {state.why}"), effects
        nodes = {}
        for name, node in state.nodes.items():
            behind = node.behind and node.caught_up is None
            node = replace(node, passed_over=False, returns=False, told_to_leave=None)
            nodes[name] = replace(node, behind=behind, caught_up=None)
        change = Change(number, why, now, awaited=awaited, watch=Watch("the flush", now, state.rules.flush_s))
        sentence = f"view {number} is being made: {why}"
        state = replace(state, phase=FLUSHING, number=number, nodes=nodes, change=change, why=sentence)
        state = replace(state, finished={}, ended=None, diverged=None, down={})
        to = tuple(sorted(name for name in awaited if nodes[name].attending))
        return state, [s.SendFlush(to, number, why)] if to else []

    def _flushed(self, state: State, event: s.Flushed, now: float) -> Result:
        change = state.change
        if state.phase != FLUSHING or change is None or event.view != change.number or event.name not in change.awaited:
            return state, self._say_again(state, event.name, event.view)
        change = replace(change, flushed={**change.flushed, event.name: event})
        return self._check_flushed(replace(state, change=change), now)

    def _check_flushed(self, state: State, now: float) -> Result:
        change = state.change
        assert change is not None
        if not change.awaited:
            state = replace(state, phase=WAITING, change=None)
            return self._waiting(state, now)
        if len(change.flushed) < len(change.awaited):  # nobody else answers
            return state, []
        if state.paused:
            return replace(state, phase=WAITING, change=None, why=state.paused), []
        if state.aside is not None:
            return state, []  # nobody knows yet which checkpoint is left
        decision = self._decide(state, change.flushed)
        names = tuple(sorted(change.awaited))
        current = state.pinned or state.view
        if decision.checkpoint >= 0:  # everybody loads it: nobody has a start
            state = replace(state, nodes={name: replace(one, behind=False) for name, one in state.nodes.items()})
        try:
            plan = self._plan(state, names, current.plan if current else None)
        except PlanError as error:
            stuck = "".join(f"; {node.name} is {node.stuck}" for node in state.nodes.values() if node.stuck)
            why = f"no plan for {', '.join(names)}: {error}{stuck}"
            willing = frozenset(name for name in names if not no_place(state, state.nodes[name]))
            state = replace(state, phase=WAITING, change=None, why=why, unplannable=willing)
            return state, [s.SendNotice(names, why), s.Say("waiting", "", why)]
        if set(decision.restores) - set(plan.nodes):  # who has no place contributes nothing
            having = {
                name: answer if name in plan.nodes else replace(answer, kept=frozenset())
                for name, answer in change.flushed.items()
            }
            decision = self._decide(state, having)
        why = f"{change.why}; {decision.why}; {plan.why}" if plan.why else f"{change.why}; {decision.why}"
        if not self._follow and decision.checkpoint < 0 and (fresh := fresh_layers(plan, decision.holders)):
            why += f"; {fresh} begins at the last average: nobody who has it now had it before"
        given: tuple[s.Handover, ...] = ()
        if decision.checkpoint < 0 and state.view is not None:
            gone = {name for name, node in state.nodes.items() if node.parting or node.away}
            unsent = {name: answer.unsent for name, answer in change.flushed.items()}
            given = handovers(state.view.plan, plan, decision.holders, gone, state.rules.residuals, unsent)
        if state.rules.residuals is not None and (secret := state.rules.residuals.shown_to_nobody):
            if said := lost(given, change.flushed, secret, state.rules.residuals.gradient):
                why += f"; {said}"
            given = ()
        announcement = s.Announcement(
            change.number,
            plan,
            tuple(state.nodes[name].member for name in names),
            decision.position,
            decision.sections,
            decision.holders,
            decision.checkpoint,
            decision.norm,
            why,
            state.job,
            state.saving
            or any(answer.save for answer in change.flushed.values())
            or lacks_checkpoint(state, decision.position.step),
            self._shadows(state, plan, decision.holders),
            decision.restores,
            state.unsent.view if state.unsent is not None and decision.restores else 0,
            given,
        )
        effects: list[s.Effect] = [
            s.Say("warning", name, f"{name} has another chain of rounds than its group and fetches the group's weights")
            for name in decision.dissent
        ]
        eligible = planned_nodes(plan, announcement)
        if decision.checkpoint < 0:
            # The outvoted count again when the view starts: until then they may still hold what they had.
            eligible |= state.eligible
            eligible = frozenset(who for who in eligible if who[0] not in decision.dissent)
        state = replace(
            state,
            phase=PREPARING,
            pinned=announcement,
            eligible=eligible,
            change=replace(change, began=now, prepared={}, watch=Watch("the view", now, state.rules.prepare_s)),
            why=f"view {change.number} is announced: {why}",
        )
        return state, [*effects, s.SendView(names, announcement, why)]

    def _decide(self, state: State, flushed: Mapping[str, s.Flushed]) -> Resume:
        """Where the next view takes up."""
        return resume(
            state.rules,
            state.view,
            state.pinned,
            state.eligible,
            flushed,
            state.reported,
            state.newest,
            judge=not state.restored,  # whether the last view of a coordinator that ended has started is not known
            unsent=state.unsent,
            kept=state.kept,
        )

    def _shadows(self, state: State, plan: Plan, holders: tuple[tuple[str, ...], ...]) -> tuple[s.Shadow, ...]:
        """What the spares of a plan follow."""
        if not self._follow:
            return ()
        has_all = {name for name in plan.spares if any(name in names for names in holders)}
        spares = [
            name
            for name in plan.spares
            if (node := state.nodes.get(name)) and not no_place(state, node)
            if node.behind or not (node.cannot_follow or node.too_slow) or name in has_all
        ]
        wanted = {}
        for name in spares:
            if state.nodes[name].behind and state.wanted is not None and name in state.wanted.nodes:
                place = place_to_follow(state.wanted, plan, name)
                if place is not None:
                    wanted[name] = place
        return shadows(plan, spares, holders, wanted)

    def _say_again(self, state: State, name: str, view: int) -> list[s.Effect]:
        """What a node seems to wait for that says again that it has flushed for, or prepared, a view."""
        to, change, now = (name,), state.change, state.view
        if state.phase == FLUSHING and change and name in change.awaited and view < change.number:
            return [] if name in change.flushed else [s.SendFlush(to, change.number, change.why)]
        if state.phase == PREPARING and change and state.pinned and name in change.awaited:
            if view == change.number and name not in change.prepared:
                return [s.SendView(to, state.pinned, state.pinned.why)]
        elif state.phase == TRAINING and now and view == now.number and in_view(state, name, now):
            return [s.SendStart(to, view, f"view {view} trains")]
        return []

    def _prepared(self, state: State, event: s.Prepared, now: float) -> Result:
        change = state.change
        if (
            state.phase != PREPARING
            or change is None
            or event.view != change.number
            or event.name not in change.awaited
        ):
            return state, self._say_again(state, event.name, event.view)
        unreadable = {name: one for name, one in state.unreadable.items() if name != event.name}
        change = replace(change, prepared={**change.prepared, event.name: event})
        return self._check_prepared(replace(state, change=change, unreadable=unreadable), now)

    def _unreadable(self, state: State, event: s.Unreadable, now: float) -> Result:
        """A node cannot use the checkpoint with which the view is to begin."""
        change, view = state.change, state.pinned
        if state.phase != PREPARING or change is None or view is None or event.view != change.number:
            return state, self._say_again(state, event.name, event.view)
        known = state.unreadable.get(event.name)
        if view.checkpoint <= 0 or event.name not in view.plan.nodes or (known and known.session == event.session):
            return state, []
        why = f"{event.name} cannot read {event.file} of the checkpoint of step {view.checkpoint}: {event.why}"
        effects: list[s.Effect] = [s.Say("warning", event.name, why)]
        if not change.looked_at:
            effects.append(s.LookAt(view.checkpoint, why))
        state = replace(state, unreadable={**state.unreadable, event.name: event})
        state = replace(state, change=replace(change, looked_at=True))
        state, more = self._check_prepared(state, now)
        return state, effects + more

    def _sound(self, state: State, event: s.CheckpointSound, now: float) -> Result:
        """The checkpoint that somebody cannot read is as it was stored."""
        if state.phase != PREPARING or state.change is None or state.pinned is None:
            return state, []
        if state.pinned.checkpoint != event.step:
            return state, []
        return self._check_prepared(replace(state, change=replace(state.change, sound=now)), now)

    def _lost(self, state: State, event: s.CheckpointLost, now: float) -> Result:
        """A checkpoint is out of the way: who was to begin with it begins with the one before."""
        if state.newest.step >= event.step:
            state = replace(state, newest=event.position, unsent=event.unsent)
        state = replace(state, aside=None, unreadable={})
        effects: list[s.Effect] = [s.Say("warning", "", event.why)]
        if state.phase == PREPARING and state.pinned is not None and state.pinned.checkpoint == event.step:
            state, more = self._begin(state, event.why, now)
        elif state.phase == FLUSHING:
            state, more = self._check_flushed(state, now)
        else:
            more = []
        return state, effects + more

    def _check_readable(self, state: State, now: float) -> Result:
        """What follows from some who cannot read the checkpoint, once the coordinator has read it."""
        change, view = state.change, state.pinned
        assert change is not None and view is not None
        if change.sound is None or state.aside is not None:
            return state, []
        here, spoken = cannot_read(state), set(change.prepared)
        found = judged(view.plan, view.checkpoint, state.unreadable, here, spoken, now - change.sound)
        if found.aside:
            return replace(state, aside=view.checkpoint), [s.PutAside(view.checkpoint, found.aside)]
        if not found.wrong:
            return state, []
        return self._outvoted(state, found.wrong, now, "test its memory and its disk")

    def _check_prepared(self, state: State, now: float) -> Result:
        change, view = state.change, state.pinned
        assert change is not None and view is not None
        if cannot_read(state) & set(view.plan.nodes):
            return self._check_readable(state, now)
        if len(change.prepared) < len(change.awaited) or change.awaited - set(change.prepared):
            return state, []
        bases = self._bases(state, change, view)
        strangers = {}
        for name in sorted(change.awaited):
            held = change.prepared[name].bases
            other = sorted(layer for layer, content in held.items() if bases.get(layer, content) != content)
            if other:
                strangers[name] = other
        if strangers:
            return self._other_base(state, strangers, now)
        found = split({name: answer.fingerprints for name, answer in change.prepared.items()})
        if found.outvoted:
            return self._outvoted(state, found.outvoted, now)
        if found.tie:
            return self._disagreed(state, found, now)
        state = replace(
            state,
            phase=TRAINING,
            view=view,
            pinned=None,
            eligible=planned_nodes(view.plan, view)
            | {(one.node, state.nodes[one.node].session) for one in view.shadows if not one.fetch},
            wanted=state.wanted if any(node.behind for node in state.nodes.values()) else None,
            started=now,
            slowest_s=state.slowest_s or self._known.step_s(view.plan),
            bases=bases,
            change=None,
            begun=True,
            restored=False,
            reported={},
            seconds={},
            waits={},
            standstill=None,
            finished={},
            disagreements=0,
            unreadable={} if view.checkpoint >= 0 else state.unreadable,
            unplannable=frozenset(),
            why=f"view {view.number} trains: {view.why}",
        )
        effects: list[s.Effect] = [
            s.SendStart(tuple(sorted(change.awaited)), view.number, f"view {view.number} trains")
        ]
        effects += [
            s.SendStop((node.name,), f"{node.name} is {no_place(state, node)}")
            for node in state.nodes.values()
            if node.name not in view.plan.nodes and leaves(state, node)
        ]
        return state, effects

    def _bases(self, state: State, change: Change, view: s.Announcement) -> dict[int, int]:
        """What the frozen weights of each layer must be: a node has a say in the layers of its place."""
        trained: list[dict[int, int]] = []
        new: list[dict[int, int]] = []
        for name in state.nodes:  # in the order in which they joined
            if name in change.prepared and name in view.plan:
                own = view.plan.layers_of(name)
                bases = {layer: one for layer, one in change.prepared[name].bases.items() if layer in own}
                before = state.view is not None and trains(state, name, state.view)
                (trained if before else new).append(bases)
        return expected_bases(state.bases, trained, new)

    def _other_base(self, state: State, strangers: dict[str, list[int]], now: float) -> Result:
        """These hold frozen weights that are not the run's: what they compute is of no use. The others go on."""
        effects: list[s.Effect] = []
        for name, layers in strangers.items():
            if name not in state.nodes:
                continue  # the one before it was a spare, and all were looked at again
            where = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"
            why = (
                f"its frozen weights of {where} are not those of the base {state.rules.base} that the run trains with; "
                "if that folder was changed meanwhile, put it back as it was; if not, test the node's memory"
            )
            effects.append(s.SendStop((name,), f"{name} cannot train: {why}; then join again", refused=True))
            effects.append(s.Say("warning", name, f"{name} is put out: {why}"))
            state, more = self._gone(state, state.nodes[name], why, now)
            effects += more
        return state, effects

    def _outvoted(
        self, state: State, outvoted: Mapping[str, str], now: float, advice: str = "test its memory"
    ) -> Result:
        """What these hold, or can read, is not what most members of a section do: the others go on without them."""
        effects: list[s.Effect] = []
        for name, what in outvoted.items():
            if name not in state.nodes:
                continue
            why = f"{what}; {advice}, and join again when it is sound"
            effects.append(s.SendStop((name,), f"{name} cannot train: {why}", refused=True))
            effects.append(s.Say("warning", name, f"{name} is put out: {why}"))
            state, more = self._gone(state, state.nodes[name], why, now)
            effects += more
        return state, effects

    def _disagreed(self, state: State, found: Split, now: float) -> Result:
        """As many nodes of a group hold one thing as another: nobody's weights are trusted, only the checkpoint's are.
        The second time in a row those who cannot agree are planned apart, so that one of them does not end the run."""
        clash, count = found.tie, state.disagreements + 1
        if count > _DISAGREEMENTS:
            everybody = tuple(sorted(state.nodes))
            why = f"{clash}, {count} times in a row"
            state = replace(state, phase=DONE, why=why)
            return state, [
                s.SendStop(everybody, why, failed=True),
                s.Fail(why, "this is a fault of farflung: report it"),
            ]
        if count == _DISAGREEMENTS:
            state = replace(state, broken=state.broken | apart(found.camps), unplannable=frozenset())
            clash += " again: they are planned apart"
        state = replace(state, disagreements=count)
        view = state.pinned
        assert view is not None
        # Where they have just read it from a checkpoint, that is not what is wrong.
        return self._back(state, clash, view.position.step if view.checkpoint < 0 else 0, now)

    def _back(self, state: State, clash: str, step: int, now: float) -> Result:
        """Of nobody's weights of ``step`` it is known whether they are right: all go back to what was before."""
        state, aside = distrust(state, step, clash)
        state = replace(state, eligible=frozenset())
        state, effects = self._begin(state, f"{clash}: back to the newest checkpoint", now)
        return state, [s.Say("warning", "", clash), *aside, *effects]

    # ---- the end -------------------------------------------------------------------------------

    def _finished(self, state: State, event: s.Finished, now: float) -> Result:
        if state.phase != TRAINING or state.view is None or event.view != state.view.number:
            return state, []
        return self._check_finished(replace(state, finished={**state.finished, event.name: event}), now)

    def _check_finished(self, state: State, now: float) -> Result:
        """Done when every node of the plan is, and the checkpoint of the last step is complete. One that does not come
        is made again by another view, for as long as it takes: the weights are on the nodes, and nowhere else."""
        if state.phase != TRAINING or state.view is None or not state.finished:
            return state, []
        if set(state.view.plan.nodes) - set(state.finished):
            return state, []
        found = split({name: answer.fingerprints for name, answer in state.finished.items()})
        step = max(answer.step for name, answer in state.finished.items() if name not in found.outvoted)
        everybody = tuple(sorted(state.nodes))
        if found.tie:
            return self._tie_at_end(state, found, step, now)
        effects: list[s.Effect] = []
        if state.newest.step < step:
            least = state.rules.last_checkpoint_s
            trips = max((self._known.round_trip_s(name) for name in state.nodes), default=0.0)
            watch = state.ended or Watch("the last checkpoint", now, patience(least, trips), state.stored)
            watch = watch.at(state.stored, now)
            stood, full = watch.gives_up(now), state.unstored
            full = full if full is not None and full.step == step else None
            what = last_of(state.rules.give_up, bool(state.nodes), stood, full, now)
            reason = full.why if full is not None else stood
            lost = f"the checkpoint of step {step} did not arrive; the newest is of step {state.newest.step}"
            lost += f" ({reason})" if reason else ""
            if what is Last.GIVE_UP:
                effects.append(s.Say("warning", "", lost))
            elif (full is not None and not full.told) or (full is None and what is Last.AGAIN):
                effects.append(s.Say("warning", "", f"{lost}: {NOT_DONE}"))
            if what is Last.WAIT:
                full = None if full is None else replace(full, told=True)
                why = f"all {step} steps are trained; waiting for the last checkpoint"
                why += f": {reason}" if reason else ""
                return replace(state, ended=watch, unstored=full, why=why), effects
            if what is Last.AGAIN:
                state = replace(state, saving=True, unstored=None)
                state, more = self._begin(state, f"{lost}; it is made again", now)
                return state, [*effects, *more]
        effects += [
            s.Say("warning", name, f"at the end {name} does not count: {why}; test its memory")
            for name, why in found.outvoted.items()
        ]
        why = f"the run is done: {step} steps"
        return replace(state, phase=DONE, why=why), [*effects, s.Finish(step, why), s.SendStop(everybody, why)]

    def _tie_at_end(self, state: State, found: Split, step: int, now: float) -> Result:
        """As many have trained one thing to the end as another: back to a checkpoint, as in the middle. From the second
        time on those who cannot agree are planned apart, so that it ends."""
        clash, pairs = f"at the end, {found.tie}", apart(found.camps)
        if state.ties_at_end and pairs <= state.broken:
            everybody = tuple(sorted(state.nodes))
            state = replace(state, phase=DONE, why=clash)
            stop = s.SendStop(everybody, clash, failed=True)
            return state, [stop, s.Fail(clash, "the checkpoints before the end are good: see `farflung status`")]
        if state.ties_at_end:
            state = replace(state, broken=state.broken | pairs, unplannable=frozenset())
            clash += " again: they are planned apart"
        return self._back(replace(state, ties_at_end=state.ties_at_end + 1), clash, step, now)


# ---- which event is taken by what ----------------------------------------------------------------

_Handler = Callable[[Membership, State, Any, float], Result]

_OF_THE_RUN: Mapping[type, _Handler] = {
    s.Joined: Membership._joined,
    s.Beats: Membership._beats,
    s.StepFinished: Membership._stepped,
    s.Steps: Membership._all_stepped,
    s.CheckpointComplete: Membership._stored,
    s.CheckpointSound: Membership._sound,
    s.CheckpointLost: Membership._lost,
    s.NotStored: Membership._not_stored,
    s.Apart: Membership._apart,
    s.Hold: Membership._held,
    s.Release: Membership._released,
    s.Evict: Membership._evicted,
    s.Readmit: Membership._readmitted,
    s.Pause: Membership._paused,
    s.GoOn: Membership._goes_on,
    s.Changed: Membership._job_changed,
    s.Save: Membership._saves,
    s.Replan: Membership._replanned,
    s.Over: Membership._over,
    s.Tick: Membership._tick,
}
"""Planned and Undecidable are ``apply``'s own."""
_OF_A_NODE: Mapping[type, _Handler] = {
    s.Hello: Membership._hello,
    s.Heard: Membership._beat,
    s.Measured: Membership._links_known,
    s.Flushed: Membership._flushed,
    s.Prepared: Membership._prepared,
    s.Kept: Membership._keeps,
    s.CaughtUp: Membership._caught_up,
    s.Finished: Membership._finished,
    s.Leaving: Membership._leaving,
    s.Back: Membership._is_back,
    s.Unreadable: Membership._unreadable,
    s.Waits: Membership._says_it_waits,
    s.Accused: Membership._complained,
}
"""What a node says itself, by which it is heard; of a life of it that is over nothing counts."""
_ABOUT_A_NODE: Mapping[type, _Handler] = {
    s.Left: Membership._left,
    s.StreamEnded: Membership._stream_ended,
    s.Dialled: Membership._dialled,
}
"""What the coordinator finds out about the present life of one."""
HANDLERS: Mapping[type, _Handler] = {**_OF_THE_RUN, **_OF_A_NODE, **_ABOUT_A_NODE}
