"""A checkpoint in ``delta`` mode lists exactly the samples that its weights lack, whatever views ended before it."""

import collections
import json
from contextlib import nullcontext
from itertools import chain
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from windows import Windows, facts_of, wait_until

from farflung.job.data.sampling import Position, assign, sample_ids, unfinished
from farflung.job.schema import Job, Updates
from farflung.node.training.member.view_member import ViewMember
from farflung.node.training.modes.delta_mode import DeltaMode
from farflung.node.training.steps.milestones import Milestones
from farflung.proto import control_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

BATCH, MICROBATCH, SEED, SAMPLES, STEPS = 12, 2, 3, 90, 30
TWO_BY_TWO = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 1), (2, 3)), microbatches=(3, 3))
SHARES = TWO_BY_TWO.microbatches


def share_of(position, step, pipeline):
    positions = position.positions(step, BATCH)
    return {positions[i] for i in assign(sample_ids(positions, SEED, SAMPLES), SHARES, MICROBATCH)[pipeline]}


class Books:
    """Of one pipeline, over all views: what it has learnt, and what of that each fragment of g does not have yet."""

    def __init__(self, fragments=1):
        self.learnt, self.rounds = set(), 0
        self.unsent = [set() for _ in range(fragments)]
        self.riding = set()
        self.in_checkpoint = {}

    def step(self, positions):
        assert not positions & self.learnt, "twice"
        self.learnt |= positions
        for fragment in self.unsent:
            fragment |= positions

    def begun(self):
        self.riding = set(self.unsent[self.rounds % len(self.unsent)])

    def applied(self, counted=True):
        if counted:
            self.unsent[self.rounds % len(self.unsent)] -= self.riding
        self.rounds += 1

    @property
    def in_g(self):
        return self.learnt - set().union(*self.unsent)


def listed_in(position):
    return set(range(position.cursor)) - set(position.redo)


# ---- the mode alone, in any order -----------------------------------------------------------------


class Made(DeltaMode):
    """A pipeline's mode with the books, and without weights and peers."""

    def __init__(self, books, position, updates, pipeline):
        self.books = books
        rounds = SimpleNamespace(last=False, open=None)
        exchange = SimpleNamespace(own_norm=1.0)
        self.link = SimpleNamespace(
            rounds=rounds,
            exchange=exchange,
            complete=True,
            absent=(),
            results=(),
            begin=lambda: None,
        )
        clock = SimpleNamespace(coding=lambda doing: nullcontext())
        view = SimpleNamespace(
            job=SimpleNamespace(updates=updates, train=SimpleNamespace(batch=BATCH, microbatch_size=MICROBATCH)),
            plan=TWO_BY_TWO,
            context=SimpleNamespace(facts=SimpleNamespace(samples=SAMPLES, drawn=SAMPLES), clock=clock),
            offered=lambda norm: None,
            state=SimpleNamespace(sections={"stage-1": SimpleNamespace()}),
            squares=lambda: {"stage-1": 0.0},
            encode_ahead=lambda: None,
            rescale=lambda norm: None,
            spread=None,
            links={"stage-1": self.link},
            exchanges={},
            commit=SimpleNamespace(norm=1.0),
            position=position,
            pipeline=pipeline,
            last_step=10**6,
            step=position.step,
            base_round=0,
            is_alone=False,
            judge=None,
            agree=lambda step, square: None,
            wait=lambda done, doing="": None,
            wait_for_results=lambda: None,
        )
        view.job.run = SimpleNamespace(seed=SEED)
        super().__init__(view)

    def _local_step(self, step, norm):
        self.view.step = step
        self.books.step(share_of(self.view.position, step, self.view.pipeline))

    def _begin_round(self, apply_at):
        super()._begin_round(apply_at)
        self.books.begun()

    def _apply(self, links):
        for link in links.values():
            self.books.applied(TWO_BY_TWO.pipelines[self.view.pipeline][1] not in link.absent)


SCHEDULES = st.sampled_from([(1, 0, 1), (1, 1, 1), (3, 0, 1), (3, 2, 1), (4, 1, 2), (6, 2, 3)])
"""(every, overlap, fragments)"""
VIEWS = st.lists(st.tuples(st.integers(0, 12), st.sampled_from([(0, 0), (0, 1), (1, 0)])), min_size=1, max_size=6)
"""Steps of each view, and how many each pipeline is behind at its end."""


