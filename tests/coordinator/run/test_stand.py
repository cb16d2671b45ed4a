"""A coordinator that starts again knows the committed norm, the sections and the reports of the view before."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.coordinator.checkpoints.checkpoints import Checkpoints
from farflung.coordinator.membership.resuming.resume import resume
from farflung.coordinator.membership.rules import Rules
from farflung.coordinator.membership.signals import Announcement, Flushed, Member, Section
from farflung.coordinator.run.restart.restored import restored
from farflung.coordinator.run.restart.stand import reported_in, reported_text, stand_in, with_stand
from farflung.coordinator.store.rows import ViewRow
from farflung.coordinator.store.store import Store
from farflung.job.data.sampling import Position, assign, of_runs, runs_of, sample_ids, unfinished
from farflung.proto.control_pb2 import View
from farflung.scheduler.plans import Plan

PLAN = Plan((("a", "b"), ("c", "d")), ((0, 1), (2, 3)), (2, 2))
MEMBERS = tuple(Member(name, f"s-{name}", "") for name in "abcd")
SECTIONS = (Section("stage-0", 13, 2**63 + 1), Section("stage-1", 13, 5))
VIEW = Announcement(2, PLAN, MEMBERS, Position(13, 208), SECTIONS, norm=2.5)


def rules(mode):
    return Rules(mode=mode, batch=16, microbatch=4, seed=1, samples=1000, layers=4)


def ready(name):
    """It has the results of step 13, and had not heard of the commit."""
    stage = PLAN.stage_of(name)
    layers = frozenset(range(PLAN.stages[stage][0], PLAN.stages[stage][1] + 1))
    return Flushed(name, f"s-{name}", 3, 12, 13, 1.5, sections=(Section(f"stage-{stage}", 12, 7),), layers=layers)


@pytest.mark.parametrize("norm", [2.5, math.nan, math.inf, 1e-310])
def test_the_stand_of_the_newest_views_comes_back(norm):
    text = ""
    for number in (1, 2, 3):
        text = with_stand(text, replace(VIEW, number=number, norm=norm))
    assert stand_in(text, 1) == stand_in("", 3) == stand_in(text, 4)
    found = stand_in(text, 3)
    assert found.sections == SECTIONS and (found.norm == norm or (math.isnan(norm) and math.isnan(found.norm)))


@pytest.mark.parametrize("norm", [2.5, math.nan])
def test_a_step_that_only_the_dead_had_applied_is_finished_with_its_norm(norm):
    """The view that takes up after it was stored, then the coordinator and the one node that had applied it died."""
    base = replace(VIEW, norm=norm)
    eligible = frozenset((member.name, member.session) for member in MEMBERS)
    flushed = {name: ready(name) for name in "bcd"}
    decision = resume(rules("gradient"), base, None, eligible, flushed, {}, newest=Position(5, 80), judge=False)
    assert decision.position.step == 13 and decision.checkpoint == -1
    assert decision.norm == norm or (math.isnan(norm) and math.isnan(decision.norm))
    assert {one.name: one.round for one in decision.sections} == {"stage-0": 13, "stage-1": 13}
    later = {name: replace(one, step=13, ready_step=14) for name, one in flushed.items()}
    later["b"] = replace(later["b"], step=14, norm=9.0)
    assert resume(rules("gradient"), base, None, eligible, later, {}, newest=Position(5, 80), judge=False).norm == 9.0


def test_what_last_stages_had_reported_is_not_trained_again():
    """One whole pipeline and the coordinator die; the steps that it had reported count."""
    text = reported_text(VIEW, {"a": 99, "b": 40, "d": 38})
    reported = reported_in(text, VIEW, 35)
    assert reported == {"b": 40, "d": 38}
    assert reported_in(text, replace(VIEW, number=3), 0) == {"b": 13, "d": 13}
    assert reported_in("", VIEW, 35) == {"b": 35, "d": 35}
    eligible = frozenset((member.name, member.session) for member in MEMBERS)
    flushed = {
        name: replace(ready(name), step=40, sections=(Section(f"stage-{k}", 40, 7),)) for k, name in enumerate("ab")
    }
    known = resume(rules("delta"), VIEW, None, eligible, flushed, reported, newest=Position(5, 80), judge=False)
    assert known.position.step == 40 and len(known.position.redo) == 2 * 8
    nothing = resume(rules("delta"), VIEW, None, eligible, flushed, {}, newest=Position(5, 80), judge=False)
    assert len(nothing.position.redo) == 27 * 8, "its whole view, without the reports"


def test_a_start_reads_them_from_the_store(tmp_path):
    store = Store(tmp_path / "run.sqlite", create=True)
    members = json.dumps([[one.name, one.session, one.address, one.dials_out] for one in MEMBERS])
    store.put("stand", with_stand("", replace(VIEW, norm=math.nan)))
    store.views.put(ViewRow(2, PLAN.to_json(), members, 13, 208, "[]", checkpoint=-1, why="why", time=1.5))
    store.put("reported", reported_text(VIEW, {"b": 40, "d": 38}))
    state = restored(rules("delta"), store, Checkpoints(tmp_path / "checkpoints", 1, {}))
    assert state.view.sections == SECTIONS and math.isnan(state.view.norm)
    assert state.reported == {"b": 40, "d": 38} and state.restored


def one_by_one(samples, microbatches, microbatch):
    """``assign`` as its docstring says it."""
    room = [count * microbatch for count in microbatches]
    edges = [sum(room[: d + 1]) / max(1, sum(room)) for d in range(len(room))]
    mine, homeless = [[] for _ in room], []
    for index, sample in enumerate(samples):
        hashed = ((sample + 1) * 0x9E3779B97F4A7C15 & (2**64 - 1)) / 2**64
        home = next((d for d, edge in enumerate(edges) if hashed < edge), len(room) - 1)
        (mine[home] if len(mine[home]) < room[home] else homeless).append(index)
    for home, members in enumerate(mine):
        while len(members) < room[home]:
            members.append(homeless.pop(0))
    return [sorted(members) for members in mine]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(1, 5), st.integers(0, 2**40))
def test_samples_go_where_they_always_went(microbatches, microbatch, first):
    count = sum(microbatches) * microbatch
    samples = [(first + 7919 * i) % (first + 1000) for i in range(count)]
    assert assign(samples, microbatches, microbatch) == one_by_one(samples, microbatches, microbatch)


@given(
    st.integers(0, 60), st.lists(st.integers(0, 200), max_size=40), st.lists(st.integers(0, 9), min_size=2, max_size=2)
)
def test_what_is_unfinished_is_what_the_steps_had_taken(cursor, redo, finished):
    """Step by step, also where they begin with what is to be trained again."""
    position, shares, step = Position(2, cursor, tuple(redo)), (1, 2), 9
    again = []
    for number in range(3, step + 1):
        positions = position.positions(number, 12)
        for own, done in zip(assign(sample_ids(positions, 5, 90), shares, 4), finished, strict=True):
            again += [positions[one] for one in own if done < number]
    assert unfinished(position, finished, step, shares, 4, 5, samples=90) == sorted(again)


@given(st.lists(st.integers(0, 300), unique=True, max_size=60))
def test_runs_are_the_positions_in_their_order(positions):
    assert of_runs(runs_of(positions), 301) == tuple(positions)


def test_runs_are_few_bytes_and_absurd_ones_are_refused():
    redo = unfinished(Position(), [0, 2000], 2000, (6, 6), 1, 3, samples=10**6)
    view = View(redo_runs=runs_of(redo))
    assert len(redo) == 12000 and view.ByteSize() < 1.2 * len(redo)
    assert View(redo_runs=runs_of(range(10**6))).ByteSize() < 10
    for runs in ([0], [0, 0], [0, 2**62], [0, 50, 0, 60]):
        with pytest.raises(ValueError, match="train again"):
            of_runs(runs, 100)
