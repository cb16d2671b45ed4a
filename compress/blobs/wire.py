"""The blob that every encoder writes: a small, versioned, self-describing header, then the codec's own bytes.

Little endian::

    0  2 bytes  magic "fC"
    2  u8       version of this format
    3  u8       codec
    4  u32      crc32 of everything before and after these four bytes
    8  u8       dtype (low 4 bits) | 0x10 a seed follows | 0x20 a step follows | 0x40 counts of a partial sum follow
    9  varints  number of dimensions, dimensions, [seed], [step], mask of the parameters that differ from their
                defaults, those parameters, and the codec's body to the end

A decoder trusts nothing: the checksum, the version, every length and every parameter are checked before memory is
allocated. claims.py compares the number of elements with the body's length, and each codec checks it to the byte.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..errors import CodecError
from ..gpu import checksum
from ..specs import registry
from ..specs.declarations import CODECS
from ..specs.spec import Spec
from ..specs.traits import Value
from . import claims
from .claims import MAX_ELEMENTS

try:
    from isal.isal_zlib import crc32  # the extra `fast`: the same numbers, ten times as fast
except ImportError:
    from zlib import crc32

MAGIC = b"fC"
VERSION = 1
DTYPES = ("float32", "float16", "bfloat16", "float64")
MAX_DIMENSIONS = 16
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Header:
    """The content of a blob's header: enough to decode the body that follows it."""

    spec: Spec
    dtype: str
    shape: tuple[int, ...]
    seed: int = 0
    step: int = 0

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


