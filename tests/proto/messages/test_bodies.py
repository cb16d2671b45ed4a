"""Each kind of message has one body in its header, and a header that has another, none or two is refused."""

import pytest

from farflung.proto.data_pb2 import Activation, Header, Held, Kind, Ready, State, TextToken
from farflung.proto.messages import bodies


def whole(kind):
    header = Header(kind=kind, view=3)
    if bodies.FIELDS[kind] is not None:
        getattr(header, bodies.FIELDS[kind]).SetInParent()
    return header


def test_every_kind_has_a_body_of_its_own_or_is_a_probe_and_every_body_a_kind():
    known = {one.number for one in Kind.DESCRIPTOR.values} - {Kind.UNKNOWN}
    assert set(bodies.FIELDS) == known
    used = {field for field in bodies.FIELDS.values() if field}
    assert used == {field.name for field in Header.DESCRIPTOR.oneofs_by_name["body"].fields}


@pytest.mark.parametrize("kind", bodies.FIELDS)
def test_a_header_is_read_as_it_was_written(kind):
    header = whole(kind)
    assert bodies.read(header.SerializeToString()) == header


@pytest.mark.parametrize(
    ("header", "wrong"),
    [
        (Header(kind=Kind.READY, state=State(name="w")), "kind READY with the body state"),
        (Header(kind=Kind.EVALUATION, ready=Ready(step=1)), "kind EVALUATION with the body ready"),
        (Header(kind=Kind.PROBE, ready=Ready(step=1)), "kind PROBE with the body ready"),
        (Header(kind=Kind.CONTRIBUTION), "kind CONTRIBUTION with no body"),
        (Header(activation=Activation(step=1)), "kind 0, which this version does not know"),
        (Header(kind=99, activation=Activation(step=1)), "kind 99, which this version does not know"),
    ],
)
def test_a_body_that_is_not_the_kinds_is_refused(header, wrong):
    with pytest.raises(ValueError, match=wrong):
        bodies.read(header.SerializeToString())


@pytest.mark.parametrize("second", [Header(ready=Ready(step=2)), Header(held=Held(part=1)), Header(kind=Kind.READY)])
def test_two_bodies_are_refused_even_where_the_last_one_fits(second):
    first = Header(kind=Kind.READY, ready=Ready(step=1)).SerializeToString()
    with pytest.raises(ValueError, match="says something twice"):
        bodies.read(first + second.SerializeToString())


def test_bytes_that_are_none_are_refused():
    with pytest.raises(ValueError, match="3 bytes are not a Header"):
        bodies.read(b"\xff\xff\xff")


def test_the_body_of_a_header_is_found_by_what_it_is_of():
    held = Header(kind=Kind.RESULT_HELD, held=Held(section="tied"))
    token = Header(kind=Kind.TEXT_TOKEN, text_token=TextToken(token=4))
    assert bodies.of_round(held) == bodies.sectioned(held) == held.held
    assert bodies.of_text(held) is bodies.of_round(token) is bodies.sectioned(token) is None
    assert bodies.of_text(token) == token.text_token
    mixing = whole(Kind.WEIGHTS)
    assert bodies.sectioned(mixing) == mixing.mixing and bodies.of_round(mixing) is None
