"""Uploads of checkpoint files: one that broke goes on, an older stream is shut out, steps are left out by all."""

import hashlib

import pytest

from farflung.coordinator.checkpoints.checkpoints import Checkpoints
from farflung.coordinator.checkpoints.refused import ShardRefused
from farflung.coordinator.checkpoints.uploads import GivenUp, Uploads, given_up
from farflung.proto.control_pb2 import Shard

A, B = ("a", "a1"), ("b", "b1")
DATA = bytes(range(256)) * 64
PIECE = 1 << 10


def pieces(step, file, begin=0, view=2, files=1, data=DATA):
    """The shards of a stream from byte ``begin`` on."""
    for at in range(begin, len(data), PIECE):
        part = data[at : at + PIECE]
        last = at + PIECE >= len(data)
        yield Shard(
            step=step,
            file=file,
            offset=at,
            data=part,
            last=last,
            digest=hashlib.sha256(data).digest(),
            files=files,
            meta=f'{{"view": {view}}}',
            view=view,
        )


def send(uploads, owner, shards, count=None):
    """A stream of at most ``count`` shards; what it completes."""
    shards, complete = list(shards)[:count], None
    incoming = uploads.begin(owner, shards[0])
    if incoming is None:
        return None
    try:
        for one in shards:
            complete = incoming.write(one)
    finally:
        incoming.close()
    return complete


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path, 2, {})


def test_a_link_that_breaks_again_and_again_sends_no_byte_twice(checkpoints):
    uploads, streams = Uploads(checkpoints), 0
    while not checkpoints.steps():
        begin = uploads.held(A, 5, "stage-0", 2)
        assert begin == 3 * PIECE * streams
        send(uploads, A, pieces(5, "stage-0", begin), 3)
        streams += 1
    assert streams == 6 and checkpoints.arrived == len(DATA)
    assert (checkpoints.path(5) / "stage-0").read_bytes() == DATA
    assert not [path for path in checkpoints.incoming.iterdir() if path.is_file()]


def test_another_session_or_view_begins_anew(checkpoints):
    uploads = Uploads(checkpoints)
    send(uploads, A, pieces(5, "stage-0"), 3)
    assert uploads.held(("a", "a2"), 5, "stage-0", 2) == uploads.held(A, 5, "stage-0", 3) == 0
    with pytest.raises(ShardRefused, match="send it whole"):
        send(uploads, ("a", "a2"), pieces(5, "stage-0", 3 * PIECE))
    assert send(uploads, ("a", "a2"), pieces(5, "stage-0")).step == 5


def test_an_older_stream_that_still_has_something_to_say_is_shut_out(checkpoints):
    uploads = Uploads(checkpoints)
    shards = list(pieces(5, "stage-0"))
    old = uploads.begin(A, shards[0])
    old.write(shards[0])
    assert uploads.held(A, 5, "stage-0", 2) == PIECE
    with pytest.raises(ShardRefused, match="another stream goes on"):
        old.write(shards[1])
    old.close()
    assert send(uploads, A, shards[1:]).step == 5


def test_an_older_step_does_not_take_a_later_ones_place(checkpoints):
    uploads = Uploads(checkpoints)
    send(uploads, A, pieces(8, "stage-0"), 3)
    with pytest.raises(GivenUp, match="a goes on with step 8"):
        send(uploads, A, pieces(4, "stage-0"))
    send(uploads, A, pieces(8, "stage-0", uploads.held(A, 8, "stage-0", 2)))
    assert checkpoints.steps() == [8]


def test_what_is_damaged_is_not_gone_on_with(checkpoints):
    uploads = Uploads(checkpoints)
    shards = list(pieces(5, "stage-0"))
    shards[4].data = bytes(PIECE)
    with pytest.raises(ShardRefused, match="another digest"):
        send(uploads, A, shards)
    assert uploads.held(A, 5, "stage-0", 2) == 0
    assert send(uploads, A, pieces(5, "stage-0")).step == 5


def test_a_step_that_one_stage_leaves_out_is_left_out_by_all(checkpoints):
    """Stage 0 sends step 5 while 6, 7 and 8 are made, and goes on with 8; stage 1 is at 6, and need not finish it."""
    uploads = Uploads(checkpoints)
    assert send(uploads, A, pieces(5, "stage-0", files=2)) is None
    assert send(uploads, B, pieces(5, "stage-1", files=2)).step == 5
    six = list(pieces(6, "stage-1", files=2))
    incoming = uploads.begin(B, six[0])
    incoming.write(six[0])
    send(uploads, A, pieces(8, "stage-0", files=2), 2)
    with pytest.raises(GivenUp, match="step 6 is left out: stage-0 goes on with step 8"):
        incoming.write(six[1])
    incoming.close()
    with pytest.raises(GivenUp):
        uploads.held(B, 6, "stage-1", 2)
    assert send(uploads, B, pieces(8, "stage-1", files=2)) is None
    assert send(uploads, A, pieces(8, "stage-0", 2 * PIECE, files=2)).step == 8


def test_what_is_given_up_depends_on_the_view_and_on_what_is_whole():
    newest = {"stage-0": (2, 8), "stage-1": (2, 6)}
    assert given_up((2, 6), newest, lambda file: False)
    assert not given_up((2, 6), newest, lambda file: file == "stage-0"), "stage 0 has sent its part of 6"
    assert not given_up((2, 8), newest, lambda file: False)
    assert not given_up((1, 6), newest, lambda file: False), "of another view, whose keepers are others"
    assert not given_up((0, 6), {"stage-0": (0, 8)}, lambda file: False), "a sender that does not say its view"


@pytest.mark.parametrize("slow", [(7, 3), (5, 5, 4), (9, 1, 2, 6)])
def test_checkpoints_become_whole_on_links_slower_than_they_are_made(tmp_path, slow):
    """Stages whose files take so many times as long to send as a checkpoint to be made: newest waits, the rest goes."""
    checkpoints = Checkpoints(tmp_path, 2, {})
    uploads = Uploads(checkpoints)
    small = DATA[: 8 * PIECE]
    sending = [None] * len(slow)
    waiting = [None] * len(slow)
    for tick in range(1, 8 * 12 * max(slow)):
        if tick % 8 == 0:
            waiting = [tick // 8] * len(slow)
        for stage, times in enumerate(slow):
            if tick % times:
                continue
            if sending[stage] is None and waiting[stage]:
                owner = (f"n{stage}", "1")
                shards = pieces(waiting[stage], f"stage-{stage}", files=len(slow), data=small)
                first = next(shards)
                incoming = uploads.begin(owner, first)
                sending[stage] = None if incoming is None else (incoming, iter([first, *shards]))
                waiting[stage] = None
            if sending[stage] is not None:
                incoming, shards = sending[stage]
                try:
                    shard = next(shards)
                    incoming.write(shard)
                except GivenUp:
                    shard = None
                if shard is None or shard.last:
                    incoming.close()
                    sending[stage] = None
    for one in sending:
        if one is not None:
            one[0].close()
    newest = 12 * max(slow) - 1
    assert checkpoints.steps(), "none ever became whole"
    assert newest - checkpoints.steps()[-1] <= 3 * max(slow), f"the newest of {newest} is {checkpoints.steps()}"
