"""A view says who hands what to whom, or what is lost because nobody may see it."""

from dataclasses import replace

import pytest
from membership_script import LAYERS, Script, holding, rules

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.orders import flushed_of, view_of
from farflung.coordinator.membership.resuming.handovers import Residuals, residuals_of
from farflung.coordinator.membership.state import State
from farflung.job.schema import Job
from farflung.proto import control_pb2 as pb


def script_of(residuals):
    script = Script(4)
    script.state = State(replace(rules(4, "delta"), residuals=residuals))
    return script.started("abcd")


def with_three(script, **unsent):
    """d is gone: c, whose pipeline lacks it, becomes a spare."""
    script(s.Left("d", "d1", "it is switched off"))
    script(*(replace(holding(script, name, 3), **unsent) for name in "abc"))
    (sent,) = script.get(s.SendView)
    return sent.view


def test_what_a_spare_had_goes_to_those_who_hold_its_layers_now():
    view = with_three(script_of(Residuals()))
    assert "c" in view.plan.spares
    assert view.handovers == (s.Handover("c", "a", tuple(range(LAYERS // 2)), True),)
    (one,) = view_of(view).handovers
    assert (one.giver, one.taker, list(one.layers), one.ends) == ("c", "a", [0, 1], True)


def test_who_gave_its_last_contribution_gives_no_other():
    script = script_of(Residuals())
    script(s.Leaving("c", "c1", "its machine is taken away; a rest of norm 1 goes with it"))
    script(*(holding(script, name, 3) for name in "abcd"))
    (sent,) = script.get(s.SendView)
    assert {one.giver for one in sent.view.handovers} == {"d"}


def test_nothing_is_handed_over_that_nobody_may_see():
    secret = Residuals(shown_to_nobody="updates.secure")
    view = with_three(script_of(secret), unsent={0: 0.3, 1: 0.4}, moved=10.0)
    assert not view.handovers
    assert "of layers 0, 1 and not sent (5.0% of what the weights have moved) is lost: updates.secure" in view.why


def test_gradients_leave_nothing():
    assert with_three(script_of(None)).handovers == ()


def test_norms_that_make_no_sense_are_none():
    report = pb.Flushed(view=2, layers=[0, 1, 2], unsent=[float("nan"), -1.0, 2.0], moved=float("inf"))
    found = flushed_of("a", "a1", report)
    assert found.unsent == {2: 2.0} and found.moved == 0.0


@pytest.mark.parametrize(
    ("updates", "wanted"),
    [
        ({"mode": "gradient"}, Residuals(gradient=True)),
        ({"mode": "delta"}, Residuals()),
        ({"mode": "delta", "outer": "nesterov:lr=0.7,momentum=0.9"}, Residuals(alone=True)),
        ({"mode": "delta", "robust": "clip"}, Residuals(shown_to_nobody="updates.robust")),
        ({"mode": "delta", "secure": True, "codec": "intsgd:bits=8"}, Residuals(shown_to_nobody="updates.secure")),
        ({"mode": "delta", "pattern": "gossip", "agreed": False}, None),
    ],
)
def test_what_a_job_leaves(updates, wanted):
    job = Job.model_validate(
        {
            "run": {"name": "run", "steps": 9},
            "model": {"family": "gpt2", "layers": 3, "width": 16, "heads": 2, "context": 8},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 12, "microbatch": 2},
            "updates": updates,
        }
    )
    assert residuals_of(job) == wanted


def test_a_norm_that_no_float_can_square_stops_no_view():
    view = with_three(script_of(Residuals(shown_to_nobody="updates.secure")), unsent={0: 1e300}, moved=1.0)
    assert "is lost: updates.secure shows it to nobody" in view.why
