"""Frozen weights that are not those of the run: who has them is put out, and the others go on."""

from membership_script import Script, holding, planner

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.members import expected_bases
from farflung.coordinator.membership.state import FLUSHING, TRAINING

BASE = dict.fromkeys(range(4), 7)


def prepared(script, name, bases):
    return s.Prepared(name, name + "1", script.state.change.number, bases=bases)


def test_a_joiner_with_another_base_is_put_out_and_the_others_go_on():
    script = Script().started(bases=BASE)
    script(s.Left("d", "d1", "gone"))
    script(*(holding(script, name, 5) for name in "abc")).answer(s.Prepared, "abc", bases=BASE)
    script.join("e").wait(1.5)
    script(s.Measured("e", "e1"), s.Heard("e", "e1", ready=True)).wait(1)
    assert script.state.phase == FLUSHING
    script(*(holding(script, name, 6) for name in "ab")).answer(s.Flushed, "ce")
    assert script.state.pinned.plan.pipelines == (("a", "b"), ("c", "e"))
    script(*(prepared(script, name, BASE) for name in "abc"), prepared(script, "e", {2: 7, 3: 8}))
    (stop,) = script.get(s.SendStop)
    assert stop.to == ("e",) and stop.refused
    assert stop.why.startswith("e cannot train: its frozen weights of layer 3 are not those of the base tiny ")
    assert "put it back as it was" in stop.why and stop.why.endswith("then join again")
    assert script.get(s.SendFlush)[0].to == ("a", "b", "c") and not script.state.disagreements
    script(*(holding(script, name, 6) for name in "ab")).answer(s.Flushed, "c")
    (sent,) = script.get(s.SendView)
    assert sent.view.checkpoint == -1 and sent.view.position.step == 6
    script.answer(s.Prepared, "abc", bases=BASE)
    assert script.state.phase == TRAINING and sorted(script.state.nodes) == ["a", "b", "c"]


def test_most_of_those_who_begin_decide_which_base_is_the_run_s():
    script = Script(wanted=6).join(*"abcdef").wait(1.5)
    script(*(s.Measured(name, name + "1") for name in "abcdef")).answer(s.Flushed, "abcdef")
    other = BASE | {1: 8}
    script(*(prepared(script, name, other if name == "a" else BASE) for name in "abcdef"))
    assert [stop.to for stop in script.get(s.SendStop)] == [("a",)]
    script.answer(s.Flushed, "bcdef").answer(s.Prepared, "bcdef", bases=BASE)
    assert script.state.phase == TRAINING and script.state.bases == BASE


def test_spares_with_another_base_are_put_out_without_a_view_change():
    def three(names, current, broken):
        return planner([name for name in names if name in "ab"], current, broken)

    script = Script(wanted=2)
    script.machine = Membership(three)
    script.join(*"abcd").wait(1.5)
    script(*(s.Measured(name, name + "1") for name in "abcd")).answer(s.Flushed, "abcd")
    script(*(prepared(script, name, BASE | ({0: 8} if name in "cd" else {})) for name in "abcd"))
    assert sorted(stop.to for stop in script.get(s.SendStop)) == [("c",), ("d",)]
    assert script.state.phase == TRAINING and script.state.number == 1 and sorted(script.state.nodes) == ["a", "b"]


def test_the_base_of_a_lone_stage_is_compared_with_what_was_trained():
    script = Script().started(bases=BASE)
    script(s.Left("b", "b1", "gone"), s.Left("d", "d1", "gone"))
    script(*(holding(script, name, 5) for name in "ac"))
    script(prepared(script, "a", BASE), prepared(script, "c", {2: 7, 3: 9}))
    assert [stop.to for stop in script.get(s.SendStop)] == [("c",)]


def test_without_a_record_those_who_trained_are_believed_and_else_the_first():
    good, bad = {0: 7}, {0: 8}
    assert expected_bases({}, [good], [bad, bad]) == good
    assert expected_bases(good, [bad], [bad]) == good
    assert expected_bases({}, [], [good, bad, bad]) == bad
    assert expected_bases({}, [], [bad, good]) == bad and expected_bases({}, [], [good, bad]) == good
    assert expected_bases({}, [good], [{1: 5}]) == {0: 7, 1: 5}
