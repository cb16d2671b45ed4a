"""The membership machine, driven by hand, and by hypothesis with a model of nodes that train, die and lose answers."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from membership_script import BATCH, Script, holding, planner, rules

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.members import (
    DONE,
    FLUSHING,
    PREPARING,
    TRAINING,
    WAITING,
    Known,
    State,
    expected_bases,
)
from farflung.job.sampling import Position
from farflung.scheduler.errors import PlanError
from farflung.scheduler.plans import Plan


def test_waits_and_says_for_what():
    script = Script().join("a", "b").wait(3)
    assert script.state.phase == WAITING
    assert script.state.why == "waiting for 2 more nodes (2 stages x 2 pipelines); a, b in"


def test_start():
    script = Script().join("a", "b", "c", "d")
    assert not script.get(s.SendMeasure)
    script.wait(1.5)
    assert [(one.to, [peer.name for peer in one.peers]) for one in script.get(s.SendMeasure)] == [
        ("a", ["b", "c", "d"]),
        ("b", ["c", "d"]),
        ("c", ["d"]),
    ]
    assert script.state.phase == WAITING and script.state.why == "waiting for a, b, c to measure links"
    script(*(s.Measured(name, name + "1") for name in "abc"))
    assert script.get(s.SendFlush) == [s.SendFlush(("a", "b", "c", "d"), 1, "4 nodes in: the run starts")]
    script.answer(s.Flushed, "abcd")
    (sent,) = script.get(s.SendView)
    assert sent.view.number == 1 and sent.view.checkpoint == 0 and sent.view.position == Position()
    script.answer(s.Prepared, "abc")
    assert not script.get(s.SendStart)
    script.answer(s.Prepared, "d")
    assert script.get(s.SendStart)[0].view == 1
    assert script.state.phase == TRAINING


def test_measuring_is_bounded():
    script = Script().join("a", "b", "c", "d").wait(1.5).wait(14)
    assert script.state.phase == WAITING
    script.wait(2)
    assert script.state.phase == FLUSHING
    assert "did not measure" in script.get(s.Say)[0].why


def test_killed_node():
    script = Script().started()
    script(s.StreamEnded("d", "d1", "connection reset"))
    assert script.get(s.Dial)[0].name == "d" and script.state.phase == TRAINING
    script(s.Dialled("d", "d1", False, "connection refused"))
    assert script.get(s.SendFlush) == [
        s.SendFlush(("a", "b", "c"), 2, "d left: its stream ended and it does not answer: connection refused")
    ]
    script(*(holding(script, name, 5) for name in "abc"))
    (sent,) = script.get(s.SendView)
    assert sent.view.position == Position(5, 40) and sent.view.checkpoint == -1
    assert sent.view.plan.pipelines == (("a", "b"),) and list(sent.view.plan.spares) == ["c"]
    assert sent.view.holders == (("a", "c"), ("a", "c"), ("b",), ("b",))


def test_stage_without_holder_goes_back_to_the_checkpoint():
    script = Script().started()
    script(s.CheckpointComplete(Position(4, 32)))
    script(s.Left("b", "b1", "gone"), s.Left("d", "d1", "gone"))
    script(*(holding(script, name, 5) for name in "ac"))
    (sent,) = script.get(s.SendView)
    assert sent.view.checkpoint == 4 and sent.view.position == Position(4, 32)


@pytest.mark.parametrize(
    ("dead", "step", "complete", "again"),
    [
        ("d", 5, 0, True),  # it had stage 1's part of step 5 to send
        ("d", 7, 0, True),
        ("c", 7, 0, False),  # others send
        ("d", 7, 5, False),
        ("d", 4, 0, False),  # none was due
        ("d", 11, 5, True),
    ],
)
def test_a_checkpoint_that_a_dead_node_was_sending_is_made_again(dead, step, complete, again):
    script = Script()
    script.state = replace(script.state, rules=replace(script.state.rules, checkpoint_every=5))
    script.started()
    if complete:
        script(s.CheckpointComplete(Position(complete, 8 * complete)))
    script(s.Left(dead, dead + "1", "gone"))
    script(*(holding(script, name, step) for name in "abcd" if name != dead))
    (sent,) = script.get(s.SendView)
    assert sent.view.position.step == step and sent.view.save == again


def silence(script, name, seconds):
    """Everybody but one sends heartbeats for a while; all effects."""
    beats = [beat for beat in script.heartbeats() if beat.name != name]
    made = []
    for _ in range(int(seconds * 2)):
        script(*beats, s.Tick(), dt=0.5)
        made += script.effects
    return made


def test_silent_and_unreachable():
    script = Script().started()
    dials = [effect for effect in silence(script, "c", 4) if isinstance(effect, s.Dial)]
    assert [(dial.name, dial.why) for dial in dials] == [("c", "c is silent for 4 s")]
    script(s.Dialled("c", "c1", False, "no answer within 2 s"))
    assert "c" not in script.state.nodes
    assert (
        script.get(s.SendFlush)[0].why == "c left: no heartbeat for 4 s, and it does not answer: no answer within 2 s"
    )


def test_silent_but_reachable():
    script = Script().started()
    silence(script, "c", 4)
    script(s.Dialled("c", "c1", True, ""))
    silence(script, "c", 8)
    assert "c" in script.state.nodes and script.state.phase == TRAINING
    script(s.Heard("c", "c1"))
    assert any(isinstance(effect, s.Dial) for effect in silence(script, "c", 4))
    script(s.Dialled("c", "c1", True, ""))
    silence(script, "c", 12)
    assert "c" not in script.state.nodes and "no heartbeat for 15 s" in script.state.why


def test_joined_and_never_came():
    script = Script().started()
    script(s.Joined("e", "e1", "e:1"))
    silence(script, "e", 100)
    assert "e" in script.state.nodes
    silence(script, "e", 30)
    assert "e" not in script.state.nodes and "did not come within 120 s" in script.state.why


def test_own_stall_is_nobodys_silence():
    script = Script().started()
    script(s.Tick())(s.Tick(), dt=60)
    assert len(script.state.nodes) == 4 and not script.effects


def test_stream_comes_back():
    script = Script().started()
    script(s.StreamEnded("d", "d1", "reset"), s.Dialled("d", "d1", True, ""))
    script(s.Hello("d", "d1", 1), dt=1)
    assert script.get(s.SendStart)[0].to == ("d",)
    assert script.state.phase == TRAINING and script.state.number == 1


def test_orders_are_said_again_after_a_reconnect():
    script = Script().started()
    script(s.Left("d", "d1", "gone"))
    script(s.Hello("a", "a1", 1))
    assert script.get(s.SendFlush)[0].to == ("a",)
    script(*(holding(script, name, 5) for name in "abc"))
    script(s.Hello("b", "b1", 1))
    assert script.get(s.SendView)[0].to == ("b",)


def test_links_are_asked_for_again_after_a_reconnect():
    script = Script().join("a", "b", "c", "d").wait(1.5)
    script(s.StreamEnded("a", "a1", "reset"), s.Dialled("a", "a1", True, ""))
    script(s.Hello("a", "a1", 0))
    (order,) = script.get(s.SendMeasure)
    assert order.to == "a" and {peer.name for peer in order.peers} == {"b", "c", "d"}


def test_death_in_preparation_takes_the_next_number_and_keeps_the_position():
    script = Script().started()
    script(s.Left("d", "d1", "gone"))
    script(*(holding(script, name, 5, 6) for name in "ac"), s.Flushed("b", "b1", 2, 6, 6, 1.25, (), frozenset({2, 3})))
    assert script.get(s.SendView)[0].view.position.step == 6
    script(s.Left("a", "a1", "gone"), s.Left("c", "c1", "gone"))
    assert script.state.change.awaited == {"b"} and script.state.number == 3
    script(s.Flushed("b", "b1", 3, 6, 6, 1.25, (), frozenset(range(4))))
    assert script.get(s.SendView)[0].view.position == Position(6, 48)
    assert script.get(s.SendView)[0].view.checkpoint == -1


def test_death_of_a_spare_in_preparation_matters_only_if_it_is_a_source():
    script = Script().join("a", "b", "c", "d", "e").wait(1.5)
    script(*(s.Measured(name, name + "1") for name in "abcd")).answer(s.Flushed, "abcde")
    assert script.state.phase == PREPARING and list(script.state.pinned.plan.spares) == ["e"]
    script(s.Left("e", "e1", "gone"))
    assert script.state.phase == PREPARING
    script.answer(s.Prepared, "abcd")
    script(s.Left("b", "b1", "gone"))
    script(*(holding(script, name, 5) for name in "acd"))
    assert list(script.state.pinned.plan.spares) == ["d"]
    script(s.Left("d", "d1", "gone"))
    assert script.state.phase == FLUSHING, "c has layers 2 and 3 from d"


def test_death_while_flushing_is_dropped():
    script = Script().started()
    script(s.Left("d", "d1", "gone"))
    script(*(holding(script, name, 5) for name in "ab"))
    assert not script.get(s.SendView)
    script(s.Left("c", "c1", "gone"))
    assert script.get(s.SendView)[0].view.number == 2


def test_joiner_measures_while_the_others_train():
    script = Script().started()
    script.join("e", "f").wait(1.5)
    assert [one.to for one in script.get(s.SendMeasure)] == ["e", "f"]
    assert len(script.get(s.SendMeasure)[0].peers) == 5
    assert script.state.phase == TRAINING
    script(s.Measured("e", "e1"), s.Measured("f", "f1"))
    assert script.get(s.SendFlush)[0].why == "e, f joined"
    assert script.state.change.awaited == frozenset("abcdef")


def test_who_cannot_be_dialled_is_told_to_measure_back():
    """It has to open the connection; the last of the names, and one that trains already, would not be asked."""
    script = Script().join("a", "b", "c")
    script(s.Joined("d", "d1", "d:1", dials_out=True), s.Hello("d", "d1", 0))
    assert script.get(s.Say) == [
        s.Say("joined", "d", "d joined from d:1, where nobody can dial it: it dials the others")
    ]
    script.wait(1.5)
    orders = {one.to: [peer.name for peer in one.peers] for one in script.get(s.SendMeasure)}
    assert orders == {"a": ["b", "c", "d"], "b": ["c", "d"], "c": ["d"], "d": ["a", "b", "c"]}
    assert script.get(s.SendMeasure)[0].peers[2].dials_out
    script(*(s.Measured(name, name + "1") for name in "abc"))
    assert script.state.why == "waiting for d to measure links"
    script(s.Measured("d", "d1")).answer(s.Flushed, "abcd").answer(s.Prepared, "abcd")
    assert script.state.phase == TRAINING and script.state.view.members[3].dials_out
    script.join("e").wait(1.5)
    orders = {one.to: [peer.name for peer in one.peers] for one in script.get(s.SendMeasure)}
    assert orders == {"e": ["a", "b", "c", "d"], "d": ["e"]}
    assert script.state.nodes["d"].measured and not script.state.nodes["e"].measured


def test_joiner_that_the_plan_does_not_want_is_told_and_costs_nothing():
    script = Script().started()
    script.join("e").wait(1.5)
    script(s.Measured("e", "e1"))
    assert script.state.phase == TRAINING
    assert script.get(s.SendNotice)[0].why == "e is a spare: one too many"
    script.wait(3)
    assert not script.effects
    script(s.Left("a", "a1", "gone"))
    assert script.state.change.awaited == frozenset("bcde")


def test_joiner_that_still_loads_its_libraries_is_not_waited_for():
    script = Script().started()
    script.join("e", "f")
    beats = [s.Heard(beat.name, beat.session, beat.name not in "ef") for beat in script.heartbeats()]
    for _ in range(10):
        script(*beats, s.Tick(), dt=0.5)
        assert not script.effects
    script(s.Left("a", "a1", "gone"))
    assert script.state.change.awaited == frozenset("bcd")
    script(*(holding(script, name, 5) for name in "bcd")).answer(s.Prepared, "bcd").wait(1.5)
    assert [one.to for one in script.get(s.SendMeasure)] == ["e", "f"]


def test_new_session_fences_the_old():
    script = Script().started()
    script(s.Joined("a", "a2", "a:2"))
    assert s.Fence("a", "a1", "a came back as a new session") in script.effects
    assert script.state.phase == FLUSHING and "a" not in script.state.change.awaited
    script(s.Flushed("a", "a1", 2, 5))
    assert not script.state.change.flushed


def test_evidence_between_living_nodes():
    """A needed connection that stays down costs a view change; three of them in a minute, and the two are apart."""
    script = Script().started()
    script(s.Accused("a", "a1", "b", "reset"))
    assert script.get(s.Dial)[0].name == "b"
    script(s.Accused("c", "c1", "b", "reset"))
    assert not script.effects, "one dial at a time"
    script(s.Dialled("b", "b1", True, ""))
    assert not script.effects and set(script.state.down) == {("a", "b"), ("c", "b")}
    script(s.Accused("c", "c1", "b", "", mended=True)).wait(5)
    assert script.state.phase == TRAINING
    script.wait(0.5)
    assert script.get(s.SendFlush)[0].why == "the connection between a and b has been down for 6 s: reset"
    for _ in range(2):
        script(*(holding(script, name, 5) for name in "abcd")).answer(s.Prepared, "abcd")
        script(s.Accused("a", "a1", "b", "reset"), s.Dialled("b", "b1", True, ""), dt=1).wait(5.5)
    assert script.state.broken == {("a", "b")}
    assert "planned apart" in script.get(s.Say)[0].why


def test_a_killed_node_is_still_missed_at_once():
    """A refused dial is no hiccup: nobody waits out the time that a connection may be down."""
    script = Script().started()
    script(s.Accused("a", "a1", "b", "reset"), s.StreamEnded("b", "b1", "reset"))
    script(s.Dialled("b", "b1", False, "connection refused"))
    assert script.get(s.SendFlush)[0].why.startswith("b left: its stream ended and it does not answer")
    assert not script.state.down


def test_sixty_four_nodes_that_each_lose_a_connection_a_day_lose_no_step():
    """Both ends answer, and it is there again a second later: a whole day in one view."""
    names = [f"n{index:02d}" for index in range(64)]
    plan = Plan(tuple(zip(names[::2], names[1::2], strict=True)), ((0, 1), (2, 3)), (1,) * 32)
    script = Script(wanted=64)
    script.machine = Membership(lambda *_: plan)
    view = script.started(names).state.view.number
    for index, name in enumerate(names):
        peer = names[(index + 1) % len(names)]
        session = name + "1"
        made = []
        for event in (s.Accused(name, session, peer, "reset"), s.Dialled(peer, peer + "1", True, ""), None):
            script(*script.heartbeats(), *([event] if event else []), s.Tick(), dt=0.5)
            made += script.effects
        script(s.Accused(name, session, peer, "", mended=True), *script.heartbeats(), s.Tick(), dt=0.5)
        made += script.effects
        assert not [one for one in made if not isinstance(one, s.Dial)], "nothing but a dial"
        script.wait(20)
    assert script.state.phase == TRAINING and script.state.view.number == view


def test_a_far_connection_has_three_round_trips_more():
    script = Script()
    script.machine = Membership(planner, known=Known(round_trip_s=lambda name: 2.0))
    script.started()
    script(s.Accused("a", "a1", "b", "reset"), s.Dialled("b", "b1", True, "")).wait(11)
    assert script.state.phase == TRAINING
    script.wait(0.5)
    assert script.state.phase == FLUSHING


def test_two_whose_words_differ_are_planned_apart_once():
    script = Script()
    script.started()
    before = script.state.number
    script(s.Apart("c", "a", "c refuses what a sends, and nobody else has seen it: the two are planned apart"))
    assert script.state.broken == {("a", "c")} and script.state.phase == FLUSHING
    assert script.state.number == before + 1 and set(script.state.nodes) == set("abcd")
    script(s.Apart("a", "c", "again"))
    assert script.state.number == before + 1


def told(script, name, step, chain):
    """An answer to the flush with the chain hash of the node's stage."""
    stage = script.state.view.plan.stage_of(name)
    return replace(holding(script, name, step), sections=(s.Section(f"stage-{stage}", step, chain),))


