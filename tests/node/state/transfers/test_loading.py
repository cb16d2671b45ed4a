"""A node that loads a stage hands on what it has, and says of the rest that it is coming."""

from collections import Counter

import late_keepers
import pytest
import torch
from plain_lora import save_base
from windows import Windows, facts_of

from farflung.job.schema import Job
from farflung.node.state.transfers.serving import StateServer
from farflung.node.state.transfers.transfer_plan import STALL_SECONDS, STRIKES, Fetching
from farflung.node.training.router import Router
from farflung.proto import control_pb2, data_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub
from farflung.testing.wires import LoopbackWire

pytestmark = pytest.mark.usefixtures("nobody_late")


def request(name, number=7):
    return data_pb2.StateRequest(name=name, length=8, request=number)


def test_parameters_go_on_as_they_come():
    sent = []
    server = StateServer(lambda to, header, payload, priority: sent.append((to, header.kind, header.state.name)))
    server.request("b", request("w"), b"")
    server.load({"w": {"": torch.ones(2)}, "v": {"": torch.ones(2)}}, ["w", "v"])
    server.request("c", request("v", 8), b"")
    server.request("c", data_pb2.StateRequest(request=8), b"w\nv")
    assert not sent
    server.tick(100.0)
    server.tick(100.5)
    assert sorted(sent) == [(name, data_pb2.STATE_COMING, "") for name in "bc"]
    sent.clear()
    server.ready("w")
    assert sent == [("b", data_pb2.STATE, "w")]
    server.ready("v")
    assert [(to, text) for to, _, text in sent] == [("b", "w"), ("c", "v"), ("c", "")]
    server.tick(200.0)
    assert len(sent) == 3, "nobody waits any more"


def test_a_source_that_loads_for_an_hour_is_not_given_up():
    fetch = Fetching({"w": 100}, {"w": ["a"]}, "me")
    assert len(fetch.ask(0.0)) == 2
    for second in range(1, 3600):
        fetch.coming("a", float(second))
        assert not fetch.ask(float(second)) and not fetch.troubles
    for second in range(3600, 3600 + 60 * STRIKES):
        fetch.ask(float(second))
    assert fetch.failure and fetch.troubles, f"and one that falls silent is, after {STALL_SECONDS} s and more"


# ---- whole runs -----------------------------------------------------------------------------------

PLAN = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 1), (2, 3)), microbatches=(2, 2))
MOVED = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 2), (3, 3)), microbatches=(2, 2))


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A hub of nodes that begin with a model folder's weights, and the ranges of the weights that each node reads."""
    folder = save_base(tmp_path / "base")
    job = Job.model_validate(
        {
            "run": {"name": "loading", "seed": 3, "steps": 3},
            "model": {"pretrained": str(folder), "context": 16},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 8, "microbatch": 2, "learning_rate": 1e-3, "eval_every": 0},
            "updates": {"mode": "gradient", "codec": "none"},
            "checkpoint": {"every": 0},
        }
    )
    files = {f"model/{path.name}": path.read_bytes() for path in folder.iterdir()}
    facts = facts_of(samples=90, validation=10, context=16, vocabulary=256, steps=3)
    facts = facts.model_copy(update={"artifacts": dict.fromkeys(files, "0")})
    hub = Hub(job, facts, files)
    read = []
    fetch = LoopbackWire.fetch

    def spy(wire, name, offset=0, length=None):
        if name.endswith(".safetensors") and offset > 8 and length is not None:
            read.append((wire.name, offset, length))
        return fetch(wire, name, offset, length)

    monkeypatch.setattr(LoopbackWire, "fetch", spy)
    for name in PLAN.nodes:
        hub.start(name, Windows(facts))
    return hub, read, len(files["model/model.safetensors"])


def test_a_model_folder_is_read_once_a_stage(base):
    hub, read, size = base
    hub.begin(PLAN, PLAN.nodes, checkpoint=0)
    assert {name for name, *_ in read} == {PLAN.keeper(stage) for stage in range(2)}
    assert len({offset for _, offset, _ in read}) == len(read) and sum(length for *_, length in read) < size
    outcome = hub.finish(PLAN.nodes)
    assert not outcome.warnings and all(len(contents) == 1 for contents in outcome.fingerprints.values())


def test_who_asks_a_keeper_of_a_model_folder_too_early_waits(base, monkeypatch):
    hub, read, _ = base
    late_keepers.install(monkeypatch, PLAN)
    hub.begin(PLAN, PLAN.nodes, checkpoint=0)
    outcome = hub.finish(PLAN.nodes)
    assert {name for name, *_ in read} == {PLAN.keeper(stage) for stage in range(2)}
    assert not outcome.warnings and all(len(contents) == 1 for contents in outcome.fingerprints.values())


@pytest.mark.parametrize("then", [PLAN, MOVED])
def test_a_load_that_a_view_change_breaks_off_goes_on_from_what_is_here(base, monkeypatch, then):
    hub, read, _ = base
    load = Router.read
    stopped = set()

    def has_something(trainer):
        return any(len(fetch.missing) < len(fetch._wanted) for fetch in list(trainer.holdings.traffic.fetches.values()))

    def breaks_off(router, name, offset=0, length=None):
        found = load(router, name, offset, length)
        me = router._holdings.context.name
        mine = [one for one in read if one[0] == me]
        if hub.view == 1 and len(mine) == 9 and me not in stopped:
            stopped.add(me)
            if len(stopped) == 2:
                while not all(has_something(hub.trainers[one]) for one in "bc"):
                    router.pump(0.05)
                for node in PLAN.nodes:
                    hub.order(node, flush=control_pb2.Flush(view=2, why="test"))
            while True:
                router.pump(0.05)
        return found

    monkeypatch.setattr(Router, "read", breaks_off)
    view = control_pb2.View(number=1, plan=PLAN.to_json(), checkpoint=0)
    view.members.extend(control_pb2.Member(name=name, session=name, address=name) for name in PLAN.nodes)
    hub.view = 1
    for name in PLAN.nodes:
        hub.order(name, view=view)
    waiting = set(PLAN.nodes)
    while waiting:
        name, report = hub._next()
        if report.WhichOneof("kind") == "flushed":
            waiting.discard(name)
    held = {name: set(hub.trainers[name].change.loader.loading.loaded) for name in PLAN.nodes}
    assert all(held.values()), "who takes from a peer has something too"
    hub.begin(then, then.nodes, checkpoint=0)
    twice = [one for one, times in Counter(read).items() if times > 1]
    assert len(twice) <= 2, "a tensor that was under way, at most, is read again by each of two"
    assert all(hub.trainers[name].change.loader.loading is None for name in PLAN.nodes)
    outcome = hub.finish(then.nodes)
    assert not outcome.warnings and all(len(contents) == 1 for contents in outcome.fingerprints.values())
