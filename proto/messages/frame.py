"""The bytes between two nodes: frames, several of which may follow one another in one gRPC message.

A message is a protobuf header (data.proto) and a payload of raw bytes. A small message is one WHOLE frame.
A large one is OPEN (its header and total length), CHUNKs, and END with length and digest. The end of a stream does not
complete a message: only a verified END (or WHOLE) does, and the receiver then acknowledges it. ACK is cumulative: all
transfers of that priority up to that number have arrived.

A link may have several streams: all frames but CHUNK and END then go on the first, its lane 0, and the chunks of large
messages, each once, on any of the others (node/peers/lanes.py). Messages of a priority arrive in the order of
their OPEN or WHOLE. CANCEL withdraws a message that its sender has begun and will not finish. LANE asks the receiver
for one more stream, on links whose streams the receiver opens; its greeting must have had you_send and link.

Short form, for everything small (kinds HELLO, WELCOME, WHOLE, ACK, REFUSE, CANCEL, LANE)::

    0xF1 | kind << 4 | priority | varint transfer | [varint len(head) | varint len(body) | head | body] | crc32c
    (the bracket is absent in an ACK)

Long form, for OPEN, CHUNK and END: 64 bytes, little endian, then head and body::

    "FARF" version kind priority flags | transfer u64 | seq u64 | offset u64 | len(body) u32 len(head) u32
    | total u64 | digest u64 (xxh3_64 of the payload, in END) | crc32c u32, zero u32

The crc32c covers everything else of the frame. No field is used before the checksum is verified, and no memory is
allocated here: bodies are views of the received message.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from crc32c import crc32c

VERSION = 1
SHORT_MAGIC = 0xF0 | VERSION
LONG_MAGIC = b"FARF"
PRIORITIES = 3
HEAD_LIMIT = 4 << 20
TOTAL_LIMIT = 1 << 40

Buffer = bytes | bytearray | memoryview

_LONG = struct.Struct("<4sBBBBQQQIIQQII")
_CRC = struct.Struct("<I")
_CRC_OFFSET = _LONG.size - 8


class FrameError(ValueError):
    """Bytes that are not a frame of this version; the text says what is wrong with them."""


class Kind(enum.IntEnum):
    HELLO = 1  # first frame of a stream: head is data_pb2.Greeting
    WELCOME = 2  # the answer to HELLO
    OPEN = 3  # head is data_pb2.Header, total the payload's bytes
    CHUNK = 4
    END = 5  # total and digest of the payload, seq the number of chunks
    WHOLE = 6  # a complete small message: head is data_pb2.Header, body the payload
    ACK = 7  # every transfer of this priority up to `transfer` has arrived
    REFUSE = 8  # head says why in words (utf-8); transfer 0 refuses the stream
    CANCEL = 9  # the message of this number, which may have been opened, will not be finished
    LANE = 10  # the receiver is to open the lane with the number `transfer`


_LONG_KINDS = frozenset({Kind.OPEN, Kind.CHUNK, Kind.END})


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. ``body`` is a view into the received message; ``offset`` and ``total`` count payload bytes."""

    kind: Kind
    transfer: int = 0
    priority: int = 0
    head: Buffer = b""
    body: Buffer = b""
    seq: int = 0
    offset: int = 0
    total: int = 0
    digest: int = 0


def encode(frame: Frame) -> list[Buffer]:
    """The frame as buffers to be joined (so that a chunk is copied once). ValueError on an absurd frame."""
    if not 0 <= frame.priority < PRIORITIES or not 0 <= frame.transfer < 1 << 64:
        raise ValueError(f"priority {frame.priority} or transfer {frame.transfer} out of range")
    if len(frame.head) > HEAD_LIMIT or frame.total > TOTAL_LIMIT:
        raise ValueError(f"head of {len(frame.head)} or payload of {frame.total} bytes is too large for one message")
    if frame.kind in _LONG_KINDS:
        return _encode_long(frame)
    start = bytes((SHORT_MAGIC, frame.kind << 4 | frame.priority)) + _varint(frame.transfer)
    if frame.kind is Kind.ACK:
        return [start + _CRC.pack(crc32c(start))]
    start += _varint(len(frame.head)) + _varint(len(frame.body)) + frame.head
    if not frame.body:
        return [start + _CRC.pack(crc32c(start))]
    return [start, frame.body, _CRC.pack(crc32c(frame.body, crc32c(start)))]