@given(schedule=SCHEDULES, views=VIEWS, absences=st.lists(st.sampled_from(["", "", "b", "d"]), max_size=40))
def test_whatever_views_end(schedule, views, absences):
    every, overlap, fragments = schedule
    updates = Updates(mode="delta", every=every, overlap=overlap, fragments=fragments, codec="none")
    books = [Books(fragments), Books(fragments)]
    position, late = Position(), list(absences)
    for steps, behind in views:
        modes = [Made(one, position, updates, pipeline) for pipeline, one in enumerate(books)]
        finished = [max(position.step, position.step + steps - less) for less in behind]
        for step in range(position.step + 1, max(finished) + 1):
            # Members are missed only when the view is old enough for deadlines.
            absent = [name for name in late[-1:] if name and modes[0].is_settled]
            del late[-1:]
            for mode, last in zip(modes, finished, strict=True):
                mode.link.absent = absent
                if step <= last:
                    mode.finish(step)
            if step <= min(finished):
                assert modes[0].is_settled == modes[1].is_settled
                for mode in modes if modes[0].is_settled else ():
                    found = position.after(step, BATCH, list(chain(*mode.missing(step))))
                    assert listed_in(found) == books[0].in_g | books[1].in_g
        again = unfinished(position, finished, max(finished), SHARES, MICROBATCH, SEED, samples=SAMPLES)
        position = position.after(max(finished), BATCH, again)
        assert listed_in(position) == books[0].learnt | books[1].learnt


# ---- real nodes -----------------------------------------------------------------------------------


def job_of(updates, checkpoint=0, eval_every=0):
    return Job.model_validate(
        {
            "run": {"name": "books", "seed": SEED, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8, "tie": True},
            "data": {"text": ["none.txt"]},
            "train": {"batch": BATCH, "microbatch": MICROBATCH, "learning_rate": 3e-3, "eval_every": eval_every},
            "updates": {"block": 256, "codec": "none", **updates},
            "checkpoint": {"every": checkpoint},
        }
    )


def start(job, artifacts=None, **view):
    facts = facts_of(samples=SAMPLES, validation=10, context=8, vocabulary=17, steps=STEPS)
    hub = Hub(job, facts, artifacts)
    for name in TWO_BY_TWO.nodes:
        hub.start(name, Windows(facts))
    hub.begin(TWO_BY_TWO, TWO_BY_TWO.nodes, **{"checkpoint": 0, **view})
    return hub


@pytest.fixture
def keep_books(monkeypatch):
    """The books of every last stage, by the node's name."""
    kept = collections.defaultdict(Books)
    stepped, begin, apply = ViewMember.stepped, DeltaMode._begin_round, DeltaMode._apply_round
    checkpoint = Milestones.checkpoint

    def of(view):
        return kept[view.context.name] if view.state.is_last else Books()

    def step(view, number):
        of(view).step(share_of(view.position, number, view.pipeline))
        stepped(view, number)

    def begun(mode, apply_at):
        begin(mode, apply_at)
        of(mode.view).begun()

    def applied(mode):
        apply(mode)
        of(mode.view).applied()

    def saved(milestones, number):
        view = milestones._view
        of(view).in_checkpoint[number] = of(view).in_g
        checkpoint(milestones, number)

    monkeypatch.setattr(Milestones, "checkpoint", saved)
    monkeypatch.setattr(ViewMember, "stepped", step)
    monkeypatch.setattr(DeltaMode, "_begin_round", begun)
    monkeypatch.setattr(DeltaMode, "_apply_round", applied)
    return kept


