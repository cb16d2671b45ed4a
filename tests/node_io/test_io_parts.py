"""The parts of the I/O process that need no network: arenas, the pipe's framing, the inbox, the table of a view."""

import asyncio
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farflung.node.ipc.arena import PAGE, Arena, LastAction, make_file
from farflung.node.ipc.pipe import Unpacker, pack
from farflung.node.peers.greeting import GREETING_TIMEOUT, Self, within
from farflung.node.peers.receiving.admission import NOT_MEMBER, OTHER_SESSION, OTHER_VIEW, TAKE, WAIT, Membership
from farflung.node.peers.receiving.inbox import ArenaFull, Inbox
from farflung.proto.connections import rpc
from farflung.proto.connections.patience import TRIPS
from farflung.proto.control_pb2 import Member


def arena_of(size):
    descriptor = make_file(size)
    try:
        return Arena(descriptor, size)
    finally:
        os.close(descriptor)


# ---- arenas --------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.lists(st.integers(-8, 9 * PAGE), max_size=60))
def test_blocks_never_overlap_and_keep_their_content(actions):
    """A positive number takes that many bytes; another one gives a block back."""
    arena = arena_of(64 * PAGE)
    taken = {}
    for action in actions:
        if action > 0:
            start = arena.take(action)
            if start is not None:
                assert start + action <= arena.size
                stamp = os.urandom(action)
                arena.view(start, action)[:] = stamp
                taken[start] = stamp
        elif taken:
            start = sorted(taken)[-action % len(taken)]
            assert bytes(arena.view(start, len(taken[start]))) == taken.pop(start)
            arena.give_back(start)
    for start, stamp in taken.items():
        assert bytes(arena.view(start, len(stamp))) == stamp
        arena.give_back(start)
    assert arena.in_use == 0 and arena.take(64 * PAGE) == 0


def test_freed_addresses_are_used_again_and_a_full_arena_says_so():
    arena = arena_of(4 * PAGE)
    first, second = arena.take(1), arena.take(2 * PAGE)
    assert (first, second) == (0, PAGE) and arena.take(2 * PAGE) is None
    arena.give_back(first)
    assert arena.take(1) == 0
    with pytest.raises(KeyError):
        arena.give_back(3)


def test_what_is_freed_above_the_kept_part_costs_no_memory():
    size = 64 << 20
    descriptor = make_file(size)
    arena = Arena(descriptor, size)
    start = arena.take(32 << 20)
    arena.view(start, 32 << 20)[:] = b"\1" * (32 << 20)
    arena.give_back(start)
    assert os.fstat(descriptor).st_blocks * 512 <= size // 16
    os.close(descriptor)


def test_both_sides_see_the_same_bytes():
    descriptor = make_file(4 * PAGE)
    ours, theirs = Arena(descriptor, 4 * PAGE), Arena(descriptor, 4 * PAGE)
    os.close(descriptor)
    ours.view(ours.take(5), 5)[:] = b"hello"
    assert bytes(theirs.view(0, 5)) == b"hello"


def test_the_last_action():
    arena = arena_of(PAGE)
    action = LastAction(arena.view(0, PAGE))
    action.did("schöne " * 100)
    age, doing = action.read()
    assert 0 <= age < 5 and doing.startswith("schöne schöne")


# ---- the pipe ------------------------------------------------------------------------------

values = st.one_of(st.integers(), st.binary(max_size=50), st.text(max_size=20), st.floats(allow_nan=False))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(values, max_size=4), max_size=5), st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_tuples_come_out_however_the_bytes_are_cut(messages, cuts):
    data = b"".join(pack(tuple(message)) for message in messages)
    unpacker, out, at = Unpacker(), [], 0
    while at < len(data):
        cut = cuts[at % len(cuts)]
        out.extend(unpacker.feed(data[at : at + cut]))
        at += cut
    assert out == [tuple(message) for message in messages]


def test_a_block_that_is_shortened_frees_what_is_behind_it():
    arena = arena_of(8 * PAGE)
    assert arena.take(4 * PAGE) == 0 and arena.take(PAGE) == 4 * PAGE
    arena.shorten(0, PAGE + 1)
    assert arena.in_use == 3 * PAGE
    assert arena.take(2 * PAGE) == 2 * PAGE
    for start in (0, 2 * PAGE, 4 * PAGE):
        arena.give_back(start)
    assert arena.in_use == 0 and arena.take(8 * PAGE) == 0


# ---- the inbox -----------------------------------------------------------------------------


async def test_over_the_limit_a_stream_waits_until_the_trainer_has_taken():
    written = []
    inbox = Inbox(arena_of(64 * PAGE), 10_000, lambda *message: written.append(message))
    inbox.deliver_inline("a", b"", bytes(6000))
    waiting = asyncio.create_task(inbox.block(5000))
    await asyncio.sleep(0.01)
    assert not waiting.done() and inbox.held == 6000
    inbox.taken(6000, [])
    start = await asyncio.wait_for(waiting, 5)
    inbox.deliver_block("a", b"", start, 5000)
    assert inbox.held == 5000 and written[1] == ("a", b"", (start, 5000))
    inbox.taken(5000, [])
    assert inbox.held == 0
    inbox.taken(0, [start])
    assert await inbox.block(60 * PAGE) == 0


async def test_a_message_over_the_limit_comes_in_when_nothing_else_is_held():
    inbox = Inbox(arena_of(64 * PAGE), 10, lambda *message: None)
    assert await asyncio.wait_for(inbox.block(20 * PAGE), 5) == 0
    with pytest.raises(ArenaFull):
        await inbox.block(50 * PAGE)


# ---- the view ------------------------------------------------------------------------------


def test_verdicts():
    table = Membership("a")
    members = [Member(name="a", session="a-1"), Member(name="b", session="b-1")]
    assert table.verdict("b", "b-1", 1) == WAIT
    table.enter(2, members)
    assert table.verdict("b", "b-1", 2) == TAKE
    assert table.verdict("b", "b-1", 1) == OTHER_VIEW
    assert table.verdict("b", "b-1", 3) == WAIT
    assert table.verdict("b", "b-2", 2) == OTHER_SESSION
    assert table.verdict("c", "c-1", 2) == NOT_MEMBER
    assert list(table.peers()) == ["b"]
    table.leave()
    assert table.verdict("b", "b-1", 2) == OTHER_VIEW and table.peers() == {}
    assert table.verdict("b", "b-1", 3) == WAIT
    assert table.verdict("b", "b-1", 0) == OTHER_VIEW


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_as_the_work_ends_is_not_lost(turns):
    """A link that is closed in the moment in which it has greeted has to end."""
    greeted = asyncio.Event()

    async def link():
        await within(60, greeted.wait())
        await asyncio.sleep(3600)

    task = asyncio.create_task(link())
    for _ in range(3):
        await asyncio.sleep(0)
    greeted.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=10)
    assert task.cancelled()


async def test_work_that_takes_too_long_is_ended():
    ended = []

    async def work():
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(True)

    with pytest.raises(asyncio.TimeoutError):
        await within(0.01, work())
    assert ended


def test_a_peer_is_as_far_as_it_was_measured_and_at_least_as_this_end_is():
    me = Self("run", "a", "s", rpc.Credentials())
    assert me.patience("b") == GREETING_TIMEOUT
    me.round_trips.update({"": 0.5, "b": 2.0, "c": 0.1})
    assert [me.round_trip(one) for one in "bcd"] == [2.0, 0.5, 0.5]
    assert me.patience("b") == GREETING_TIMEOUT + TRIPS * 2.0
