"""Spares follow places; a joiner that would make the others wait catches up as one first."""

from dataclasses import replace

import pytest
from membership_script import flushed, holding, planner, slow, view_of

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.resuming.shadows import place_to_follow, shadows
from farflung.coordinator.membership.state import FLUSHING, PREPARING, TRAINING
from farflung.scheduler.plans import Plan

TWO_STAGES = Plan((("a", "b"), ("c", "d")), ((0, 1), (2, 3)), (2, 2))
HOLDERS = (("a", "c"), ("a", "c"), ("b", "d"), ("b", "d"))


def test_spares_spread_over_the_stages_with_the_fewest_holders():
    one = Plan((("a", "b"),), ((0, 1), (2, 3)), (4,))
    found = shadows(one, ["x", "y", "z"], (), {})
    assert found == (s.Shadow("x", "a", True), s.Shadow("y", "b", True), s.Shadow("z", "a", True))


def test_a_spare_goes_on_with_what_it_holds():
    holders = (*HOLDERS[:2], ("b", "d", "x"), ("b", "d", "x"))
    assert shadows(TWO_STAGES, ["x", "y"], holders, {}) == (s.Shadow("x", "b", False), s.Shadow("y", "a", True))
    half = (*HOLDERS[:3], ("b", "d", "x"))
    assert shadows(TWO_STAGES, ["x"], half, {}) == (s.Shadow("x", "a", True),)


def test_a_joiner_follows_the_place_that_it_will_have():
    assert shadows(TWO_STAGES, ["x"], HOLDERS, {"x": (1,)}) == (s.Shadow("x", "b", True),)


def test_interleaved_places_have_several_stages():
    plan = Plan((("a", "b", "a", "b"),), ((0, 0), (1, 1), (2, 2), (3, 3)), (4,), schedule="interleaved")
    assert shadows(plan, ["x", "y"], (), {}) == (s.Shadow("x", "a", True), s.Shadow("y", "b", True))


def test_which_place_is_like_another():
    wider = Plan((("a", "b"), ("c", "d"), ("x", "y")), ((0, 1), (2, 3)), (2, 1, 1))
    assert [place_to_follow(wider, TWO_STAGES, name) for name in "xy"] == [(0,), (1,)]
    whole = Plan((("a",), ("x",)), ((0, 3),), (2, 2))
    assert place_to_follow(whole, TWO_STAGES, "x") is None


# ---- the life of a joiner -------------------------------------------------------------------------


def test_it_follows_first_and_gets_its_place_without_a_transfer():
    script = slow()
    assert script.get(s.SendFlush)[0].why == "c joined"
    view = view_of(script, "ab", 5, flushed(script, "c", 0))
    assert view.plan.nodes == ("a", "b") and view.plan.spares == {
        "c": "it fetches what it is to hold while the others train"
    }
    assert [(one.node, one.fetch) for one in view.shadows] == [("c", True)]
    script.wait(30)
    assert script.state.phase == TRAINING
    script(s.CaughtUp("c", "c1", 2))
    assert script.get(s.SendFlush)[0].why == "c joined and has caught up"
    view = view_of(script, "ab", 9, flushed(script, "c", 9, range(4)))
    assert set(view.plan.nodes) == set("abc") and view.shadows == ()
    assert view.holders == (("a", "b", "c"),) * 4


def test_a_quick_joiner_gets_its_place_at_once():
    script = slow(0.1)
    script(*(holding(script, name, 5) for name in "ab"), flushed(script, "c", 0))
    assert set(script.get(s.SendView)[0].view.plan.nodes) == set("abc")


@pytest.mark.parametrize("event", [s.Changed("{}", "another codec"), s.Apart("a", "d", "they do not reach each other")])
def test_the_place_that_it_was_to_have_is_planned_anew_if_the_job_or_the_links_change(event):
    """The plan with the joiner's place was made before."""
    script = slow()
    view_of(script, "ab", 5, flushed(script, "c", 0))
    anew = {"chosen": {"train.microbatch": 4}}
    script.machine = Membership(
        lambda names, current, broken: replace(planner(names, current, broken, 1), **anew), lambda *_: 60.0
    )
    script(event)
    if script.state.phase == FLUSHING:
        view_of(script, "ab", 6, flushed(script, "c", 0))
    script.wait(30)
    script(s.CaughtUp("c", "c1", script.state.view.number))
    view = view_of(script, "ab", 9, flushed(script, "c", 9, range(4)))
    assert set(view.plan.nodes) == set("abc") and view.plan.chosen == anew["chosen"]