def test_histories_that_differ_are_judged():
    script = Script(6).started("abcdef")
    why = "e and a hold different histories of a section"
    script(s.Accused("e", "e1", "a", "h differs", diverged=True))
    assert script.get(s.SendFlush) == [s.SendFlush(tuple("abcdef"), 2, why)] and not script.get(s.Dial)
    script(*(told(script, name, 5, 8 if name == "a" else 7) for name in "abcdef"))
    assert "a has another chain of rounds" in script.get(s.Say)[0].why
    view = script.get(s.SendView)[0].view
    assert view.holders[0] == ("c", "e") and view.sections[0] == s.Section("stage-0", 5, 7)
    assert why in view.why and ("a", "a1") not in script.state.eligible
    script.answer(s.Prepared, "abcdef")
    assert script.state.phase == TRAINING and ("a", "a1") in script.state.eligible


def test_histories_are_judged_at_most_once_in_10_s():
    script = Script().started()
    script(s.Accused("a", "a1", "c", "h differs", diverged=True))
    script(*(told(script, name, 5, 7) for name in "abcd")).answer(s.Prepared, "abcd")
    script(s.Accused("b", "b1", "d", "h differs", diverged=True), dt=1)
    assert script.state.phase == TRAINING and not script.effects
    script(s.Accused("d", "d1", "b", "h differs", diverged=True)).wait(8)
    assert script.state.phase == TRAINING
    script.wait(2)
    assert script.state.phase == FLUSHING and "b and d hold different histories" in script.state.why


