"""A process that does not keep a section leaves its pages, and nothing is lost."""

import gc
import sys
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from farflung.job.tables.robust import parse_robust
from farflung.node.rounds.arithmetic.exchange import Exchange
from farflung.node.rounds.protocol.messages import Decide, Part, RoundPlan
from farflung.node.state.files.tensor_writer import write
from farflung.node.state.sections import room as rooms
from farflung.node.state.sections.moments import Kept
from farflung.node.state.sections.section import Layout, Section
from farflung.node.state.transfers.parameter_bytes import copied, write_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

LENGTH = 1 << 20
CPU = torch.device("cpu")


def resident(room):
    """Bytes of a room that this process has in memory."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(f"{room._start:x}-"))
    return next(int(line.split()[1]) * 1024 for line in lines[begin:] if line.startswith("Rss:"))


def live():
    """The rooms of this process."""
    return [room for one in rooms._rooms if (room := one()) is not None]


@pytest.fixture
def section():
    layout, kept = Layout.of("stage-0", {"a": (LENGTH,), "b": (LENGTH // 2, 2)}), Kept(("m",))
    made = Section(layout, False, kept, CPU, room=Section.room_of(layout, kept))
    for vector in (made.x, made.g, made.moments["m"]):
        vector.copy_(torch.randn(2 * LENGTH))
    return made


def test_what_is_done_outside_of_steps_leaves_the_pages(section):
    values = {"a": section.g[:LENGTH], "b": section.g[LENGTH:]}
    wanted = {name: one.clone() for name, one in values.items()}
    fingerprint, room = section.fingerprint(True), section.room
    vectors = list(wanted.values())

    def read():
        assert section.fingerprint(True) == fingerprint

    def save():
        assert torch.equal(load(bytes(write(values, lambda size: memoryview(bytearray(size)))))["a"], wanted["a"])

    def serve():
        assert copied(list(values.values()), 100, 5 << 20) == copied(vectors, 100, 5 << 20)

    def take_up():
        write_bytes([section.x], 0, torch.cat(vectors).view(torch.uint8).numpy())
        assert torch.equal(section.x[LENGTH:], wanted["b"])
        section.leave()

    for action in (read, save, serve, take_up, section.begins, lambda: section.moved, section.adopt):
        room.is_kept = True
        assert section.x.sum() and section.g.sum() and section.moments["m"].sum()
        held = resident(room)
        assert held >= 3 * 4 * 2 * LENGTH
        action()
        assert resident(room) == held, "whoever keeps it needs it in the next step"
        room.is_kept = False
        room.let_go()
        action()
        assert resident(room) <= 64 << 10


def test_a_vector_of_nobody():
    vector = rooms.away(LENGTH)
    (room,) = (one for one in live() if one.size == 4 * LENGTH)
    vector.fill_(3.0)
    held = resident(room)
    assert held == 4 * LENGTH
    rooms.leave(vector[: LENGTH // 2])
    assert resident(room) == held // 2
    rooms.leave(vector)
    assert resident(room) == 0 and (vector == 3.0).all()
    there = weakref.ref(room)
    del room, vector
    gc.collect()
    assert there() is None


@pytest.mark.parametrize("robust", ["none", "centered"])
def test_what_the_first_process_has_to_compute_itself_leaves_the_pages(section, robust):
    """A round of a section that another rank keeps, all of it here, with server errors."""
    before = set(live()) - {section.room}
    layout, parts = section.layout, (Part(0, "a", 0, 2 * LENGTH),)
    plan = RoundPlan("stage-0", ("a", "b"), (1.0, 1.0), parts, "publishers", False)
    near = Section(layout, False, Kept(()), CPU)
    ours, theirs = (
        Exchange(one, plan, name, "int8", seed=7, robust=parse_robust(robust))
        for one, name in ((section, "a"), (near, "b"))
    )
    section.leave()

    def assert_left():
        found = set(live()) - before
        assert section.room in found and sum(map(resident, found)) <= 64 << 10

    for number in (1, 2):
        sent = [(index, one.contributions(number)[0]) for index, one in enumerate((ours, theirs))]
        assert_left()
        result, refused = ours.decide(number, Decide(0, tuple(sent)))
        assert not refused and result.error
        assert_left()
        found = {0: result}
        ours.check(number, found, {})
        ours.apply_delta(ours.updates(number, found, {}), (result,))
        theirs.apply_delta(theirs.updates(number, found, {}), (result,))
        assert ours.errors
        assert_left()
    assert ours.unsent(rooms.away)["rest."].any()
    ours.fold_errors()
    gc.collect()
    assert_left()
