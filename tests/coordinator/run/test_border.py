"""Reports of nodes, each by itself: what cannot be true is refused by name and changes nothing."""

import math
from dataclasses import replace

import pytest
from coordinator_process import pairs

from farflung.coordinator.membership.signals import Announcement
from farflung.coordinator.membership.steps import waited_by
from farflung.coordinator.run.reports.border import CHECKS, About, refused
from farflung.job.data.sampling import Position
from farflung.proto import control_pb2 as pb

VIEW = Announcement(3, pairs(["a", "b", "c", "d"], None, frozenset()), (), Position(10, 80))
KNOWN = About("a", frozenset("abcde"), 400, 4, 32, VIEW, age=100.0, batch=8, tokens=16)


def test_every_kind_of_report_has_a_row():
    assert set(CHECKS) == {field.name for field in pb.Report.DESCRIPTOR.oneofs_by_name["kind"].fields}


def step(**changes):
    return {"step": pb.StepDone(**{"view": 3, "step": 12, "seconds": 1.0, "samples": 8, "tokens": 128, **changes})}


def links(count):
    return {"links": pb.Links(links=[pb.LinkMeasurement(to="b")] * count)}


def sections(kind, *names, **more):
    part = pb.SectionState if kind is pb.Flushed else pb.Fingerprint
    key = "sections" if kind is pb.Flushed else "fingerprints"
    return kind(**{key: [part(section=name) for name in names]}, **more)


@pytest.mark.parametrize(
    "said",
    [
        step(),
        step(sent=[pb.Sent(peer="b", bytes=1), pb.Sent(peer="e", bytes=1)]),
        step(seconds=150.0),
        step(view=2, seconds=9e9, samples=4000),
        links(10),
        {"flushed": sections(pb.Flushed, "stage-0", "tied", step=400, layers=[0, 3], norm=math.inf)},
        {"prepared": pb.Prepared(bases=[pb.Base(layer=3)])},
        {"written": pb.Written(failed="why", token=99)},
        {"heartbeat": pb.Heartbeat(trainer_age=3.0)},
        {"goodbye": pb.Goodbye(why="x" * 10**6)},
    ],
)
def test_what_may_be(said):
    assert refused(pb.Report(**said), KNOWN) == ""


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (step(step=199_999), "its report of a step is refused: the run ends with step 400"),
        (step(seconds=2.0**50), "where the view has trained for 100 s"),
        (step(waiting_seconds=200.0), "200 s of a step"),
        (step(samples=9), "9 samples of a batch of 8"),
        (step(tokens=129), "129 tokens"),
        (step(sent=[pb.Sent(peer="b")] * 2), "a peer twice"),
        (step(sent=[pb.Sent(peer="b")] * 240_000), "240000 peers"),
        (links(240_000), "240000 links, where 10 at most"),
        ({"flushed": pb.Flushed(step=2**60)}, "ends with step 400"),
        ({"flushed": pb.Flushed(ready_step=401)}, "ends with step 400"),
        ({"flushed": pb.Flushed(pending=pb.StepDone(step=2**60))}, "ends with step 400"),
        ({"flushed": pb.Flushed(layers=[4])}, "has 4 layers"),
        ({"flushed": pb.Flushed(layers=[1] * 10_000)}, "a layer twice"),
        ({"flushed": sections(pb.Flushed, "stage-0", "stage-0")}, "a section twice"),
        ({"flushed": sections(pb.Flushed, "x" * 10**6)}, "names no section"),
        ({"prepared": sections(pb.Prepared, *map(str, range(9000)))}, "a section twice"),
        ({"prepared": pb.Prepared(bases=[pb.Base(layer=2**31)])}, "has 4 layers"),
        ({"finished": sections(pb.Finished, step=2**60)}, "ends with step 400"),
        ({"eval": pb.EvalDone(step=12, correct=3.0, predictions=2)}, "more is right"),
        ({"eval": pb.EvalDone(step=12, sets=[pb.SetDone(number=1, tokens=2, correct=3.0)])}, "more is right"),
        ({"eval": pb.EvalDone(step=12, sets=[pb.SetDone(number=1)] * 2)}, "a set twice"),
        ({"eval": pb.EvalDone(step=12, sets=[pb.SetDone(number=n) for n in range(99)])}, "impossible"),
        ({"eval": pb.EvalDone(step=12, sets=[pb.SetDone(number=1, tokens=2**60)])}, "impossible"),
        ({"heartbeat": pb.Heartbeat(trainer_age=math.nan)}, "age is impossible"),
        ({"evidence": pb.Evidence(peer="z\x1b")}, "never joined"),
        ({"kept": pb.Kept(step=2**60)}, "ends with step 400"),
        ({"flushed": pb.Flushed(kept=[pb.Kept(step=4)] * 1000)}, "keeps 1000 checkpoints"),
        ({"clock": pb.ClockAnswer(monotonic=math.inf)}, "is no number"),
        ({"written": pb.Written(token=32)}, "token 32 of 32"),
    ],
)
def test_what_cannot_be(said, why):
    assert why in refused(pb.Report(**said), KNOWN)


def test_a_node_without_a_place_reports_no_steps():
    assert "has no place in view 3" in refused(pb.Report(**step()), replace(KNOWN, name="e"))


def test_others_wait_by_what_more_than_one_says():
    assert waited_by([1e6, 2.0, 2.0]) == 2.0
    assert waited_by([1e6, 9.0, 2.0]) == 9.0
    assert waited_by([2.0]) == 2.0 and waited_by([5.0, 9.0]) == 9.0