def decode(message: Buffer) -> list[Frame]:
    """All frames of one gRPC message. FrameError says what is wrong first; then no frame of the message is used."""
    return list(_frames(memoryview(message)))


def size(buffers: Iterable[Buffer]) -> int:
    """Bytes of an encoded frame."""
    return sum(len(buffer) for buffer in buffers)


# ---- long form -----------------------------------------------------------------------------


def _encode_long(frame: Frame) -> list[Buffer]:
    fixed = _LONG.pack(
        LONG_MAGIC,
        VERSION,
        frame.kind,
        frame.priority,
        0,
        frame.transfer,
        frame.seq,
        frame.offset,
        len(frame.body),
        len(frame.head),
        frame.total,
        frame.digest,
        0,
        0,
    )
    check = crc32c(frame.body, crc32c(frame.head, crc32c(fixed)))
    start = fixed[:_CRC_OFFSET] + _CRC.pack(check) + bytes(4) + frame.head
    return [start, frame.body] if frame.body else [start]


def _decode_long(view: memoryview) -> tuple[Frame, int]:
    if len(view) < _LONG.size:
        raise FrameError(f"{len(view)} bytes are too few for a frame's {_LONG.size}-byte header")
    magic, version, number, priority, flags, transfer, seq, offset, body, head, total, digest, check, zero = (
        _LONG.unpack(view[: _LONG.size])
    )
    if magic != LONG_MAGIC:
        raise FrameError(f"begins with {magic!r}, which no frame does")
    if version != VERSION:
        raise FrameError(f"has frame version {version}, this farflung speaks {VERSION}")
    if number not in _LONG_KINDS or priority >= PRIORITIES or flags or zero:
        raise FrameError(f"has kind {number}, priority {priority}, flags {flags}, which no frame has")
    if head > HEAD_LIMIT or total > TOTAL_LIMIT or offset + body > total:
        raise FrameError(f"has absurd sizes: header {head}, bytes {offset}..{offset + body} of {total}")
    end = _LONG.size + head + body
    if end > len(view):
        raise FrameError(f"says {end} bytes, but {len(view)} are there")
    fixed = bytes(view[:_CRC_OFFSET]) + bytes(8)
    if crc32c(view[_LONG.size : end], crc32c(fixed)) != check:
        raise FrameError("has a wrong checksum")
    frame = Frame(
        Kind(number),
        transfer,
        priority,
        bytes(view[_LONG.size : _LONG.size + head]),
        view[_LONG.size + head : end],
        seq,
        offset,
        total,
        digest,
    )
    return frame, end


# ---- short form ----------------------------------------------------------------------------


def _decode_short(view: memoryview) -> tuple[Frame, int]:
    if len(view) < 2:
        raise FrameError("is cut short")
    number, priority = view[1] >> 4, view[1] & 15
    if number in _LONG_KINDS or not Kind.HELLO <= number <= Kind.LANE or priority >= PRIORITIES:
        raise FrameError(f"has kind {number}, priority {priority}, which no short frame has")
    transfer, at = _read_varint(view, 2)
    head = body = 0
    if number != Kind.ACK:
        head, at = _read_varint(view, at)
        body, at = _read_varint(view, at)
        if head > HEAD_LIMIT:
            raise FrameError(f"has a header of {head} bytes")
    end = at + head + body
    if end + _CRC.size > len(view):
        raise FrameError(f"says {end + _CRC.size} bytes, but {len(view)} are there")
    if crc32c(view[:end]) != _CRC.unpack(view[end : end + _CRC.size])[0]:
        raise FrameError("has a wrong checksum")
    frame = Frame(Kind(number), transfer, priority, bytes(view[at : at + head]), view[at + head : end])
    return frame, end + _CRC.size


def _frames(view: memoryview) -> Iterator[Frame]:
    while view:
        if view[0] == SHORT_MAGIC:
            frame, end = _decode_short(view)
        elif view[0] >> 4 == SHORT_MAGIC >> 4:
            raise FrameError(f"has frame version {view[0] & 15}, this farflung speaks {VERSION}")
        else:
            frame, end = _decode_long(view)
        yield frame
        view = view[end:]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(view):
            raise FrameError("is cut short in a number")
        byte = view[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise FrameError("has a number that is too long")
    if value >= 1 << 64:
        raise FrameError("has a number that is too large")
    return value, at
