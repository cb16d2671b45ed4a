"""The body of a message's header: which body each kind has, and how to read it.

``header.kind`` is the kind of message, and the oneof has its body. Both ends of a connection check that the two fit
each other; after that, code may read the body of a header's kind without another check.
"""

from __future__ import annotations

from ..data_pb2 import (
    Audit,
    Contribution,
    ContributionWanted,
    Equivocation,
    Header,
    Held,
    Kind,
    MaskKey,
    Mixing,
    Receipts,
    Result,
    ResultWanted,
    Text,
    TextBegin,
    TextEnd,
    TextToken,
)

RoundBody = Contribution | ContributionWanted | Result | ResultWanted | Held | Audit | MaskKey | Equivocation | Receipts
"""Bodies of the messages that the members of one section send each other in rounds."""
TextBody = TextBegin | Text | TextToken | TextEnd
FIELDS: dict[int, str | None] = {
    Kind.ACTIVATION: "activation",
    Kind.ACTIVATION_GRADIENT: "activation",
    Kind.EVALUATION: "activation",
    Kind.NACK: "missing_samples",
    Kind.CONTRIBUTION: "contribution",
    Kind.RESULT: "result",
    Kind.RESULT_HELD: "held",
    Kind.RESULT_REQUEST: "result_wanted",
    Kind.CONTRIBUTION_REQUEST: "contribution_wanted",
    Kind.READY: "ready",
    Kind.COMMIT: "commit",
    Kind.STATE_REQUEST: "state_request",
    Kind.STATE: "state",
    Kind.STATE_COMING: "state_coming",
    Kind.PROBE: None,
    Kind.DIFFERENCE: "mixing",
    Kind.WEIGHTS_REQUEST: "mixing",
    Kind.WEIGHTS: "mixing",
    Kind.AUDIT: "audit",
    Kind.ROUND_REQUEST: "round_request",
    Kind.ROUND_END: "round_end",
    Kind.TEXT_BEGIN: "text_begin",
    Kind.TEXT: "text",
    Kind.TEXT_TOKEN: "text_token",
    Kind.TEXT_END: "text_end",
    Kind.KEY: "mask_key",
    Kind.EQUIVOCATION: "equivocation",
    Kind.RECEIPTS: "receipts",
}
"""Kind -> the field of the oneof that its header has."""

Sectioned = RoundBody | Mixing


def _with(*words: str) -> frozenset[int]:
    """The kinds whose body has fields of these names."""
    known = Header.DESCRIPTOR.fields_by_name
    bodies = {kind: known[field].message_type for kind, field in FIELDS.items() if field}
    return frozenset(kind for kind, body in bodies.items() if body and set(words) <= set(body.fields_by_name))


_SECTIONED = _with("section")
_OF_ROUNDS = _with("section", "round")
_OF_TEXTS = frozenset({Kind.TEXT_BEGIN, Kind.TEXT, Kind.TEXT_TOKEN, Kind.TEXT_END})


def kind_name(kind: int) -> str:
    """The name of a kind; for an unknown number "message of kind N"."""
    return Kind.Name(Kind.ValueType(kind)) if kind in FIELDS else f"message of kind {kind}"


def check(header: Header) -> None:
    """Raises ValueError if the header lacks the body of its kind, or if the kind is unknown."""
    kind, has = header.kind, header.WhichOneof("body")
    if kind not in FIELDS:
        raise ValueError(f"a header of kind {kind}, which this version does not know")
    if has != FIELDS[kind]:
        raise ValueError(f"a header of kind {kind_name(kind)} with {f'the body {has}' if has else 'no body'}")


def read(data: bytes) -> Header:
    """A header from its bytes. ValueError: these bytes are no header, its body is not that of its kind, or it has
    two."""
    try:
        header = Header.FromString(data)
    except Exception as error:  # protobuf's DecodeError has a different home in each version
        raise ValueError(f"{len(data)} bytes are not a Header: {error}") from error
    if header.ByteSize() != len(data):  # of two bodies protobuf keeps the last one
        raise ValueError(f"a header of {len(data)} bytes says something twice")
    check(header)
    return header


def sectioned(header: Header) -> Sectioned | None:
    """The header's body if it belongs to one section, else None."""
    if header.kind not in _SECTIONED:
        return None
    body: Sectioned = getattr(header, FIELDS[header.kind] or "")
    return body


def of_round(header: Header) -> RoundBody | None:
    """The header's body if it is a message of a section's rounds, else None."""
    if header.kind not in _OF_ROUNDS:
        return None
    body: RoundBody = getattr(header, FIELDS[header.kind] or "")
    return body


def of_text(header: Header) -> TextBody | None:
    """The header's body if it is a message of text generation, else None."""
    if header.kind not in _OF_TEXTS:
        return None
    body: TextBody = getattr(header, FIELDS[header.kind] or "")
    return body