@pytest.mark.parametrize("updates", [{"every": 1, "overlap": 1}, {"every": 3, "overlap": 2}])
def test_everything_is_killed_early_in_a_view(keep_books, updates):
    """A checkpoint is due after every step; two views later all die, and a new run begins with the newest."""
    job = job_of({"mode": "delta", **updates}, checkpoint=1)
    hub = start(job)
    for step in (5, 10):
        wait_until(lambda step=step: hub.trainers["a"].step >= step)
        hub.change(TWO_BY_TWO, TWO_BY_TWO.nodes)
    begun = hub.position.step

    def complete():
        steps = collections.Counter(step for step, _ in list(hub.shards))
        noted = keep_books["b"].in_checkpoint.keys() & keep_books["d"].in_checkpoint.keys()
        return [step for step, files in steps.items() if step > begun and files == 2 and step in noted]

    wait_until(complete)
    newest = min(complete())
    for name in TWO_BY_TWO.nodes:
        hub.kill(name)
    metas = [hub.shards[newest, f"stage-{stage}.safetensors"][1] for stage in (0, 1)]
    assert metas[0]["redo"] == metas[1]["redo"] and metas[0]["rounds"]["tied"] == metas[1]["rounds"]["tied"]
    at = Position(newest, metas[0]["cursor"], tuple(metas[0]["redo"]))
    assert listed_in(at) == keep_books["b"].in_checkpoint[newest] | keep_books["d"].in_checkpoint[newest]
    artifacts = {
        f"checkpoint/{newest}/{file}": content for (step, file), (content, _) in hub.shards.items() if step == newest
    }
    files = {"files": [f"stage-{stage}.safetensors" for stage in (0, 1)]}
    artifacts[f"checkpoint/{newest}/manifest.json"] = json.dumps({**metas[0], **files}).encode()

    keep_books.clear()
    again = start(
        job,
        artifacts,
        checkpoint=newest,
        step=newest,
        cursor=at.cursor,
        redo=at.redo,
        sections=[control_pb2.SectionState(section=name, round=round) for name, round in metas[0]["rounds"].items()],
    )
    again.finish(TWO_BY_TWO.nodes)
    assert not again.errors
    rest = keep_books["b"].in_g | keep_books["d"].in_g
    assert not rest & listed_in(at), "trained twice"
    assert rest | listed_in(at) == set(range(at.cursor + BATCH * (STEPS - newest) - len(at.redo)))


def test_a_checkpoint_has_what_it_lists(keep_books, monkeypatch):
    """Also when it is due in the first steps of a view: it waits for the first round."""
    job = job_of({"mode": "delta", "every": 3, "overlap": 2}, checkpoint=1)
    made = []
    checkpoint = Milestones.checkpoint

    def spy(milestones, step):
        view = milestones._view
        if view.context.name in "bd":
            position = view.position.after(step, BATCH, list(chain(*milestones._mode.missing(step))))
            own = {p for p in listed_in(position) if p in keep_books[view.context.name].learnt}
            made.append((view.context.view, step - view.position.step, own == keep_books[view.context.name].in_g))
        checkpoint(milestones, step)

    monkeypatch.setattr(Milestones, "checkpoint", spy)
    hub = start(job)
    for step in (5, 10):
        wait_until(lambda step=step: hub.trainers["a"].step >= step)
        hub.change(TWO_BY_TWO, TWO_BY_TWO.nodes)
    hub.finish(TWO_BY_TWO.nodes)
    assert not hub.errors
    assert 3 in {view for view, _, _ in made}, "an earlier view may end before its first round is applied"
    assert all(exact for _, _, exact in made)
    assert all(steps >= 3 for view, steps, _ in made if view < 3), "a round has begun in this view, and is applied"


def test_an_evaluation_that_a_view_change_broke_off_is_made_in_the_next(monkeypatch):
    """At the same step, with the same weights, and once."""
    job = job_of({"mode": "gradient"}, eval_every=5)
    broken = []
    evaluate = Milestones.evaluation

    def breaks_off(milestones, step):
        view = milestones._view
        if step == 5 and view.context.name == "d" and not broken:
            broken.append(step)
            view.wait(lambda: False, "the test")  # until the view ends
        evaluate(milestones, step)

    monkeypatch.setattr(Milestones, "evaluation", breaks_off)
    hub = start(job)
    wait_until(lambda: broken)
    hub.change(TWO_BY_TWO, TWO_BY_TWO.nodes, evaluate=True)
    assert hub.position.step == 5
    outcome = hub.finish(TWO_BY_TWO.nodes)
    assert not hub.errors
    assert sorted(outcome.evals) == [5, 10, 15, 20, 25, 30]
    plain = start(job)
    wanted = plain.finish(TWO_BY_TWO.nodes)
    assert outcome.evals[5] == pytest.approx(wanted.evals[5], abs=1e-5)
