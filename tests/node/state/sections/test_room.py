"""Vectors of a section in memory that two processes map."""

import os

import torch

from farflung.node.state.sections.moments import Kept
from farflung.node.state.sections.room import Room
from farflung.node.state.sections.section import Layout, Section

LAYOUT = Layout.of("stage-0.1", {"a": (3, 1000), "b": (7,)})
KEPT, CPU = Kept(("m", "v"), torch.bfloat16), torch.device("cpu")


def test_two_sections_in_one_room_are_one():
    """As in two processes: both map the same file."""
    room = Section.room_of(LAYOUT, KEPT)
    here = Section(LAYOUT, False, KEPT, CPU, True, room)
    there = Section(LAYOUT, False, KEPT, CPU, True, Room(room.size, os.dup(room.file)))
    vectors = [("x", here.x, there.x), ("g", here.g, there.g), ("grad", here.grad, there.grad)]
    vectors += [("outer", here.outer, there.outer), *((name, here.moments[name], there.moments[name]) for name in "mv")]
    for number, (name, one, other) in enumerate(vectors):
        assert not one.any() and one.dtype == (torch.bfloat16 if name in "mv" else torch.float32)
        one.fill_(number + 1)
        room.let_go()
        assert (other == number + 1).all(), name
    for number, (name, one, _) in enumerate(vectors):
        assert (one == number + 1).all(), name


def test_a_feedback_comes_and_goes_for_both():
    room = Section.room_of(LAYOUT, KEPT)
    here, there = (Section(LAYOUT, True, KEPT, CPU, False, one) for one in (room, Room(room.size, os.dup(room.file))))
    assert here.x is here.g and here.feedback is there.feedback is None
    before = here.nbytes
    here.feedback = torch.full_like(here.g, 2.0)
    assert there.feedback is not None and (there.feedback == 2.0).all() and here.nbytes == before + here.g.nbytes
    there.feedback.add_(1.0)
    assert (here.feedback == 3.0).all()
    there.feedback = None
    assert here.feedback is None
    here.feedback = torch.zeros_like(here.g)
    assert not there.feedback.any()


def test_an_empty_section_has_room():
    layout = Layout.of("stage-0.1", {})
    assert Section(layout, False, KEPT, CPU, True, Section.room_of(layout, KEPT)).nbytes == 0
