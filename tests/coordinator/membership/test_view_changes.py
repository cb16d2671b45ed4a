"""Deaths and lost streams between a flush and the start of the next view."""

from membership_script import Script, holding

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.state import FLUSHING, PREPARING
from farflung.job.data.sampling import Position


def test_orders_are_said_again_after_a_reconnect():
    script = Script().started()
    script(s.Left("d", "d1", "gone"))
    script(s.Hello("a", "a1", 1))
    assert script.get(s.SendFlush)[0].to == ("a",)
    script(*(holding(script, name, 5) for name in "abc"))
    script(s.Hello("b", "b1", 1))
    assert script.get(s.SendView)[0].to == ("b",)


def test_death_in_preparation_takes_the_next_number_and_keeps_the_position():
    script = Script().started()
    script(s.Left("d", "d1", "gone"))
    script(
        *(holding(script, name, 5, 6) for name in "ac"),
        s.Flushed(
            "b",
            "b1",
            2,
            6,
            6,
            1.25,
            sections=(),
            layers=frozenset({2, 3}),
        ),
    )
    assert script.get(s.SendView)[0].view.position.step == 6
    script(s.Left("a", "a1", "gone"), s.Left("c", "c1", "gone"))
    assert script.state.change.awaited == {"b"} and script.state.number == 3
    script(s.Flushed("b", "b1", 3, 6, 6, 1.25, sections=(), layers=frozenset(range(4))))
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