def test_a_difference_with_a_node_outside_the_view_is_nothing():
    script = Script().started()
    script(s.Accused("a", "a1", "x", "h differs", diverged=True), s.Accused("a", "a1", "a", "", diverged=True))
    assert script.state.phase == TRAINING and not script.effects


def test_a_tie_of_histories_goes_back_to_the_checkpoint():
    script = Script().started()
    script(s.CheckpointComplete(Position(4, 32)), s.Accused("a", "a1", "c", "h differs", diverged=True))
    script(*(told(script, name, 5, 8 if name == "a" else 7) for name in "abcd"))
    view = script.get(s.SendView)[0].view
    assert view.checkpoint == 4 and "(a against c): from the checkpoint of step 4" in view.why


def test_nobody_is_judged_after_a_view_that_did_not_start():
    script = Script().started()
    script(s.Left("d", "d1", "gone"))
    script(*(told(script, name, 5, 7) for name in "abc"))
    script(s.Left("b", "b1", "gone"))
    assert script.state.phase == FLUSHING
    script.join("e").wait(1.5)
    answers = told(script, "a", 5, 7), told(script, "c", 5, 8)
    script(*answers)
    assert not script.get(s.SendView) or all(one.chain == 0 for one in script.get(s.SendView)[0].view.sections)
    assert not any("chain" in said.why for said in script.get(s.Say))


