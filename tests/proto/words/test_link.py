"""Links: what is printed is read back, and a damaged one says what a link looks like."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.proto.errors import FarflungError
from farflung.proto.words.link import NO_FINGERPRINT, Link, parse_link, split_address

hexes = lambda size: st.binary(min_size=size, max_size=size).map(bytes.hex)  # noqa: E731


@given(
    host=st.sampled_from(["localhost", "10.0.0.1", "::1", "train.example.org"]),
    port=st.integers(1, 65535),
    run=hexes(8),
    number=hexes(4),
    secret=hexes(16),
    fingerprint=st.binary(min_size=32, max_size=32),
)
def test_round_trip(host, port, run, number, secret, fingerprint):
    link = Link(host, port, run, f"{number}.{secret}", fingerprint)
    text = str(link)
    assert parse_link(text) == link
    assert parse_link(f" '{text}'\n") == link
    assert "+" not in text and "=" not in text and text.count("/") == 3


def test_insecure():
    link = Link("h", 1, "00" * 8, "00" * 4 + "." + "11" * 16)
    assert parse_link(str(link)).insecure and link.fingerprint == NO_FINGERPRINT


GOOD = str(Link("h", 7070, "ab" * 8, "cd" * 4 + "." + "ef" * 16, b"\x01" * 32))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://h:1/#abc", "begin with farflung://"),
        ("", "begin with farflung://"),
        ("farflung://h/#abc", "HOST:PORT"),
        ("farflung://h:99999/#abc", "not a number between"),
        ("farflung://h:1/", "ticket after /# is missing"),
        (GOOD[:-4], "cut short"),
        (GOOD[:-4] + "!!!!", "characters that no ticket has"),
        (GOOD.replace("#A", "#B", 1), "version"),
    ],
)
def test_damaged(text, why):
    with pytest.raises(FarflungError) as caught:
        parse_link(text)
    assert why in caught.value.message
    assert "farflung://HOST:PORT/#TICKET" in caught.value.hint
    assert GOOD.split("#")[1] not in caught.value.message


def test_split_address():
    assert split_address("0.0.0.0:7070") == ("0.0.0.0", 7070)
    assert split_address("[::1]:0") == ("::1", 0)
    for wrong in ("7070", ":7070", "h:", "h:70707"):
        with pytest.raises(FarflungError):
            split_address(wrong)
