"""Frames: what goes in comes out; anything else is a FrameError, never something wrong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.proto.messages import frame as frames
from farflung.proto.messages.frame import Frame, FrameError, Kind

transfers = st.integers(0, 2**64 - 1)
priorities = st.integers(0, frames.PRIORITIES - 1)
blobs = st.binary(max_size=300)


@st.composite
def any_frame(draw):
    kind = draw(st.sampled_from(Kind))
    if kind is Kind.ACK:
        return Frame(kind, draw(transfers), draw(priorities))
    head, body = draw(blobs), draw(blobs)
    if kind in (Kind.OPEN, Kind.CHUNK, Kind.END):
        offset = draw(st.integers(0, 2**30))
        total = offset + len(body) + draw(st.integers(0, 2**30))
        number = st.integers(0, 2**64 - 1)
        return Frame(kind, draw(transfers), draw(priorities), head, body, draw(number), offset, total, draw(number))
    return Frame(kind, draw(transfers), draw(priorities), head, body)


def joined(*several):
    return b"".join(part for one in several for part in frames.encode(one))


@given(st.lists(any_frame(), max_size=5))
def test_round_trip_of_several_frames_in_one_message(several):
    assert frames.decode(joined(*several)) == several


@given(any_frame(), st.data())
def test_a_truncated_frame_is_an_error(one, data):
    message = joined(one)
    cut = data.draw(st.integers(1, len(message) - 1))
    with pytest.raises(FrameError):
        frames.decode(message[:cut])


@settings(max_examples=300)
@given(any_frame(), st.data())
def test_a_flipped_bit_is_an_error(one, data):
    message = bytearray(joined(one))
    bit = data.draw(st.integers(0, 8 * len(message) - 1))
    message[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        frames.decode(message)


@given(st.binary(max_size=400))
def test_noise_is_an_error_and_nothing_else(noise):
    try:
        decoded = frames.decode(noise)
    except FrameError:
        return
    assert joined(*decoded) == noise


@pytest.mark.parametrize("version", [0, 2, 255])
def test_an_unknown_version_says_both_versions(version):
    message = bytearray(joined(Frame(Kind.CHUNK, 1, body=b"x", total=1)))
    message[4] = version
    with pytest.raises(FrameError, match=f"version {version}, this farflung speaks 1"):
        frames.decode(message)


def test_an_unknown_short_version():
    with pytest.raises(FrameError, match="version 2"):
        frames.decode(b"\xf2" + joined(Frame(Kind.ACK, 3))[1:])


def test_absurd_sizes_are_refused_before_anything_is_allocated():
    with pytest.raises(FrameError, match="absurd sizes"):
        frames.decode(raw_long(total=2**63, body=0))
    with pytest.raises(FrameError, match="absurd sizes"):
        frames.decode(raw_long(total=10, body=2**31))
    with pytest.raises(FrameError, match="says"):
        frames.decode(raw_long(total=2**40, body=2**31))
    with pytest.raises(ValueError, match="too large"):
        frames.encode(Frame(Kind.OPEN, total=2**50))


def raw_long(total, body):
    return frames._LONG.pack(frames.LONG_MAGIC, 1, Kind.CHUNK, 0, 0, 1, 0, 0, body, 0, total, 0, 0, 0)


def test_small_messages_stay_small():
    assert len(joined(Frame(Kind.ACK, 200, 1))) <= 8
    assert len(joined(Frame(Kind.WHOLE, 200, 1, b"h" * 40, b""))) <= 40 + 10
    assert frames.size(frames.encode(Frame(Kind.CHUNK, 1, body=b"x" * 100, total=100))) == 164


def test_the_body_is_a_view_of_the_message():
    message = joined(Frame(Kind.CHUNK, 1, body=b"payload!", total=8))
    body = frames.decode(message)[0].body
    assert isinstance(body, memoryview)
    assert body.obj is message
