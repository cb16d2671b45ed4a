"""The body of a header of any kind, for tests that look at what all of them have."""

from typing import Any

from farflung.proto.data_pb2 import Header
from farflung.proto.messages.bodies import kind_name


def body_of(header: Header) -> Any:
    """ValueError: it has none."""
    field = header.WhichOneof("body")
    if field is None:
        raise ValueError(f"a {kind_name(header.kind)} has no body")
    return getattr(header, field)
