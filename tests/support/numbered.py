"""Messages that a test tells apart by a number, where what they say is another test's."""

from header_bodies import body_of

from farflung.proto.data_pb2 import Header, Kind
from farflung.proto.messages.bodies import FIELDS

NUMBERS = ("offset", "step", "round")


def numbered(kind: Kind.ValueType = Kind.STATE, number: int = 0, view: int = 0) -> Header:
    """A header of a kind, with a number in one of its body's fields."""
    header = Header(kind=kind, view=view)
    body = getattr(header, FIELDS[kind] or "")
    body.SetInParent()
    setattr(body, _field(header), number)
    return header


def number_of(header: Header) -> int:
    """The number that ``numbered`` has given it."""
    return int(getattr(body_of(header), _field(header)))


def _field(header: Header) -> str:
    return next(name for name in NUMBERS if name in body_of(header).DESCRIPTOR.fields_by_name)
