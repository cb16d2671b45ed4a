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


def fetch(body: Sequence[Piece]) -> tuple[list[Buffer], int | None]:
    """(pieces on the host, the part of the checksum that the device has computed, or None: see
    ``checksum.of_device``)."""
    doubts = [one for one in body if isinstance(one, Doubt)]
    away = [part for one in body for part in _parts(one)]
    if not away:
        return [one for one in body if isinstance(one, Buffer)], None
    device, count = away[0].device, sum(part.numel() * part.element_size() for part in away)
    if count > LARGE:
        if any(bool(doubt.flag) for doubt in doubts):
            return fetch(next(doubt for doubt in doubts if bool(doubt.flag)).answer())
        return _placed(body, [memoryview(to_host(_raw(part)).numpy()) for part in away]), None  # type: ignore[arg-type,unused-ignore]
    head = -(-4 * (1 + len(doubts)) // _HEAD) * _HEAD
    start = head + -count % 4
    room = torch.empty(start + count, dtype=torch.uint8, device=device)
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
        checksum.of_device(room[head:], room[:4])
    here = memoryview(to_host(room).numpy())  # type: ignore[arg-type,unused-ignore]
    for place, doubt in enumerate(doubts, 1):
        if any(here[4 * place : 4 * place + 4]):
            return fetch(doubt.answer())
    found, at = [], start
    for part in away:
        found.append(here[at : at + part.numel() * part.element_size()])
        at += len(found[-1])
    return _placed(body, found), int.from_bytes(here[:4], "little") if summed else None


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


def to_device(data: Buffer, device: torch.device) -> torch.Tensor:
    """Bytes of the host as a uint8 tensor on a device. Does not wait for the copy."""
    data = memoryview(data).cast("B")
    if not len(data):
        return torch.empty(0, dtype=torch.uint8, device=device)
    if device.type != "cuda" or not torch.cuda.is_available():
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    here = torch.empty(len(data), dtype=torch.uint8, pin_memory=True)
    memoryview(here.numpy())[:] = data  # type: ignore[arg-type,unused-ignore]
    return here.to(device, non_blocking=True)
