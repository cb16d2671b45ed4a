"""The queue of one peer and the shortened headers: priorities, acknowledgement, resend, drop."""

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered import numbered

from farflung.node.peers.header_compression import Expander, Shortener
from farflung.node.peers.sending.send_queue import Carries, Outgoing, SendQueue
from farflung.proto import data_pb2
from farflung.proto.connections.rpc import CHUNK, MESSAGE_LIMIT
from farflung.proto.messages import frame as frames
from farflung.proto.messages.frame import Kind


def outgoing(transfer, priority, size, released=None, view=1, kind=data_pb2.CONTRIBUTION):
    payload = memoryview(np.random.default_rng(transfer).bytes(size))
    release = (lambda: None) if released is None else (lambda: released.append(transfer))
    return Outgoing(transfer, priority, numbered(kind, view=view), payload, release)


def written(queue, shortener=None):
    """All frames that the queue has, write by write."""
    shortener = shortener or Shortener()
    writes = []
    while parts := queue.next_write(shortener):
        message = b"".join(buffer for _, buffers in parts for buffer in buffers)
        assert len(message) < MESSAGE_LIMIT
        writes.append(frames.decode(message))
    return writes


def reassembled(all_frames):
    """{transfer: payload} as a receiver would put them together, every digest checked."""
    bodies, done = {}, {}
    for frame in all_frames:
        if frame.kind is Kind.WHOLE:
            done[frame.transfer] = bytes(frame.body)
        elif frame.kind is Kind.OPEN:
            bodies[frame.transfer] = bytearray()
        elif frame.kind is Kind.CHUNK:
            assert frame.offset == len(bodies[frame.transfer])
            bodies[frame.transfer] += frame.body
        else:
            assert frame.kind is Kind.END
            body = bytes(bodies.pop(frame.transfer))
            assert (frame.total, frame.digest) == (len(body), xxhash.xxh3_64_intdigest(body))
            done[frame.transfer] = body
    assert not bodies
    return done


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 1000, 300_000, CHUNK, 3 * CHUNK + 7])), max_size=6))
def test_everything_that_is_put_in_comes_out_whole(messages):
    queue = SendQueue()
    expected = {}
    for transfer, (priority, size) in enumerate(messages, 1):
        message = outgoing(transfer, priority, size)
        expected[transfer] = bytes(message.payload)
        queue.put(message)
    assert reassembled([frame for write in written(queue) for frame in write]) == expected
    assert queue.unfinished == len(messages)


def test_an_urgent_message_overtakes_at_the_next_chunk():
    queue, shortener = SendQueue(), Shortener()
    queue.put(outgoing(1, 2, 10 * CHUNK))
    queue.next_write(shortener)
    queue.put(outgoing(2, 0, 100))
    first = queue.next_write(shortener)[0][1]
    assert frames.decode(b"".join(first))[0].transfer == 2


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 1000, 70_000, 3 * CHUNK + 7])), max_size=6),
    st.lists(st.integers(0, 3), max_size=30),
)
def test_with_bulk_streams_the_first_has_all_heads_in_order_and_no_bulk(messages, turns):
    queue, expected = SendQueue(), {}
    for transfer, (priority, size) in enumerate(messages, 1):
        message = outgoing(transfer, priority, size)
        expected[transfer] = bytes(message.payload)
        queue.put(message)
    lanes, shortener = [[] for _ in range(4)], Shortener()
    for turn in (*turns, *list(range(4)) * 40):
        carries = Carries.CHUNKS if turn else Carries.HEADS
        parts = queue.next_write(shortener, CHUNK, carries)
        assert parts or not queue.waiting(carries)
        lanes[turn] += [frame for _, buffers in parts for frame in frames.decode(b"".join(buffers))]
    heads, chunks = lanes[0], [frame for lane in lanes[1:] for frame in lane]
    assert {frame.kind for frame in heads} <= {Kind.OPEN, Kind.WHOLE}
    for priority in range(3):
        begun = [frame.transfer for frame in heads if frame.priority == priority]
        assert begun == [number for number, (mine, _) in enumerate(messages, 1) if mine == priority]
    in_order = sorted(chunks, key=lambda frame: (frame.transfer, frame.kind is Kind.END, frame.offset))
    assert reassembled([*heads, *in_order]) == expected and not queue.waiting()


