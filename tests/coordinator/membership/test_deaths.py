"""A member of a view that trains dies, falls silent, or only loses its stream."""

from dataclasses import replace

import pytest
from membership_script import Script, holding, silence

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.state import TRAINING
from farflung.job.data.sampling import Position


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


def test_a_killed_node_is_still_missed_at_once():
    """A refused dial is no hiccup: nobody waits out the time that a connection may be down."""
    script = Script().started()
    script(s.Accused("a", "a1", "b", "reset"), s.StreamEnded("b", "b1", "reset"))
    script(s.Dialled("b", "b1", False, "connection refused"))
    assert script.get(s.SendFlush)[0].why.startswith("b left: its stream ended and it does not answer")
    assert not script.state.down


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
