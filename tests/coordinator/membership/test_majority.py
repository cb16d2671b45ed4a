"""Most members of a section are right: who says another thing is named and put out, and the run goes on."""

from dataclasses import replace

import pytest
from membership_script import Script, holding

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.faults.majority import beyond, split
from farflung.coordinator.membership.resuming.resume import resume
from farflung.coordinator.membership.rules import Rules
from farflung.coordinator.membership.state import DONE, FLUSHING, TRAINING
from farflung.coordinator.planning.claims import MOST, STEPS, Claims
from farflung.job.data.sampling import Position
from farflung.scheduler.plans import Plan


def marks(script, names, content):
    """Prepared of these, each with a fingerprint of its first stage: ``content(name)``."""
    view = script.state.pinned
    for name in names:
        stage = view.plan.stage_of(name)
        mark = (s.Fingerprint(f"stage-{stage}", view.position.step, content(name)),)
        script(s.Prepared(name, name + "1", view.number, mark))
    return script


def test_a_member_that_reports_another_fingerprint_each_time_is_put_out():
    """Bad memory, or a liar: it ended the run for all after three views."""
    script = Script(wanted=6).started("abcdef")  # stage 0 is a, c and e
    script(s.CheckpointComplete(Position(4, 32)), s.Save("now"))
    script(*(holding(script, name, 5) for name in "abcdef"))
    marks(script, "abcdef", lambda name: 666 * (name == "c"))
    (stop,) = script.get(s.SendStop)
    assert stop.to == ("c",) and stop.refused and "other weights of stage-0 than a, e" in stop.why
    assert set(script.state.nodes) == set("abdef")
    assert script.state.phase == FLUSHING and not script.state.disagreements
    script(*(holding(script, name, 5) for name in "abdef"))
    assert script.get(s.SendView)[0].view.checkpoint == -1, "what the majority holds is not lost"


def test_who_is_outvoted_is_named():
    def held(content, round=5):
        return (s.Fingerprint("stage-0", round, content),)

    found = split({"a": held(1), "b": held(1), "c": held(2), "d": held(1, 4)})
    assert set(found.outvoted) == {"c", "d"} and not found.tie
    assert found.outvoted["c"] == "it holds other weights of stage-0 than a, b after round 5"
    assert found.outvoted["d"] == "it holds stage-0 at round 4, not 5 like a, b"
    tie = split({"a": held(1), "b": held(2), "c": held(3)})
    assert not tie.outvoted and tie.tie == "a and b hold different weights of stage-0 after round 5"
    assert tie.camps == (("a",), ("b",), ("c",))
    assert split({"a": held(1), "b": held(1)}) == split({})


def test_two_that_cannot_agree_are_planned_apart():
    script = Script().started()
    script(s.CheckpointComplete(Position(4, 32)), s.Save("now"))
    for number in (1, 2):
        script(*(holding(script, name, 5) for name in "abcd"))
        marks(script, "abcd", lambda name, number=number: 100 * number + 666 * (name == "c"))
        assert script.state.phase == FLUSHING and script.state.disagreements == number
    assert ("a", "c") in script.state.broken and script.state.phase != DONE
    script(*(holding(script, name, 5) for name in "abcd"))
    marks(script, "abcd", lambda name: 7)
    assert script.state.phase == TRAINING


def test_one_liar_at_the_end_is_left_out():
    script = Script(wanted=6).started("abcdef")
    script(s.CheckpointComplete(Position(9, 72)))
    for name in "abcdef":
        mark = (s.Fingerprint(f"stage-{'bdf'.find(name) >= 0:d}", 9, 666 * (name == "e")),)
        script(s.Finished(name, name + "1", 1, 9 if name != "e" else 12, mark))
    assert script.state.phase == DONE and script.get(s.Finish)[0].step == 9
    assert any("at the end e does not count" in said.why for said in script.get(s.Say))


PLAN = Plan((("a", "b"), ("c", "d")), ((0, 1), (2, 3)), (2, 2))
BASE = s.Announcement(1, PLAN, tuple(s.Member(name, f"s-{name}", "") for name in "abcd"), Position(10, 160))


def flushed(name, step, ready=None, round=None, stage=None):
    stage = PLAN.stage_of(name) if stage is None else stage
    layers = frozenset(range(2 * stage, 2 * stage + 2))
    section = s.Section(f"stage-{stage}", step if round is None else round, 7)
    return s.Flushed(name, f"s-{name}", 2, step, ready or step, 1.5, sections=(section,), layers=layers)


def decide(answers, mode="gradient", **more):
    rules = Rules(mode=mode, batch=16, microbatch=4, seed=1, samples=1000, layers=4, **more)
    eligible = frozenset((name, f"s-{name}") for name in "abcd")
    return resume(rules, BASE, None, eligible, {one.name: one for one in answers}, {}, newest=Position(5, 80))


@pytest.mark.parametrize("far", [14, 10**6])
def test_a_step_for_which_nobody_else_was_ready_did_not_happen(far):
    decision = decide([flushed("a", far), *(flushed(name, 12) for name in "bcd")])
    assert decision.checkpoint == -1 and decision.position.step == 12 and decision.dissent == ("a",)
    assert decide([flushed("a", 13), *(flushed(name, 12, 13) for name in "bcd")]).position.step == 13


def test_a_norm_is_what_most_say():
    others = [flushed(name, 12) for name in "bcd"]
    assert decide([replace(flushed("a", 12), norm=1e-30), *others]).norm == 1.5


def test_a_pipeline_is_at_most_a_few_rounds_ahead():
    answers = [flushed(name, 12, round=1) for name in "abc"] + [flushed("d", 10**6, round=1)]
    decision = decide(answers, "delta", round_every=10)
    assert decision.position.step == 12 and len(decision.position.redo) == 0
    assert decide([*answers[:3], flushed("d", 20, round=1)], "delta", round_every=10).position.step == 20


def test_rounds_that_nobody_else_of_three_is_near():
    three = {name: flushed(name, 12, round=5, stage=0) for name in "abc"}
    assert beyond("delta", 10, three) == frozenset()
    assert beyond("delta", 10, {**three, "a": flushed("a", 12, round=6, stage=0)}) == frozenset()
    assert beyond("delta", 10, {**three, "a": flushed("a", 12, round=900, stage=0)}) == {"a"}


def test_a_claim_counts_by_what_others_claim_and_by_what_was_shown():
    """One member that claimed 1 Tflop/s among slow ones got all the work, and computed nothing."""
    claims = Claims()
    assert claims.believed("a", 1000.0, []) == 1000.0
    assert claims.believed("a", 1000.0, [0.02, 0.02, 0.01]) == pytest.approx(MOST * 0.02)
    assert claims.believed("a", 0.03, [0.02, 0.02]) == 0.03
    claims.enter({"a": 1e12, "b": 1e10})
    for now in range(STEPS):
        claims.step(float(now))
    assert claims.shown == {}
    claims.step(float(STEPS))
    assert claims.shown == {"a": pytest.approx(1.0), "b": pytest.approx(0.01)}
    assert claims.believed("a", 1000.0, [0.02, 0.02]) == pytest.approx(MOST)
    claims.forget("a")
    assert claims.believed("a", 1000.0, [0.02, 0.02]) == pytest.approx(MOST * 0.02)