def test_a_begun_message_that_is_dropped_is_cancelled():
    queue, shortener = SendQueue(), Shortener()
    for transfer in (1, 2):
        queue.put(outgoing(transfer, 1, 3 * CHUNK))
    queue.next_write(shortener, CHUNK, Carries.CHUNKS)
    assert queue.drop(lambda header: True) == 2
    (_, opened), (_, cancelled) = queue.next_write(shortener, CHUNK, Carries.HEADS)
    assert [frames.decode(b"".join(one))[0].kind for one in (opened, cancelled)] == [Kind.OPEN, Kind.CANCEL]
    assert frames.decode(b"".join(cancelled))[0].transfer == 1 and not queue.waiting()


def test_small_messages_share_a_write():
    queue = SendQueue()
    for transfer in range(1, 51):
        queue.put(outgoing(transfer, 1, 100))
    assert [len(write) for write in written(queue)] == [50]


def test_acknowledged_is_released_once_and_the_rest_goes_again_after_a_break():
    released = []
    queue = SendQueue()
    for transfer in (1, 2, 3):
        queue.put(outgoing(transfer, 1, 2 * CHUNK, released))
    queue.next_write(Shortener())
    written(queue)
    assert [message.transfer for message in queue.acknowledge(1, 1)] == [1]
    queue.rewind()
    again = reassembled([frame for write in written(queue) for frame in write])
    assert sorted(again) == [2, 3]
    queue.acknowledge(1, 3)
    assert released == [1, 2, 3] and queue.unfinished == 0


def test_what_was_not_handed_out_whole_cannot_have_arrived():
    """Its memory would be given away while it is being sent."""
    queue, released = SendQueue(), []
    for transfer, size in ((1, 10), (2, 5 * CHUNK), (3, 10)):
        queue.put(outgoing(transfer, 1, size, released))
    queue.next_write(Shortener())
    assert [message.transfer for message in queue.acknowledge(1, 1 << 40)] == [1] == released
    written(queue)
    assert [message.transfer for message in queue.acknowledge(1, 1 << 40)] == [2, 3]


def test_an_acknowledgement_of_one_that_waits_again():
    released = []
    queue = SendQueue()
    queue.put(outgoing(1, 1, 5, released))
    written(queue)
    queue.rewind()
    queue.acknowledge(1, 1)
    assert released == [1] and not queue.waiting()


def test_drop_releases_sent_and_waiting():
    released = []
    queue = SendQueue()
    queue.put(outgoing(1, 1, 5, released, view=1))
    written(queue)
    queue.put(outgoing(2, 0, 5, released, view=1))
    queue.put(outgoing(3, 0, 5, released, view=2))
    assert queue.drop(lambda header: header.view == 1) == 2
    assert sorted(released) == [1, 2] and queue.unfinished == 1


@given(st.lists(st.sampled_from(["", "x", "stage-0", "stage-17", "tied"]), max_size=20))
def test_shortened_headers_come_back_whole(sections):
    shortener, expander = Shortener(), Expander("run", "s1")
    for section in sections:
        for header in (held(section), numbered(data_pb2.ACTIVATION, 7), data_pb2.Header(kind=data_pb2.PROBE)):
            header.run, header.session, header.view = "run", "s1", 3
            assert expander.expand(shortener.shorten(header)) == header


def held(section):
    return data_pb2.Header(kind=data_pb2.RESULT_HELD, held=data_pb2.Held(section=section, round=9))


def test_a_repeated_header_is_short():
    shortener = Shortener()
    header = data_pb2.Header(
        run="0123456789abcdef",
        session="s" * 16,
        view=3,
        kind=data_pb2.CONTRIBUTION,
        contribution=data_pb2.Contribution(section="stage-0", round=200, part=1, chain=2**63, sizes=[1000]),
    )
    shortener.shorten(header)
    assert len(shortener.shorten(header)) <= 30


@pytest.mark.parametrize("section", ["#0", "#", "#zz"])
def test_a_number_that_was_never_given_out_is_refused(section):
    with pytest.raises(ValueError, match="stands for nothing"):
        Expander("r", "s").expand(held(section).SerializeToString())
    with pytest.raises(ValueError, match="begins with"):
        Shortener().shorten(held(section))


def test_bytes_that_are_no_header_are_refused():
    with pytest.raises(ValueError, match="not a Header"):
        Expander("r", "s").expand(b"\xff\xff\xff")
