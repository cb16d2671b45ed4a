"""Edits make the new bytes of the old ones, whatever both are; what is no edit is refused."""

import contextlib
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.proto.messages import delta

SOME = st.binary(max_size=400)


@given(SOME, SOME)
def test_any_bytes_of_any_others(old, new):
    assert delta.apply(old, delta.edits(old, new)) == new


@given(st.lists(st.binary(min_size=20, max_size=60), max_size=12), st.randoms())
def test_the_same_pieces_in_another_order(pieces, chance):
    old = b"".join(pieces)
    chance.shuffle(pieces)
    new = b"".join(pieces[: len(pieces) - 1])
    assert delta.apply(old, delta.edits(old, new)) == new


def test_a_line_less_costs_little():
    sessions = [f"{random.Random(number).getrandbits(64):x}" for number in range(1000)]
    lines = [f"node-{number} session-{session} 10.0.0.1:{number}" for number, session in enumerate(sessions)]
    old = "\n".join(lines).encode()
    new = "\n".join(lines[:500] + lines[501:] + ["node-1000 session-new"]).encode()
    made = delta.edits(old, new)
    assert delta.apply(old, made) == new and len(made) < 100 < len(zlib.compress(new)) / 100
    assert len(delta.edits(b"", new)) < len(new) / 2  # of nothing it is the whole, packed


def test_nothing_in_common_ends_soon():
    chance = random.Random(1)
    old, new = chance.randbytes(200_000), chance.randbytes(200_000)
    assert delta.apply(old, delta.edits(old, new)) == new


@given(SOME, SOME, SOME)
def test_what_is_no_edit_is_refused(old, made, tail):
    good = delta.edits(old, old + tail)
    for wrong in (made, good[:-1], zlib.compress(made), good + b"x"):
        with contextlib.suppress(ValueError):  # and nothing else
            delta.apply(old, wrong)


def test_edits_of_other_bytes_are_refused():
    old = bytes(range(256)) * 4
    with pytest.raises(ValueError, match="other bytes"):
        delta.apply(old[:100], delta.edits(old, old))
    with pytest.raises(ValueError, match="no edits"):
        delta.apply(old, b"not zlib")


def test_a_small_bomb_is_not_unpacked():
    with pytest.raises(ValueError, match="too long"):
        delta.apply(b"", zlib.compress(bytes(delta.LARGEST + 1)))
    copies = bytearray()
    for _ in range(100):
        delta._put(copies, b"", 0, 1 << 20)
    with pytest.raises(ValueError, match="too much"):
        delta.apply(bytes(1 << 20), zlib.compress(bytes(copies)))
