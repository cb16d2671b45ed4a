"""The membership machine, driven by hypothesis with a model of nodes that train, die and lose answers."""

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from membership_script import BATCH, planner, rules

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.state import DONE, TRAINING, State

HEARTBEATS = 10
"""Seconds, at one heartbeat a second, after which everybody has its place when nothing happens any more."""


@dataclass
class Fake:
    """A node of ``gradient`` mode: its weights are the list of all positions that went into them, step by step."""

    name: str
    session: str
    alive: bool = True
    loads_until: float = 0.0
    attending: bool = False
    inbox: list = field(default_factory=list)
    outbox: list = field(default_factory=list)
    said: list = field(default_factory=list)
    """What has reached the coordinator, which may reach it again."""
    view: s.Announcement | None = None
    trains: bool = False
    layers: frozenset = frozenset()
    history: list = field(default_factory=list)
    ready: tuple | None = None
    keeps: frozenset = frozenset()

    @property
    def step(self):
        return len(self.history)


class Cluster(RuleBasedStateMachine):
    """Random joins, deaths, lost answers, half-committed steps, checkpoints; any order of delivery between nodes."""

    def __init__(self):
        super().__init__()
        self.machine, self.state, self.now = Membership(planner), State(rules(wanted=2)), 0.0
        self.fakes: dict[str, Fake] = {}
        self.all: list[Fake] = []
        self.checkpoints: dict[int, list] = {0: []}
        self.sessions = 0
        self.announced = 0

    # The coordinator's shell.
    def feed(self, event):
        self.state, effects, _ = self.machine.apply(self.state, event, self.now)
        for effect in effects:
            assert effect.why
            assert "history" not in effect.why and "chain" not in effect.why, "honest nodes are never outvoted"
            if isinstance(effect, s.SendView):
                assert effect.view.number >= self.announced
                for member in effect.view.members if effect.view.number > self.announced else ():
                    assert self.state.nodes[member.name].session == member.session
                self.announced = effect.view.number
            if isinstance(effect, s.SendStop) and not effect.refused and self.state.phase == TRAINING:
                assert not set(effect.to) & set(self.state.view.plan.nodes), "it was to hand over first"
            if isinstance(effect, s.Dial):
                fake = self.fakes.get(effect.name)
                alive = fake is not None and fake.alive and fake.session == effect.session
                self.feed(s.Dialled(effect.name, effect.session, alive, "refused"))
            if isinstance(effect, s.Fence):
                fake = self.fakes.get(effect.name)
                if fake is not None and fake.session == effect.session:
                    self.fakes.pop(effect.name)
                    fake.alive = False
            if isinstance(effect, (s.SendFlush, s.SendView, s.SendStart, s.SendMeasure, s.SendLeave, s.SendStop)):
                for name in (effect.to,) if isinstance(effect.to, str) else effect.to:
                    fake = self.fakes.get(name)
                    if fake is not None and fake.attending:
                        fake.inbox.append(effect)

    def living(self):
        return [fake for fake in self.fakes.values() if fake.alive]

    # What a node does.
    def receive(self, fake, order):
        if isinstance(order, s.SendMeasure):
            fake.outbox.append(s.Measured(fake.name, fake.session))
        elif isinstance(order, s.SendLeave):
            fake.outbox.append(s.Leaving(fake.name, fake.session, order.why, order.stays, asked=True))
        elif isinstance(order, s.SendStop):
            fake.alive = fake.attending = fake.trains = False
            self.feed(s.Left(fake.name, fake.session, "told to"))
        elif isinstance(order, s.SendFlush):
            fake.trains = False
            ready = fake.ready[0] if fake.ready else fake.step
            chain = hash(tuple(fake.history))
            sections = tuple(s.Section(f"layer-{layer}", fake.step, chain) for layer in sorted(fake.layers))
            fake.outbox.append(
                s.Flushed(
                    fake.name,
                    fake.session,
                    order.view,
                    fake.step,
                    ready,
                    float(fake.step),
                    sections=sections,
                    layers=fake.layers,
                )
            )
        elif isinstance(order, s.SendView):
            self.take_view(fake, order.view)
        elif isinstance(order, s.SendStart) and fake.view and fake.view.number == order.view:
            fake.trains, fake.layers = True, fake.keeps

    def take_view(self, fake, view):
        """What was held is kept until the start: others may have to fetch it."""
        fake.trains = False
        plan, step = view.plan, view.position.step
        mine = frozenset()
        if fake.name in plan.nodes:
            first, last = plan.stages[plan.stage_of(fake.name)]
            mine = frozenset(range(first, last + 1))
        if view.checkpoint >= 0:
            fake.history, fake.layers = list(self.checkpoints[view.checkpoint]) if mine else [], mine
        else:
            if fake.layers and fake.step == step - 1 and fake.ready and fake.ready[0] == step:
                fake.history = [*fake.history, fake.ready[1]]
            if fake.step != step:
                fake.layers = frozenset()
            if mine - fake.layers:
                history = self.fetch(view, mine - fake.layers)
                if history is None:
                    return  # its sources are dead; the coordinator will say so
                assert not fake.layers or history == fake.history
                fake.history, fake.layers = history, fake.layers | mine
        assert not mine or fake.step == step
        fake.ready, fake.view, fake.keeps = None, view, mine
        mark = tuple(s.Fingerprint(f"layer-{layer}", step, hash(tuple(fake.history))) for layer in sorted(mine))
        fake.outbox.append(s.Prepared(fake.name, fake.session, view.number, mark))

    def fetch(self, view, layers):
        found = None
        for layer in layers:
            sources = [self.fakes[name] for name in view.holders[layer] if name in self.fakes]
            sources = [one for one in sources if one.session == view.session_of(one.name) and layer in one.layers]
            histories = []
            for one in sources:
                if one.step == view.position.step:
                    histories.append(one.history)
                elif one.step == view.position.step - 1 and one.ready:
                    histories.append([*one.history, one.ready[1]])
            if not histories:
                return None
            assert all(history == histories[0] for history in histories)
            found = histories[0]
        return list(found)

    # Rules.
    @initialize(count=st.integers(0, 5))
    def begin(self, count):
        for name in "abcdef"[:count]:
            self.join(name)
        self.smoothly(8 if count > 1 else 0)
        assert count < 2 or self.state.phase == TRAINING

    @rule(turns=st.integers(1, 8))
    def smoothly(self, turns):
        """Everything arrives for a while."""
        for _ in range(turns):
            for fake in list(self.living()):
                while fake.inbox and fake.alive:
                    self.receive(fake, fake.inbox.pop(0))
                while fake.outbox and fake.alive:
                    fake.said.append(fake.outbox[0])
                    self.feed(fake.outbox.pop(0))
            self.time_passes(0.5, 1)

    @precondition(lambda self: len(self.fakes) < 6)
    @rule(name=st.sampled_from("abcdef"))
    def join(self, name):
        if name in self.fakes and self.fakes[name].alive:
            return
        self.sessions += 1
        session = f"{name}{self.sessions}"
        self.feed(s.Joined(name, session, ""))
        fake = Fake(name, session, attending=True, loads_until=self.now + self.sessions % 3)
        self.fakes[name] = fake
        self.all.append(fake)
        self.feed(s.Hello(name, session, 0))

    def pick(self, index, among):
        return sorted(among, key=lambda fake: fake.name)[index % len(among)] if among else None

    @rule(index=st.integers(0, 5), noticed=st.booleans())
    def kill(self, index, noticed):
        fake = self.pick(index, self.living())
        if fake is None:
            return
        fake.alive = fake.attending = fake.trains = False
        fake.inbox, fake.outbox = [], []
        if noticed:
            self.feed(s.StreamEnded(fake.name, fake.session, "killed"))

    @rule(index=st.integers(0, 5))
    def leave(self, index):
        fake = self.pick(index, self.living())
        if fake is not None:
            fake.alive = fake.attending = fake.trains = False
            self.feed(s.Left(fake.name, fake.session, "goodbye"))

    @rule(name=st.sampled_from("abcdef"), leaves=st.booleans(), done=st.booleans())
    def hold(self, name, leaves, done):
        self.feed(s.Release(name, f"{name} released") if done else s.Hold(name, "held", leaves))

    @rule(index=st.integers(0, 5), stays=st.booleans(), back=st.booleans())
    def go_away(self, index, stays, back):
        fake = self.pick(index, self.living())
        if fake is not None:
            fake.outbox.append(
                s.Back(fake.name, fake.session) if back else s.Leaving(fake.name, fake.session, "away", stays)
            )

    @rule(index=st.integers(0, 5))
    def evict(self, index):
        fake = self.pick(index, self.living())
        if fake is not None:
            self.feed(s.Evict(fake.name, "evicted"))

    @rule(event=st.sampled_from([s.Pause("paused"), s.GoOn("resumed"), s.Changed("{}", "set"), s.Save("wanted")]))
    def command(self, event):
        self.feed(event)

    @rule(index=st.integers(0, 5))
    def reconnect(self, index):
        """The stream breaks: everything in flight on it is lost, both ways."""
        fake = self.pick(index, self.living())
        if fake is None:
            return
        fake.inbox, fake.outbox, fake.attending = [], [], False
        self.feed(s.StreamEnded(fake.name, fake.session, "reset"))
        if fake.alive:
            fake.attending = True
            self.feed(s.Hello(fake.name, fake.session, fake.view.number if fake.view else 0))

    @rule(index=st.integers(0, 5))
    def deliver_order(self, index):
        fake = self.pick(index, [one for one in self.living() if one.inbox])
        if fake is not None:
            self.receive(fake, fake.inbox.pop(0))

    @rule(index=st.integers(0, 5))
    def deliver_report(self, index):
        fake = self.pick(index, [one for one in self.living() if one.outbox])
        if fake is not None:
            fake.said.append(fake.outbox[0])
            self.feed(fake.outbox.pop(0))

    @rule(index=st.integers(0, 5), which=st.integers(0, 9))
    def twice(self, index, which):
        """A report comes again, as after a new connection; the coordinator had heard it."""
        fake = self.pick(index, [one for one in self.living() if one.said])
        if fake is not None:
            self.feed(fake.said[which % len(fake.said)])

    @rule(a=st.integers(0, 5), b=st.integers(0, 5))
    def plan_apart(self, a, b):
        one, other = self.pick(a, self.living()), self.pick(b, self.living())
        if one is not None and one is not other:
            self.feed(s.Apart(one.name, other.name, "planned apart"))

    @rule(a=st.integers(0, 5), b=st.integers(0, 5), times=st.integers(1, 4))
    def part(self, a, b, times):
        """Two that live cannot reach each other, for as many tries."""
        for _ in range(times):
            self.accuse(a, b)
            self.accuse(b, a)
            self.smoothly(3)

    @rule(a=st.integers(0, 5), b=st.integers(0, 5))
    def accuse(self, a, b):
        one, other = self.pick(a, self.living()), self.pick(b, self.living())
        if one is not None and one is not other and one.trains:
            self.feed(s.Accused(one.name, one.session, other.name, "reset"))

    @rule(a=st.integers(0, 5), b=st.integers(0, 5))
    def suspect(self, a, b):
        one, other = self.pick(a, self.living()), self.pick(b, self.living())
        if one is not None and one is not other and one.trains:
            self.feed(s.Accused(one.name, one.session, other.name, "h differs", diverged=True))

    def crew(self):
        """Nodes that train one view together, all of them there; None when there is no such view."""
        training = [fake for fake in self.living() if fake.trains and fake.name in fake.view.plan.nodes]
        if not training:
            return None
        newest = max(fake.view.number for fake in training)
        crew = [fake for fake in training if fake.view.number == newest]
        sessions = {fake.session for fake in crew}
        view = crew[0].view
        wanted = {view.session_of(name) for name in view.plan.nodes}
        return crew if sessions == wanted else None

    @rule(commits=st.integers(0, 6), limit=st.booleans())
    def train(self, commits, limit):
        """All of a crew hold the results of the next step; some of them, from the first, see its commit."""
        crew = self.crew()
        if crew is None or len({fake.step for fake in crew}) > 1:
            return
        step = crew[0].step + 1
        positions = tuple(crew[0].view.position.positions(step, BATCH))
        for fake in crew:
            fake.ready = (step, positions)
        for fake in crew[:commits] if limit else crew:
            self.commit(fake)

    def commit(self, fake):
        fake.history = [*fake.history, fake.ready[1]]
        fake.outbox.append(s.StepFinished(fake.name, fake.session, fake.view.number, fake.step))

    @rule()
    def commits_arrive(self):
        crew = self.crew()
        if crew and max(fake.step for fake in crew) > min(fake.step for fake in crew):
            top = max(fake.step for fake in crew)
            for fake in crew:
                if fake.step == top - 1 and fake.ready and fake.ready[0] == top:
                    self.commit(fake)

    @rule()
    def checkpoint(self):
        crew = self.crew()
        if crew and len({fake.step for fake in crew}) == 1:
            step = crew[0].step
            self.checkpoints[step] = list(crew[0].history)
            self.feed(s.CheckpointComplete(crew[0].view.position.after(step, BATCH)))

    @rule(seconds=st.sampled_from([0.3, 0.9]), times=st.integers(1, 20))
    def time_passes(self, seconds, times):
        for _ in range(times):
            self.now += seconds
            for fake in self.living():
                if fake.attending:
                    self.feed(s.Heard(fake.name, fake.session, self.now > fake.loads_until))
            self.feed(s.Tick())

    # Safety.
    @invariant()
    def weights_are_the_stream(self):
        """Whoever trains holds every sample of the stream once, in order, up to its step; a crew holds the same."""
        for fake in self.living():
            if fake.trains and fake.layers:
                trained = [position for step in fake.history for position in step]
                assert trained == list(range(len(trained)))
                assert len(trained) == fake.step * BATCH

    @invariant()
    def one_view_at_a_time(self):
        for fake in self.living():
            if fake.trains:
                assert fake.view.number <= self.state.number
                assert fake.view.session_of(fake.name) == fake.session
        views = {}
        for fake in self.living():
            if fake.trains and fake.name in fake.view.plan.nodes:
                views.setdefault(fake.view.number, []).append(fake)
        whole = [
            number
            for number, crew in views.items()
            if {crew[0].view.session_of(name) for name in crew[0].view.plan.nodes} == {fake.session for fake in crew}
        ]
        assert len(whole) <= 1, "two whole crews train"

    # Liveness.
    def nobody_is_held(self):
        self.feed(s.GoOn("resumed"))
        for name, node in list(self.state.nodes.items()):
            self.feed(s.Release(name, f"{name} released"))
            if node.parting:
                self.feed(s.Left(name, node.session, "taken away"))
            elif node.away:
                self.feed(s.Back(name, node.session))

    def has_its_place(self, fake):
        """In the view, or outside it as a spare that the plan does not want."""
        node = self.state.nodes[fake.name]
        return node.passed_over or self.state.view.session_of(fake.name) == fake.session

    def teardown(self):
        for fake in list(self.living()):
            if not fake.attending:
                fake.attending = True
                self.feed(s.Hello(fake.name, fake.session, 0))
        for _ in range(2 * HEARTBEATS):
            self.nobody_is_held()
            for name in "abcdef":
                if len(self.living()) < 2:
                    self.join(name)
            self.smoothly(1)
            crew = self.crew()
            if self.state.phase == TRAINING and crew is not None and all(self.has_its_place(f) for f in self.living()):
                break
        else:
            raise AssertionError(f"stuck: {self.state.phase}, {self.state.why}")
        for fake in crew:
            fake.trains = True
        self.commits_arrive()
        self.train(0, False)
        self.weights_are_the_stream()
        for fake in crew:
            self.feed(s.Finished(fake.name, fake.session, fake.view.number, fake.step))
        self.checkpoint()
        assert self.state.phase == DONE


test_cluster = Cluster.TestCase
test_cluster.settings = settings(max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@pytest.mark.timeout(3600)
class TestThousandsOfClusters(Cluster.TestCase):
    settings = settings(test_cluster.settings, max_examples=4000)
