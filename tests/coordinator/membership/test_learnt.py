"""Who contributes again what it had learnt beside a checkpoint, and what is said to be lost."""

from dataclasses import replace

from farflung.coordinator.checkpoints.manifest import manifest_of, position_in
from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.orders import flushed_of, order_of
from farflung.coordinator.membership.resuming.learnt import (
    Norms,
    Unsent,
    from_json,
    noted,
    taken_up,
    to_json,
    unsent_in,
)
from farflung.coordinator.membership.rules import Rules
from farflung.coordinator.membership.state import State
from farflung.job.data.sampling import Position, of_runs
from farflung.proto import control_pb2 as pb
from farflung.scheduler.plans import Plan

BESIDE = Unsent(40, 3, {0: (7, 9), 1: (8,)}, (("a", "b"), ("c", "d")))
NEWEST = Position(40, 100, (7, 8, 9, 50))
HERE = {(40, 3)}
KEPT = {(40, 3): {name: Norms(0.3, 6.0) for name in "abcd"}}


def test_all_come_back():
    position, back, why = taken_up(NEWEST, BESIDE, dict.fromkeys("abcd", HERE), KEPT, False)
    assert position == Position(40, 100, (50,)) and back == ("a", "b", "c", "d")
    assert why == "with what a, b, c and d had learnt beside it"


def test_a_pipeline_of_which_nobody_comes_back_is_trained_again():
    position, back, why = taken_up(NEWEST, BESIDE, {"a": HERE, "b": HERE, "d": set()}, KEPT, False)
    assert position.redo == (8, 50) and back == ("a", "b")
    lost = "what c and d had (7.1% of what the weights have moved) is lost"
    assert why == f"with what a and b had learnt beside it; {lost}"


def test_a_part_of_a_pipeline_has_its_samples_as_after_a_death():
    position, _, why = taken_up(NEWEST, BESIDE, {"a": HERE, "d": HERE}, KEPT, False)
    assert position.redo == (50,) and "what b and c had (" in why


def test_nobody_or_of_another_history():
    assert taken_up(NEWEST, BESIDE, {"a": {(40, 2), (30, 3)}}, {}, False) == (NEWEST, (), "")
    position, back, why = taken_up(NEWEST, BESIDE, {}, KEPT, True)
    assert (position, back) == (NEWEST, ()) and why == "what a, b, c and d had (0.1 times a gradient of theirs) is lost"
    assert taken_up(replace(NEWEST, step=41), BESIDE, {"a": HERE}, KEPT, False)[1] == ()
    assert taken_up(NEWEST, None, {"a": HERE}, {}, False) == (NEWEST, (), "")


def test_who_was_killed_before_saying_what_it_keeps_is_named():
    kept = {(40, 3): {"a": Norms(0.3, 6.0)}}
    why = taken_up(NEWEST, BESIDE, {"a": HERE, "c": HERE}, kept, False)[2]
    assert why == "with what a and c had learnt beside it; what b and d had (how much was not said yet) is lost"
    exact = {(40, 3): {"a": Norms(0.0, 6.0)}}
    assert "lost" not in taken_up(NEWEST, BESIDE, {"a": HERE}, exact, False)[2], "nothing is unsent with codec none"


def test_a_norm_that_no_float_can_square_ends_nothing():
    kept = noted(KEPT, 40, 3, "d", 1e300, 1.0)
    assert "what d had (" in taken_up(NEWEST, BESIDE, dict.fromkeys("abc", HERE), kept, False)[2]


def test_the_manifest_tells_of_each_pipeline():
    meta = {"view": 3, "step": 40, "cursor": 100, "pipelines": [["a", "b"], ["c", "d"]]}
    metas = {
        "stage-0.safetensors": {**meta, "redo": [7, 50], "unfinished": {"0": [7]}},
        "stage-1.safetensors": {**meta, "redo": [7, 8, 50], "unfinished": {"0": [7, 9], "1": [8]}},
    }
    manifest = manifest_of(metas)
    assert unsent_in(manifest) == replace(BESIDE, redo={0: (7, 9), 1: (8,)})
    assert position_in(manifest).redo == (7, 8, 50)
    assert unsent_in({"step": 40}) is None


def test_norms_of_the_newest_are_remembered():
    kept = {}
    for step, name in ((10, "a"), (20, "a"), (20, "b"), (30, "a")):
        kept = noted(kept, step, 1, name, 0.5, 2.0)
    assert sorted(kept) == [(20, 1), (30, 1)] and set(kept[20, 1]) == {"a", "b"}
    assert noted(kept, 40, 1, "a", float("nan"), 1.0) is kept
    assert from_json(to_json(kept)) == kept and from_json("") == {}


def test_the_view_after_a_restart_says_who_contributes():
    """Through the machine: hello, flush with what each has, the view; a spare contributes nothing."""
    plan = Plan((("a",), ("b",)), ((0, 1),), (2, 2))
    rules = Rules(mode="delta", batch=16, microbatch=4, seed=1, samples=100, layers=2, settle_s=0, measure_s=0)
    beside = Unsent(40, 3, {0: (7, 9), 1: (8,)}, (("a",), ("b",)))
    state = State(rules, newest=NEWEST, unsent=beside)
    machine = Membership(lambda names, current, broken: replace(plan, spares={"c": "one too many"}))
    orders = []

    def feed(event, now=0.0):
        nonlocal state
        state, effects, _ = machine.apply(state, event, now)
        orders.extend(effects)

    for name in "abc":
        feed(s.Joined(name, name, "x:1"))
        feed(s.Hello(name, name, 0))
        feed(s.Measured(name, name))
        feed(s.Kept(name, name, 40, 3, 0.3, 6.0))
    feed(s.Tick(), 10.0)
    [flush] = [one for one in orders if isinstance(one, s.SendFlush)][-1:]
    for name in "abc":
        report = pb.Flushed(view=flush.view, kept=[pb.Kept(step=40, view=3)] if name != "b" else [])
        feed(flushed_of(name, name, report), 10.0)
    [sent] = [one for one in orders if isinstance(one, s.SendView)]
    view = order_of(sent, 1).view
    assert list(view.restores) == ["a"] and (view.checkpoint, view.kept_in) == (40, 3)
    assert of_runs(view.redo_runs, view.cursor) == (8, 50)
    assert "from the checkpoint of step 40; with what a had learnt beside it; what b and c had (" in view.why
