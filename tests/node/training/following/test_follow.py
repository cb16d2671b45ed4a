"""A spare follows a stage while the others train, and takes a place in it without fetching anything."""

import threading

import pytest
from header_bodies import body_of
from windows import Windows, facts_of, wait_until

from farflung.job.schema import Job
from farflung.node.rounds.protocol import machine as rounds
from farflung.node.training import parting
from farflung.node.training.following import standby as follow
from farflung.node.wire.events import CoordinatorBack, CoordinatorLost
from farflung.proto import control_pb2, data_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

STEPS = 80


def job_of(mode: str, **more) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "follow", "seed": 3, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8, "tie": True},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 12, "microbatch": 2, "learning_rate": 3e-3, "eval_every": 0, **more.pop("train", {})},
            "updates": {"mode": mode, "block": 256, **more.pop("updates", {})},
            "checkpoint": {"every": 0},
        }
    )


def plan_of(pipelines, stages, shares) -> Plan:
    return Plan(pipelines=tuple(map(tuple, pipelines)), stages=stages, microbatches=shares)


PAIR = plan_of([["a"], ["b"]], ((0, 3),), (3, 3))
ALONE = plan_of([["a"]], ((0, 3),), (6,))


def begin(job, plan, nodes, shadows, more=()):
    facts = facts_of(samples=90, validation=10, context=8, vocabulary=17, steps=STEPS)
    data = Windows(facts)
    hub = Hub(job, facts)
    for name in (*nodes, *more):
        hub.start(name, data)
    hub.begin(plan, list(nodes), checkpoint=0, shadows=shadows)
    return hub, facts, data


def follows(hub, name):
    follower = hub.trainers[name].follower
    return follower is not None and follower.whole and follower._said


def shadow(node, like):
    return control_pb2.Shadow(node=node, like=like, fetch=True)


CASES = [
    ("gradient", {"codec": "none"}, {"optimizer": "lamb"}),
    ("delta", {"codec": "cocktail:random=0.5,top=0.5,bits=4", "overlap": 1}, {}),
    ("delta", {"codec": "int8", "every": 2, "outer": "nesterov:lr=0.7,momentum=0.9", "pattern": "publishers"}, {}),
    ("delta", {"codec": "powersgd:rank=2", "overlap": 1, "dense_rounds": 2}, {}),
]


@pytest.mark.parametrize(("mode", "updates", "train"), CASES)
def test_it_holds_what_the_group_holds(mode, updates, train):
    """The joiner's bits are those of the others at the view's beginning: the hub compares them. No state is fetched
    between the two views."""
    job = job_of(mode, updates=updates, train=train)
    hub, _, _ = begin(job, PAIR, "abc", [shadow("c", "a")])
    wait_until(lambda: follows(hub, "c") and hub.trainers["c"].follower.round > 2)
    asked = hub.bytes.get(data_pb2.STATE, 0)
    hub.change(plan_of([["a"], ["b"], ["c"]], ((0, 3),), (2, 2, 2)), list("abc"))
    assert hub.bytes[data_pb2.STATE] == asked > 0
    outcome = hub.finish(list("abc"))
    assert not hub.errors and outcome.warnings == []
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    assert outcome.losses[STEPS] < outcome.losses[1]


@pytest.mark.parametrize("mode", ["gradient", "delta"])
def test_a_group_of_one_is_followed(mode):
    hub, _, _ = begin(job_of(mode), ALONE, "ab", [shadow("b", "a")])
    wait_until(lambda: follows(hub, "b") and hub.trainers["b"].follower.round > 2)
    hub.change(PAIR, ["a", "b"])
    outcome = hub.finish(["a", "b"])
    assert not hub.errors and outcome.warnings == []