def test_disagreement_is_not_trained():
    script = Script().started()
    script(s.CheckpointComplete(Position(4, 32)))
    script(s.Left("d", "d1", "gone"))
    script(*(holding(script, name, 5) for name in "abc"))
    marks = [(s.Fingerprint("stage-0", 5, 1),), (s.Fingerprint("stage-1", 5, 1),), (s.Fingerprint("stage-0", 5, 2),)]
    script(*(s.Prepared(name, name + "1", 2, mark) for name, mark in zip("abc", marks, strict=True)))
    assert script.get(s.Say)[0].why == "a and c hold different weights of stage-0 after round 5"
    assert script.state.phase == FLUSHING and script.state.number == 3
    script(*(holding(script, name, 5) for name in "abc"))
    assert script.get(s.SendView)[0].view.checkpoint == 4


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


def test_done():
    script = Script().started()
    print_ = (s.Fingerprint("stage-0", 9, 1),)
    script(*(s.Finished(name, name + "1", 1, 9, print_) for name in "abcd"))
    script(s.Left("a", "a1", "done with it"))
    assert script.state.phase == TRAINING and not script.get(s.SendFlush)
    assert script.state.why == "all 9 steps are trained; waiting for the last checkpoint"
    script(s.CheckpointComplete(Position(9, 72)))
    assert script.get(s.Finish) == [s.Finish(9, "the run is done: 9 steps")]
    assert script.state.phase == DONE


