"""A trainer that does nothing while its I/O process beats on: asked, then replaced, and welcome again when it acts."""

from membership_script import Script, holding, planner

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.state import FLUSHING, TRAINING, WAITING


def beats(script, seconds, idle=None):
    """Heartbeats of all for some seconds; ``idle``: since when (by the script's clock) which trainers did nothing."""
    made = []
    for _ in range(int(2 * seconds)):
        script.now += 0.5
        heard = [
            s.Heard(node.name, node.session, True, 0, script.now - (idle or {}).get(node.name, script.now))
            for node in script.state.nodes.values()
        ]
        script(s.Beats(tuple(heard)), s.Tick())
        made += script.effects
    return made


def stepped(script, seconds=2.0):
    script(*(s.StepFinished(name, name + "1", script.state.view.number, 1, seconds) for name in "abcd"))
    return script


def trained(seconds=2.0):
    script = Script().started()
    beats(script, 1)
    script.now += seconds
    script(s.Beats(tuple(script.heartbeats())), s.Tick())
    return stepped(script, seconds)


def test_it_is_asked_and_then_replaced():
    script = trained()
    since = script.now
    made = beats(script, 119, {"c": since})
    assert not made and script.state.phase == TRAINING
    made = beats(script, 5, {"c": since})
    (said,) = [one for one in made if isinstance(one, s.Say)]
    assert said.why == (
        "c's trainer has done nothing for 120 s, and its machine answers: the others go on without it in 30 s"
    )
    assert [one.to for one in made if isinstance(one, s.SendNotice)] == [("c",)] and script.state.phase == TRAINING
    made = beats(script, 31, {"c": since})
    (flush,) = [one for one in made if isinstance(one, s.SendFlush)]
    assert flush.to == ("a", "b", "d"), "it is not waited for"
    assert flush.why.startswith("c is stuck: its trainer has done nothing for 15")
    script(*(holding(script, name, 1) for name in "abd"))
    (view,) = script.get(s.SendView)
    assert "c" not in view.view.plan.nodes and "c" in script.state.nodes


def test_it_has_a_place_again_when_it_acts():
    script = trained()
    beats(script, 160, {"c": script.now})
    script(*(holding(script, name, 1) for name in "abd"))
    script.answer(s.Prepared, "abd")
    assert script.state.phase == TRAINING and script.state.nodes["c"].stuck
    beats(script, 20, {"c": 0.0})
    assert script.state.phase == TRAINING
    made = beats(script, 3)
    assert [one.to for one in made if isinstance(one, s.SendFlush)] == [("a", "b", "c", "d")]
    assert not script.state.nodes["c"].stuck


def test_who_answers_in_time_stays():
    script = trained()
    beats(script, 125, {"c": script.now})
    beats(script, 1)
    assert script.state.nodes["c"].questioned is None
    beats(script, 100, {"c": script.now})
    assert script.state.phase == TRAINING


def test_nobody_is_stuck_who_computes():
    """Ten of the slowest steps, and ten minutes in a first step."""
    script = trained(seconds=60.0)
    assert not [one for one in beats(script, 590, dict.fromkeys("abcd", script.now)) if not isinstance(one, s.Say)]
    assert script.state.phase == TRAINING
    script = Script().started()
    made = beats(script, 590, dict.fromkeys("abcd", script.now))
    assert not made and script.state.phase == TRAINING


def test_spares_and_finished_nodes_keep_nobody_waiting():
    script = trained()
    script(s.Finished("c", "c1", script.state.view.number, 100))
    made = beats(script, 300, {"c": script.now})
    assert not made and not script.state.nodes["c"].stuck


def test_without_it_nobody_can_train_and_it_is_said():
    script = Script(wanted=2).started("ab")
    beats(script, 1)
    script(*(s.StepFinished(name, name + "1", 1, 1, 1.0) for name in "ab"))

    def needs_two(names, current, broken):
        from farflung.scheduler.errors import PlanError

        if len(names) < 2:
            raise PlanError("2 stages need 2 nodes")
        return planner(names, current, broken)

    script.machine = Membership(needs_two)
    beats(script, 160, {"b": script.now})
    assert script.state.phase == FLUSHING
    script(holding(script, "a", 1))
    assert script.state.phase == WAITING
    beats(script, 2, {"b": 0.0})
    assert "b is stuck" in script.state.why
    beats(script, 5)
    assert script.state.phase == FLUSHING and script.state.change.awaited == {"a", "b"}


def test_the_coordinators_own_stall_is_nobodys():
    script = trained()
    script.now += 500
    script(s.Tick())
    script(s.Tick(), dt=0.2)
    assert script.state.phase == TRAINING and not script.effects