def test_a_spare_replaces_the_last_holder_of_a_stage():
    """Tied embeddings too: the spare has both sections of the first stage."""
    plan = plan_of([["a", "b"]], ((0, 1), (2, 3)), (6,))
    hub, _, _ = begin(job_of("delta"), plan, "abc", [shadow("c", "a")])
    wait_until(lambda: follows(hub, "c") and hub.trainers["c"].follower.round > 2)
    hub.kill("a")
    hub.change(plan_of([["c", "b"]], ((0, 1), (2, 3)), (6,)), ["b", "c"])
    outcome = hub.finish(["b", "c"])
    assert not hub.errors
    assert outcome.losses[STEPS] < outcome.losses[1]


def test_it_goes_on_following_in_the_next_view_without_a_snapshot():
    job = job_of("delta", updates={"codec": "int8"})
    hub, _, _ = begin(job, PAIR, "abc", [shadow("c", "a")])
    wait_until(lambda: follows(hub, "c"))
    asked = hub.bytes[data_pb2.STATE]
    hub.follow = [control_pb2.Shadow(node="c", like="b")]
    hub.change(PAIR, list("abc"))
    begun = hub.trainers["c"].follower.round
    wait_until(lambda: follows(hub, "c") and hub.trainers["c"].follower.round > begun)
    assert hub.bytes[data_pb2.STATE] == asked
    hub.follow = []
    hub.kill("a")
    hub.change(plan_of([["b"], ["c"]], ((0, 3),), (3, 3)), ["b", "c"])
    outcome = hub.finish(["b", "c"])
    assert not hub.errors and all(len(contents) == 1 for contents in outcome.fingerprints.values())


@pytest.mark.parametrize("mode", ["gradient", "delta"])
def test_a_source_dies_in_the_middle_and_the_snapshot_goes_on_with_another(mode):
    """Over the view change that its death is: the rounds of both views are applied to a snapshot of the first."""
    updates = {"codec": "none"} if mode == "gradient" else {"codec": "int8"}
    three = plan_of([["a"], ["b"], ["d"]], ((0, 3),), (2, 2, 2))
    hub, _, _ = begin(job_of(mode, updates=updates), three, "abd", [], more="c")
    came, late = [], []

    def tamper(sender, to, header, data):
        if header.kind == data_pb2.STATE and to == "c" and not hold.is_set():
            if len(came) >= 9:
                late.append((sender, to, header, data))
                return None
            came.append(data.nbytes)
        return data

    hold = threading.Event()
    hub.tamper = tamper
    hub.follow = [shadow("c", "a")]
    hub.change(three, list("abd"), ["c"])
    wait_until(lambda: len(came) == 9 and hub.trainers["a"].step > 8)
    size = hub.trainers["c"].follower.fetch._machine.reached
    assert 0 < size[0] < size[1]
    hub.kill("a")
    hold.set()
    hub.bytes[data_pb2.STATE] = 0
    hub.follow = [shadow("c", "b")]
    hub.change(plan_of([["b"], ["d"]], ((0, 3),), (3, 3)), list("bcd"))
    wait_until(lambda: follows(hub, "c"))
    assert 0 < hub.bytes[data_pb2.STATE] < size[1] - size[0] + 12_000  # headers, and digests
    hub.follow = []
    hub.change(plan_of([["b"], ["c"], ["d"]], ((0, 3),), (2, 2, 2)), list("bcd"))
    outcome = hub.finish(list("bcd"))
    assert not hub.errors and outcome.warnings == []
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())


@pytest.mark.parametrize("mode", ["gradient", "delta"])
def test_a_spare_that_still_fetches_is_given_a_place(mode):
    """What it asks for its place comes to its place: the snapshot that it followed with is another fetch."""
    hub, _, _ = begin(job_of(mode), PAIR, "ab", [], more="c")

    def tamper(sender, to, header, data):
        return None if header.kind == data_pb2.STATE_REQUEST and body_of(header).snapshot else data  # of the snapshot

    hub.tamper = tamper
    hub.follow = [shadow("c", "a")]
    hub.change(PAIR, list("ab"), ["c"])
    wait_until(lambda: hub.trainers["c"].follower is not None and hub.trainers["a"].step > 3)
    old = hub.trainers["c"].follower.fetch
    assert old is not None and not old.done
    hub.follow = []
    hub.change(plan_of([["a"], ["b"], ["c"]], ((0, 3),), (2, 2, 2)), list("abc"))
    outcome = hub.finish(list("abc"))
    assert not hub.errors and outcome.warnings == []
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())