def test_nobody_notices_that_it_dies():
    script = slow()
    view_of(script, "ab", 5, flushed(script, "c", 0))
    script(s.Left("c", "c1", "killed"))
    assert script.state.phase == TRAINING and not script.get(s.SendFlush)


def test_what_it_says_of_another_view_is_nothing():
    script = slow()
    view_of(script, "ab", 5, flushed(script, "c", 0))
    script(s.CaughtUp("c", "c1", 1), s.CaughtUp("a", "a1", 2))
    assert script.state.phase == TRAINING and not script.effects


def test_one_that_cannot_follow_is_waited_for():
    script = slow()
    view_of(script, "ab", 5, flushed(script, "c", 0))
    script(s.CaughtUp("c", "c1", 2, failed="round 9 is not kept any more"))
    assert "cannot catch up as a spare: round 9" in script.get(s.SendFlush)[0].why
    view = view_of(script, "ab", 9, flushed(script, "c", 0))
    assert set(view.plan.nodes) == set("abc")


def test_interrupted_it_goes_on():
    script = slow()
    for step in (5, 6, 7):
        view = view_of(script, "ab", step, flushed(script, "c", 0))
        assert view.plan.nodes == ("a", "b") and [(one.node, one.fetch) for one in view.shadows] == [("c", True)]
        script(s.Save("somebody wants one"))


def test_several_that_join_together_get_their_places_together():
    script = slow()
    view_of(script, "ab", 5, flushed(script, "c", 0))
    script.join("d").wait(1.5)
    script(s.Measured("d", "d1"))
    view = view_of(script, "ab", 6, flushed(script, "c", 0), flushed(script, "d", 0))
    assert {one.node for one in view.shadows} == {"c", "d"}
    script.wait(10)
    script(s.CaughtUp("c", "c1", 3)).wait(5)
    assert script.state.phase == TRAINING
    script(s.CaughtUp("d", "d1", 3))
    assert script.get(s.SendFlush)[0].why == "c, d joined and have caught up"


def test_one_that_is_much_slower_is_not_waited_for():
    script = slow()
    view_of(script, "ab", 5, flushed(script, "c", 0))
    script.join("d").wait(1.5)
    script(s.Measured("d", "d1"))
    view_of(script, "ab", 6, flushed(script, "c", 0), flushed(script, "d", 0))
    script.wait(10)
    script(s.CaughtUp("c", "c1", 3)).wait(12)
    assert script.state.phase == FLUSHING and script.state.nodes["d"].behind


def test_a_death_meanwhile_does_not_make_it_a_holder():
    """It has not caught up: the others go on without it, and if they cannot, from the checkpoint, with it."""
    script = slow()
    view_of(script, "ab", 5, flushed(script, "c", 0))
    script(s.Left("b", "b1", "killed"))
    view = view_of(script, "a", 6, flushed(script, "c", 0))
    assert view.plan.nodes == ("a",) and [one.node for one in view.shadows] == ["c"]
    script(s.Left("a", "a1", "killed"))
    script(flushed(script, "c", 0))
    view = script.get(s.SendView)[0].view
    assert view.plan.nodes == ("c",) and view.checkpoint == 0


def test_a_spare_that_follows_is_a_holder():
    """The last holder of the stage dies: the spare has what it had."""
    script = slow()
    view_of(script, "ab", 5, flushed(script, "c", 0))
    script(s.CaughtUp("c", "c1", 2))
    script(s.Left("a", "a1", "killed"), s.Left("b", "b1", "killed"))
    script(flushed(script, "c", 9, range(4)))
    view = script.get(s.SendView)[0].view
    assert view.plan.nodes == ("c",) and view.checkpoint == -1 and view.position.step == 9


def test_others_do_not_wait_for_long_in_a_view_that_is_prepared():
    """The link was measured as fast and is not."""
    script = slow(0.0)
    script(*(holding(script, name, 5) for name in "ab"), flushed(script, "c", 0))
    script.answer(s.Prepared, "ab").wait(4)
    assert script.state.phase == PREPARING
    script.wait(2)
    assert "c takes long to fetch its part" in script.state.why
    view = view_of(script, "ab", 5, flushed(script, "c", 0))
    assert view.plan.nodes == ("a", "b") and [one.node for one in view.shadows] == ["c"]
