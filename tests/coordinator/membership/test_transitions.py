"""Every event has its handler, every effect its cause; what cannot be is an error with what led there."""

from dataclasses import dataclass, replace
from typing import get_args

import pytest
from membership_script import Script

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import HANDLERS
from farflung.coordinator.membership.state import TRAINING
from farflung.coordinator.membership.transitions import KEPT, Impossible


def test_every_kind_of_event_is_in_the_table():
    assert set(HANDLERS) == set(get_args(s.Input)) - {s.Planned, s.Undecidable}


def test_every_kind_of_effect_names_its_cause():
    assert all(issubclass(kind, s.Caused) for kind in get_args(s.Effect))


def test_an_effect_follows_from_an_event_with_a_number():
    script = Script().started()
    script(s.StreamEnded("a", "a1", "reset"))
    (dial,) = script.get(s.Dial)
    assert dial.cause == f"{script.state.events}: StreamEnded of a"
    assert 1 < len(script.state.recent) <= KEPT and "training" in script.state.recent[-1]


@dataclass(frozen=True)
class Unheard:
    """An event that there is not."""

    name: str = "a"


def test_an_event_that_there_is_not():
    script = Script().started()
    before = script.state
    with pytest.raises(Impossible, match=r"(?s)Unheard of a cannot be: there is no such event; .*preparing -> tr"):
        script(Unheard())
    assert script.state is before


def test_a_state_that_no_event_leads_to():
    script = Script().started()
    script.state = replace(script.state, view=None)
    assert script.state.phase == TRAINING
    with pytest.raises(Impossible, match="it trains without a view"):
        script(s.Readmit("a", "why"))
