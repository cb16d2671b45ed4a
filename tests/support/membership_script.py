"""The membership machine driven by hand: events in, effects remembered."""

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.rules import Rules
from farflung.coordinator.membership.state import TRAINING, State
from farflung.scheduler.errors import PlanError
from farflung.scheduler.plans import Plan

LAYERS, MICROBATCH, BATCH = 4, 2, 8


def planner(names, current, broken, stages=2):
    """Pipelines of ``stages`` in the order of names, the rest spare; fewer stages for too few nodes."""
    names = sorted(names)
    if not names:
        raise PlanError("no nodes")
    stages = min(stages, len(names))
    count = min(len(names) // stages, BATCH // MICROBATCH)
    used = names[: count * stages]
    cut = [LAYERS * index // stages for index in range(stages + 1)]
    share, rest = divmod(BATCH // MICROBATCH, count)
    return Plan(
        tuple(tuple(used[index * stages : (index + 1) * stages]) for index in range(count)),
        tuple((cut[index], cut[index + 1] - 1) for index in range(stages)),
        tuple(share + (index < rest) for index in range(count)),
        dict.fromkeys(names[count * stages :], "one too many"),
    )


def rules(wanted=4, mode="gradient", **more):
    return Rules(
        mode=mode,
        batch=BATCH,
        microbatch=MICROBATCH,
        seed=1,
        samples=50,
        layers=LAYERS,
        wanted=wanted,
        wanted_why="2 stages x 2 pipelines",
        base="tiny",
        **more,
    )


class Script:
    """Feeds events and remembers the effects."""

    def __init__(self, wanted=4, **more):
        self.machine, self.state, self.now, self.effects = Membership(planner), State(rules(wanted, **more)), 0.0, []

    def __call__(self, *events, dt=0.0):
        self.now += dt
        self.effects = []
        for event in events:
            self.state, effects, _ = self.machine.apply(self.state, event, self.now)
            self.effects += effects
        return self

    def join(self, *names, session="1"):
        for name in names:
            self(s.Joined(name, name + session, f"{name}:1"), s.Hello(name, name + session, 0))
        return self

    def heartbeats(self):
        return [s.Heard(node.name, node.session) for node in self.state.nodes.values()]

    def wait(self, seconds):
        made = []
        for _ in range(int(seconds / 0.5)):
            self(s.Beats(tuple(self.heartbeats())), s.Tick(), dt=0.5)
            made += self.effects
        self.effects = made
        return self

    def answer(self, kind, names, **keys):
        number = self.state.change.number
        return self(*(kind(name, name + "1", number, **keys) for name in names))

    def get(self, kind):
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def started(self, names="abcd", **prepared):
        self.join(*names).wait(1.5)
        self(*(s.Measured(name, name + "1") for name in names))
        self.answer(s.Flushed, names).answer(s.Prepared, names, **prepared)
        assert self.state.phase == TRAINING
        return self


def holding(script, name, step, ready=None):
    """A plan member's answer to the flush: it holds its stage's layers."""
    plan = script.state.view.plan
    first, last = plan.stages[plan.stage_of(name)]
    number = script.state.change.number
    return s.Flushed(name, name + "1", number, step, ready or step, layers=frozenset(range(first, last + 1)))


def slow(seconds=60.0):
    """Two train, and a third joins that takes this long to fetch; the planner takes one stage."""
    script = Script(wanted=2)
    script.machine = Membership(lambda names, current, broken: planner(names, current, broken, 1), lambda *_: seconds)
    script.started("ab")
    steps(script, 3)
    script.join("c").wait(1.5)
    return script(s.Measured("c", "c1"))


def steps(script, number):
    script(*(s.StepFinished(name, name + "1", script.state.view.number, number, 0.5) for name in "ab"), dt=0.5)


def view_of(script, names, step, *more):
    """Everybody answers, the view begins."""
    script(*(holding(script, name, step) for name in names), *more)
    (sent,) = script.get(s.SendView)
    script.answer(s.Prepared, sorted(script.state.change.awaited))
    assert script.state.phase == TRAINING
    return sent.view


def flushed(script, name, step, layers=range(0)):
    return s.Flushed(name, name + "1", script.state.change.number, step, step, layers=frozenset(layers))


def silence(script, name, seconds):
    """Everybody but one sends heartbeats for a while; all effects."""
    beats = [beat for beat in script.heartbeats() if beat.name != name]
    made = []
    for _ in range(int(seconds * 2)):
        script(*beats, s.Tick(), dt=0.5)
        made += script.effects
    return made