def test_a_finished_node_that_goes_away_is_replaced_while_others_have_not_finished():
    script = Script().started()
    script(*(s.Finished(name, name + "1", 1, 9) for name in "abc"))
    script(s.Left("a", "a1", "killed"))
    assert script.get(s.SendFlush) == [s.SendFlush(("b", "c", "d"), 2, "a left: killed")]
    script(*(holding(script, name, 9) for name in "bcd"))
    assert script.get(s.SendView)[0].view.position.step == 9
    script.answer(s.Prepared, "bcd")
    assert script.state.phase == TRAINING and not script.state.finished
    script(*(s.Finished(name, name + "1", 2, 9) for name in script.state.view.plan.nodes))
    script(s.CheckpointComplete(Position(9, 72)))
    assert script.state.phase == DONE


def test_done_without_the_last_checkpoint():
    script = Script().started()
    script(*(s.Finished(name, name + "1", 1, 9) for name in "abcd")).wait(119)
    assert script.state.phase == TRAINING
    script.wait(2)
    assert "the checkpoint of step 9 did not arrive; the newest is of step 0" in script.get(s.Say)[0].why
    assert script.state.phase == DONE


def test_different_weights_at_the_end_fail_the_run():
    script = Script().started()
    script(*(s.Finished(name, name + "1", 1, 9, (s.Fingerprint("stage-0", 9, ord(name) // 99),)) for name in "abcd"))
    assert "a and c hold different weights" in script.get(s.Fail)[0].why


def test_no_plan_waits_until_somebody_comes():
    def picky(names, current, broken):
        if len(names) < 2:
            raise PlanError("the model needs 3.0 GB more memory")
        return planner(names, current, broken)

    script = Script(wanted=1)
    script.machine = Membership(picky)
    script.join("a").wait(1.5)
    script.answer(s.Flushed, "a")
    assert script.state.phase == WAITING
    assert "no plan for a: the model needs 3.0 GB more memory" in script.state.why
    script.wait(5)
    assert not script.effects
    script.join("b").wait(1.5)
    script(s.Measured("b", "b1"))
    assert script.get(s.SendFlush)[0].view == 2


def test_restored_coordinator_waits_for_the_old_members():
    view = Script().started().state.view
    script = Script()
    eligible = frozenset((member.name, member.session) for member in view.members)
    script.state = State(rules(), number=1, view=view, eligible=eligible, restored=True)
    script(s.Joined("a", "a1", "a:1"), s.Hello("a", "a1", 1)).wait(3)
    assert script.state.phase == WAITING
    script(*(s.Joined(name, name + "1", "") for name in "bcd"), *(s.Hello(name, name + "1", 1) for name in "bcd")).wait(
        2
    )
    script(*(s.Measured(name, name + "1") for name in "abcd"))
    assert script.state.phase == FLUSHING and script.state.number == 2
    script(*(holding(script, name, 7) for name in "abcd"))
    assert script.get(s.SendView)[0].view.position == Position(7, 56)


# ---- the model ------------------------------------------------------------------------------

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
                    fake.name, fake.session, order.view, fake.step, ready, float(fake.step), sections, fake.layers
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


def test_beats_together_are_beats_one_by_one():
    together, alone = (Script().join(*"abcd") for _ in range(2))
    stranger = s.Heard("d", "another session")
    beats = [s.Heard("a", "a1"), s.Heard("b", "b1", ready=False), stranger, s.Heard("nobody", "x")]
    together(s.Beats(tuple(beats)), dt=2.0)
    alone(*beats, dt=2.0)
    assert together.state == alone.state
    nodes = together.state.nodes
    assert [nodes[name].heard for name in "abcd"] == [2.0, 2.0, 0.0, 0.0]
    assert [nodes[name].ready for name in "abcd"] == [True, False, False, False]


def test_a_joiner_of_a_large_run_measures_a_few_links():
    script = Script(wanted=200).join(*(f"n{number:03}" for number in range(200)))
    script(dt=2.0)(s.Tick())
    asked = script.get(s.SendMeasure)
    assert len(asked) >= 190 and max(len(effect.peers) for effect in asked) == 32
    pairs = [frozenset((effect.to, peer.name)) for effect in asked for peer in effect.peers]
    assert len(pairs) == len(set(pairs)) < 200 * 20  # each pair once
