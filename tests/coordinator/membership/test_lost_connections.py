"""Two nodes that live lose the connection between them: it is waited for, costs a view, or parts them."""

from membership_script import Script, holding, planner

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.state import FLUSHING, TRAINING, Known
from farflung.scheduler.plans import Plan


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