def varint(value: int) -> bytes:
    """Unsigned LEB128."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Reader:
    """Reads values from a blob with checks; CodecError if it is too short."""

    def __init__(self, data: Buffer, known: bool = False) -> None:
        """``known``: this process has checked the blob before, including its values."""
        self.data, self.known = memoryview(data), known
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int) -> memoryview:
        if count < 0 or count > self.left:
            raise CodecError(f"the blob is too short: {count} bytes needed at {self.at}, {self.left} left")
        self.at += count
        return self.data[self.at - count : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self, limit: int = (1 << 64) - 1) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                break
            shift += 7
            if shift > 63:
                raise CodecError("the blob has a number of more than 64 bits")
        if value > limit:
            raise CodecError(f"the blob has an absurd number: {value}, at most {limit} makes sense")
        return value

    def float32(self) -> float:
        value: float = struct.unpack("<f", self.take(4))[0]
        if value - value != 0.0:
            raise CodecError("the blob has a scale that is not finite")
        return value

    def rest(self) -> memoryview:
        return self.take(self.left)

    def end(self) -> None:
        if self.left:
            raise CodecError(f"the blob has {self.left} bytes too many")


def build(
    spec: Spec, dtype: str, shape: Sequence[int], body: Sequence[Buffer], seed: int | None, step: int | None,
    rest: int | None = None,
) -> list[Buffer]:  # fmt: skip
    """A blob, in pieces. ``seed`` and ``step``: None if the decoder does not need them. rest: the part of the body's
    checksum that a device has computed; None: compute it here."""
    claims.elements(shape)
    flags = DTYPES.index(dtype) | (0x10 if seed is not None else 0) | (0x20 if step is not None else 0)
    head = bytearray([flags])
    head += varint(len(shape))
    for size in shape:
        head += varint(size)
    for number in (seed, step):
        if number is not None:
            head += varint(number)
    head += _parameters(spec)
    first = MAGIC + bytes([VERSION, spec.declaration.wire_id])
    crc = crc32(head, crc32(first))
    if rest is None:
        for part in body:
            crc = crc32(part, crc)
    else:
        crc = checksum.joined(crc, rest, sum(memoryview(part).nbytes for part in body))
    return [first, struct.pack("<I", crc), head, *body]


def open_blob(blob: Buffer, limit: int | None = MAX_ELEMENTS, known: bool = False) -> tuple[Header, Reader]:
    """The header of a blob, and a reader at the beginning of its body. CodecError for bytes that no encoder writes, and
    for more elements than ``limit`` (None: see claims.py). ``known``: the checksum is not verified again."""
    if not isinstance(blob, (bytes, bytearray, memoryview)):
        raise CodecError(f"a blob is bytes, not {type(blob).__name__}")
    reader = Reader(memoryview(blob).cast("B"), known)
    first = bytes(reader.take(4))
    if first[:2] != MAGIC:
        raise CodecError("these bytes are no encoded tensor (wrong magic)")
    if first[2] != VERSION:
        raise CodecError(f"the blob has format version {first[2]}, this farflung reads {VERSION}")
    crc: int = struct.unpack("<I", reader.take(4))[0]
    if not known and crc32(reader.data[8:], crc32(first)) != crc:
        raise CodecError("the blob's checksum is wrong: it was truncated or changed on the way")
    flags = reader.byte()
    if flags & 0xC0 or flags & 0x0F >= len(DTYPES):
        raise CodecError(f"the blob has unknown flags {flags:#x}")
    shape = tuple(reader.varint() for _ in range(reader.varint(MAX_DIMENSIONS)))
    seed = reader.varint() if flags & 0x10 else 0
    step = reader.varint() if flags & 0x20 else 0
    mask = reader.varint()
    try:
        name = _by_wire_id()[first[3]]
    except KeyError:
        raise CodecError(f"the blob is of codec number {first[3]}, which this farflung does not know") from None
    spec = _read_parameters(name, mask, reader) if mask else _defaults(name)
    claims.check(spec, shape, len(reader.data), reader.left, limit)
    return Header(spec, DTYPES[flags & 0x0F], shape, seed, step), reader


@lru_cache(maxsize=1)
def _by_wire_id() -> dict[int, str]:
    return {declaration.wire_id: name for name, declaration in CODECS.items()}


@lru_cache(maxsize=256)
def _defaults(name: str) -> Spec:
    return Spec(name, tuple((p.name, p.default) for p in CODECS[name].parameters))


@lru_cache(maxsize=256)
def _parameters(spec: Spec) -> bytes:
    mask, out = 0, bytearray()
    for index, parameter in enumerate(spec.declaration.parameters):
        value = spec[parameter.name]
        if value == parameter.default or parameter.name == "feedback":
            continue
        mask |= 1 << index
        if parameter.choices:
            out += varint(parameter.choices.index(value))
        elif isinstance(value, bool):
            out.append(int(value))
        elif isinstance(value, int):
            out += varint(value)
        else:
            text = repr(float(value)).encode() if not isinstance(value, str) else value.encode()
            out += varint(len(text)) + text
    return varint(mask) + bytes(out)


def _forget() -> None:
    for kept in (_by_wire_id, _defaults, _parameters):
        kept.cache_clear()


registry.on_change(_forget)


def _read_parameters(name: str, mask: int, reader: Reader) -> Spec:
    parameters = CODECS[name].parameters
    if mask >> len(parameters):
        raise CodecError(f"the blob has parameters that {name} does not know")
    values: list[tuple[str, Value]] = []
    for index, parameter in enumerate(parameters):
        value: Value = parameter.default
        if mask >> index & 1:
            if parameter.choices:
                value = parameter.choices[reader.varint(len(parameter.choices) - 1)]
            elif isinstance(parameter.default, bool):
                value = bool(reader.varint(1))
            elif isinstance(parameter.default, int):
                value = reader.varint(1 << 40)
            else:
                text = bytes(reader.take(reader.varint(40)))
                try:
                    value = float(text) if isinstance(parameter.default, float) else text.decode()
                except ValueError:
                    raise CodecError(f"the blob's parameter {parameter.name} is no number") from None
            if not parameter.accepts(value):
                raise CodecError(f"the blob's parameter {parameter.name}={value} is not {parameter.allowed()}")
        values.append((parameter.name, value))
    return Spec(name, tuple(values))
