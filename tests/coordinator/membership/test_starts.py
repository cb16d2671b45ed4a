"""How a run gets its first view: who is waited for, who measures, and where an earlier coordinator left off."""

from membership_script import Script, holding, planner, rules

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.state import FLUSHING, TRAINING, WAITING, State
from farflung.job.data.sampling import Position
from farflung.scheduler.errors import PlanError


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


def test_links_are_asked_for_again_after_a_reconnect():
    script = Script().join("a", "b", "c", "d").wait(1.5)
    script(s.StreamEnded("a", "a1", "reset"), s.Dialled("a", "a1", True, ""))
    script(s.Hello("a", "a1", 0))
    (order,) = script.get(s.SendMeasure)
    assert order.to == "a" and {peer.name for peer in order.peers} == {"b", "c", "d"}


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


def test_a_joiner_of_a_large_run_measures_a_few_links():
    script = Script(wanted=200).join(*(f"n{number:03}" for number in range(200)))
    script(dt=2.0)(s.Tick())
    asked = script.get(s.SendMeasure)
    assert len(asked) >= 190 and max(len(effect.peers) for effect in asked) == 32
    pairs = [frozenset((effect.to, peer.name)) for effect in asked for peer in effect.peers]
    assert len(pairs) == len(set(pairs)) < 200 * 20  # each pair once
