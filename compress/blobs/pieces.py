"""A body as an encoder leaves it: some of its pieces may still be on the device, where the work may not be finished.

``Staged`` is a blob in that form: payload, checksum and error flags lie on the device, and one copy into pinned memory
fetches all of them. So a device can encode many blobs before the host waits for the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..gpu import checksum
from ..gpu import dispatch as gpu
from ..specs.spec import Spec
from .wire import Buffer, build

LARGE = 1 << 26
"""Pieces of more bytes in all are not concatenated on the device, to save its memory."""
_HEAD = 16  # bytes: the checksum and the flags are padded to a multiple of this


@dataclass(frozen=True, eq=False)
class Doubt:
    """A condition that a device checks while it encodes: if ``flag`` (int32 [1]) is not 0, ``answer`` is called, which
    raises CodecError or returns a body that is made in another way."""

    flag: torch.Tensor
    answer: Callable[[], Sequence[Piece]]


@dataclass(frozen=True, eq=False)
class Made:
    """Bytes that ``make`` computes on the host from the bytes of several tensors of the device."""

    parts: Sequence[torch.Tensor]
    make: Callable[[Sequence[memoryview]], Buffer]


Piece = Buffer | torch.Tensor | Doubt | Made
"""A piece of a body: bytes on the host, or a tensor on a device, which stands for its bytes."""


@dataclass(frozen=True, eq=False)
class Staged:
    """A blob whose body may be on a device. It is valid until the encoded tensor changes."""

    spec: Spec
    dtype: str
    shape: tuple[int, ...]
    body: Sequence[Piece]
    seed: int | None
    step: int | None

    def pieces(self) -> list[Buffer]:
        """The blob's bytes, in pieces. Waits for the device once. CodecError for a value that is not finite."""
        body, rest = fetch(self.body)
        return build(self.spec, self.dtype, self.shape, body, self.seed, self.step, rest)

    def packed(self) -> Packed:
        """The blob's bytes, copied together on the device; from then on the encoded tensor may change. The host does
        not wait."""
        return Packed(self, *_pack(self.body))


@dataclass(frozen=True, eq=False)
class Packed:
    """A blob whose tensors are copies in ``room``, uint8 on the device; None: all of it is on the host already."""

    of: Staged
    room: torch.Tensor | None
    summed: bool

    @property
    def nbytes(self) -> int:
        """Bytes that it takes on the device."""
        return 0 if self.room is None else self.room.nbytes

    def pieces(self, here: memoryview) -> list[Buffer] | None:
        """The blob's bytes. ``here``: those of ``room``, on the host. None if the encoded values must be looked at
        once more: ``Codec.pieces`` of them refuses what is not finite."""
        of = self.of
        if self.room is None:
            body, rest = [one for one in of.body if isinstance(one, Buffer)], None
        else:
            found = _unpack(of.body, here, self.summed)
            if isinstance(found, Doubt):
                return None
            body, rest = found
        return build(of.spec, of.dtype, of.shape, body, of.seed, of.step, rest)


def fetch_packed(
    blobs: Sequence[Packed], beside: Sequence[torch.Tensor] = ()
) -> tuple[list[list[Buffer] | None], list[torch.Tensor]]:
    """([``Packed.pieces`` of each], copies of ``beside`` on the CPU). All tensors are of one device, for which the host
    waits once."""
    numbers = [_raw(one) for one in beside]
    numbers = [torch.nn.functional.pad(one, (0, -one.numel() % _HEAD)) for one in numbers]  # each at an aligned place
    rooms = [one for one in (*numbers, *(blob.room for blob in blobs)) if one is not None]
    if not rooms:
        return [blob.pieces(memoryview(b"")) for blob in blobs], []
    here, at, copies = to_host(torch.cat(rooms) if len(rooms) > 1 else rooms[0]), 0, []
    for one, padded in zip(beside, numbers, strict=True):
        copies.append(here[at : at + _raw(one).numel()].view(one.dtype).view(one.shape))
        at += padded.numel()
    whole, found = memoryview(here.numpy()), []  # type: ignore[arg-type,unused-ignore]
    for blob in blobs:
        found.append(blob.pieces(whole[at : at + blob.nbytes]))
        at += blob.nbytes
    return found, copies