def test_rounds_that_come_too_fast_end_it(monkeypatch):
    """It says why, and the others train on."""
    monkeypatch.setattr(rounds, "LEAST_LOG", 0)
    monkeypatch.setattr(follow, "LEAST_HELD", 0)
    hub, _, _ = begin(job_of("delta", updates={"codec": "none"}), PAIR, "ab", [], more="c")
    hold = threading.Event()
    late = []

    def tamper(sender, to, header, data):
        if header.kind == data_pb2.STATE and to == "c" and not hold.is_set():
            late.append((sender, to, header, data))
            return None
        return data

    hub.tamper = tamper
    hub.follow = [shadow("c", "a")]
    hub.change(PAIR, list("ab"), ["c"])
    follower = hub.trainers["c"].follower
    assert isinstance(follower, follow.Follower)
    wait_until(lambda: hub.trainers["a"].step > 20)
    hold.set()
    for one in late:
        hub.carry(*one)
    wait_until(lambda: follower.failed)
    assert "is not kept any more: its link carried" in follower.failed and not follower.whole
    assert "to keep up beside what it has to fetch first it would need" in follower.failed
    monkeypatch.undo()  # a link that carries the rounds after all
    state = follower.state
    hub.change(PAIR, list("abc"))
    again = hub.trainers["c"].follower
    assert again is not follower and again.state is state, "nothing is thrown away"
    wait_until(lambda: follows(hub, "c"))
    follower = hub.trainers["c"].follower
    next(iter(follower.state.sections.values())).chain ^= 1
    wait_until(lambda: follower.failed)
    assert "is another than the group's after round" in follower.failed
    hub.finish(["a", "b"])
    hub.order("c", stop=control_pb2.Stop(why="done"))
    hub.threads["c"].join(10)


def test_a_guide_dies_and_another_goes_on():
    job = job_of("delta", updates={"codec": "int8"})
    hub, _, _ = begin(job, PAIR, "abc", [shadow("c", "a")])
    wait_until(lambda: follows(hub, "c"))
    hub.trainers["c"].follower._guides = ("a", "b")
    hub.kill("a")
    hub.change(plan_of([["b"], ["c"]], ((0, 3),), (3, 3)), ["b", "c"])
    outcome = hub.finish(["b", "c"])
    assert not hub.errors and all(len(contents) == 1 for contents in outcome.fingerprints.values())


def test_a_spare_leaves_a_run_without_coordinator(monkeypatch):
    monkeypatch.setattr(parting, "ALONE_SECONDS", 0.5)
    hub, _, _ = begin(job_of("delta"), PAIR, "abc", [])
    hub.wires["c"].events.put(CoordinatorLost("connection refused"))
    wait_until(lambda: not hub.threads["c"].is_alive())
    assert "c" not in hub.errors
    hub.finish(["a", "b"])


def test_who_trains_or_hears_of_one_again_stays(monkeypatch):
    monkeypatch.setattr(parting, "ALONE_SECONDS", 0.5)
    hub, _, _ = begin(job_of("delta"), PAIR, "abc", [])
    for name in "abc":
        hub.wires[name].events.put(CoordinatorLost("connection refused"))
    hub.wires["c"].events.put(CoordinatorBack(2))
    wait_until(lambda: hub.trainers["a"].step > 10)
    assert all(hub.threads[name].is_alive() for name in "abc")
    for name in "ab":
        hub.wires[name].events.put(CoordinatorBack(2))
    hub.finish(["a", "b"])