def fetch(body: Sequence[Piece]) -> tuple[list[Buffer], int | None]:
    """(pieces on the host, the part of the checksum that the device has computed, or None: see
    ``checksum.of_device``)."""
    doubts = [one for one in body if isinstance(one, Doubt)]
    away = [part for one in body for part in _parts(one)]
    if not away:
        return [one for one in body if isinstance(one, Buffer)], None
    if sum(part.numel() * part.element_size() for part in away) > LARGE:
        if any(bool(doubt.flag) for doubt in doubts):
            return fetch(next(doubt for doubt in doubts if bool(doubt.flag)).answer())
        return _placed(body, [memoryview(to_host(_raw(part)).numpy()) for part in away]), None  # type: ignore[arg-type,unused-ignore]
    room, summed = _pack(body)
    assert room is not None
    found = _unpack(body, memoryview(to_host(room).numpy()), summed)  # type: ignore[arg-type,unused-ignore]
    return fetch(found.answer()) if isinstance(found, Doubt) else found


def _pack(body: Sequence[Piece]) -> tuple[torch.Tensor | None, bool]:
    """(the checksum, the flags and all tensors of a body in one uint8 tensor of the device, whose length is a multiple
    of 16; whether the device computes the checksum). None for a body without tensors."""
    doubts = [one for one in body if isinstance(one, Doubt)]
    away = [part for one in body for part in _parts(one)]
    if not away:
        return None, False
    device, count = away[0].device, sum(part.numel() * part.element_size() for part in away)
    head = _head(len(doubts))
    start = head + -count % 4
    room = torch.empty(start + count + -(start + count) % _HEAD, dtype=torch.uint8, device=device)
    room[:start] = 0
    for place, doubt in enumerate(doubts, 1):
        room[4 * place : 4 * place + 4] = doubt.flag.to(torch.int32).view(torch.uint8)
    at = start
    for part in away:
        size = part.numel() * part.element_size()
        room[at : at + size] = _raw(part)
        at += size
    alone = all(isinstance(one, (torch.Tensor, Doubt)) for one in body)
    summed = alone and count >= checksum.LEAST and gpu.available(device)
    if summed:
        checksum.of_device(room[head:at], room[:4])
    return room, summed


def _unpack(body: Sequence[Piece], here: memoryview, summed: bool) -> tuple[list[Buffer], int | None] | Doubt:
    """As ``fetch``, from the bytes of ``_pack``; or the doubt that is justified."""
    doubts = [one for one in body if isinstance(one, Doubt)]
    for place, doubt in enumerate(doubts, 1):
        if any(here[4 * place : 4 * place + 4]):
            return doubt
    parts = [part for one in body for part in _parts(one)]
    sizes = [part.numel() * part.element_size() for part in parts]
    at, found = _head(len(doubts)) + -sum(sizes) % 4, []
    for size in sizes:
        found.append(here[at : at + size])
        at += size
    return _placed(body, found), int.from_bytes(here[:4], "little") if summed else None


def _head(doubts: int) -> int:
    """Bytes before the tensors: the checksum and the flags."""
    return -(-4 * (1 + doubts) // _HEAD) * _HEAD


def _parts(piece: Piece) -> Sequence[torch.Tensor]:
    """The tensors of a piece."""
    return piece.parts if isinstance(piece, Made) else [piece] if isinstance(piece, torch.Tensor) else []


def _raw(part: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, uint8."""
    return part.contiguous().view(-1).view(torch.uint8)


def _placed(body: Sequence[Piece], found: list[memoryview]) -> list[Buffer]:
    """The pieces on the host; ``found``: the bytes of each of their tensors, in order."""
    out: list[Buffer] = []
    left = iter(found)
    for one in body:
        here = [next(left) for _ in _parts(one)]
        if isinstance(one, Made):
            out.append(one.make(here))
        elif isinstance(one, torch.Tensor):
            out += here
        elif not isinstance(one, Doubt):
            out.append(one)
    return out


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU; from CUDA into pinned memory, which the device can write directly."""
    if tensor.device.type != "cuda" or not torch.cuda.is_available():
        return tensor.cpu()
    here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    here.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return here


def onto(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The same values on ``device``, in the same dtype.

    A copy from pinned memory is queued behind the device's earlier work; a copy from pageable memory would block the
    host until the device has finished that work.
    """
    if device.type != "cuda" or values.device.type != "cpu":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def to_device(data: Buffer, device: torch.device) -> torch.Tensor:
    """Bytes of the host as a uint8 tensor on a device. Does not wait for the copy."""
    data = memoryview(data).cast("B")
    if not len(data):
        return torch.empty(0, dtype=torch.uint8, device=device)
    if device.type != "cuda" or not torch.cuda.is_available():
        # Not blocking on an emulated device, as on a real one; on others the bytes must stay until they are copied.
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device, non_blocking=device.type == "cuda")
    here = torch.empty(len(data), dtype=torch.uint8, pin_memory=True)
    memoryview(here.numpy())[:] = data  # type: ignore[arg-type,unused-ignore]
    return here.to(device, non_blocking=True)
