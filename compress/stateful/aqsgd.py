"""AQ-SGD (Wang et al., NeurIPS 2022): sends the change of a sample's activation since its last visit, in few bits.

Both ends of a link keep, for each sample id, the receiver's last activation in bf16, with a version and a checksum. The
two ends must always agree, so nothing is assumed: a change names the version and the checksum of the entry to which it
applies. A receiver that lacks that entry says so, and the sender then sends that sample whole, in the same microbatch.
Either end may lose an entry, restart or drop a microbatch at any time; the sample is then sent whole. A receiver that
has lost all entries says so with the first sample that it lacks, and the sender then drops all other entries.

Quantisation steps are powers of two, and q * 2^e is exact, so m' = bf16(m + q * 2^e) has one rounding in fp32 and one
to bf16: the same bits on any hardware. Pure: no network, no clock.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch

from ..blobs.wire import Buffer, Header, Reader, build, open_blob, varint
from ..codec import DTYPES, flatten
from ..errors import CodecError
from ..primitives.key import Key
from ..quantizers.looped import Looped, Put
from ..specs.spec import Spec
from .aqsgd_bodies import body, opened_body, read_body
from .aqsgd_ends import End, Entry, entry_of
from .disk_store import DiskStore

WHOLE, CHANGE = 0, 1
_DIRECT, _MESSAGE = 0, 1


class Direct(Looped):
    """The codec without its state: every tensor is encoded whole, with ``first_bits`` bits."""

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        return [bytes([_DIRECT]), body(x, self.spec.number("first_bits"), self.spec.number("group"))[0]]

    def opened(self, reader: Reader, header: Header) -> Put:
        self._expect(reader)
        bits, group = self.spec.number("first_bits"), self.spec.number("group")
        return opened_body(reader, header.elements, bits, group)

    def plain(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        self._expect(reader)
        bits, group = self.spec.number("first_bits"), self.spec.number("group")
        return read_body(reader, header.elements, bits, group, device)

    def _expect(self, reader: Reader) -> None:
        if reader.byte() != _DIRECT:
            raise CodecError("the blob is an AQ-SGD message: it needs the Receiver of its link")


@dataclass
class Counters:
    """A sender's counters. hits: samples that were sent as a change; nacks: changes that the receiver could not
    apply."""

    samples: int = 0
    hits: int = 0
    nacks: int = 0
    change_energy: float = 0.0
    value_energy: float = 0.0

    @property
    def hit_rate(self) -> float:
        return (self.hits - self.nacks) / self.samples if self.samples else 0.0


@dataclass
class _Sent:
    ids: tuple[int, ...]
    values: torch.Tensor


class Sender(End):
    """The end that has the activations.

    ``encode`` stages new entries. Call ``commit`` when the microbatch's gradient has come back (so the receiver has the
    message), ``rollback`` when the microbatch is abandoned. Encoding the same microbatch again gives the same bytes.
    """

    def __init__(
        self,
        spec: str | Spec = "aqsgd",
        *,
        max_bytes: int | None = None,
        device: torch.device | str = "cpu",
        disk: DiskStore | None = None,
    ) -> None:
        super().__init__(spec, max_bytes, device, disk)
        self.counters = Counters()
        self._recent: Counters = Counters()
        self._sent: dict[Hashable, _Sent] = {}

    def encode(self, token: Hashable, ids: Sequence[int], x: torch.Tensor) -> bytes:
        """The message of a microbatch. ids: sample ids ``[b]`` (u64); x: activations ``[b, ...]``, finite; token: any
        name of the microbatch, e.g. (view, step, microbatch)."""
        if len(ids) != len(x):
            raise CodecError(f"{len(ids)} sample ids for {len(x)} activations")
        flat, dtype = flatten(x)
        values = flat.view(len(x), -1) if len(x) else flat.view(0, 0)
        self._sent[token] = _Sent(tuple(ids), values)
        staged: dict[int, Entry] = {}
        body = [bytes([_MESSAGE])]
        for sample, value in zip(ids, values, strict=True):
            entry = self._find(sample)
            if entry is not None and entry.value.numel() == value.numel():
                body.append(self._change(sample, entry, value, staged))
            else:
                body.append(self._whole(sample, value, staged))
        self.counters.samples += len(ids)
        self._staged[token] = staged
        return b"".join(build(self.spec, dtype, tuple(x.shape), body, None, None))

    def forget_committed(self) -> None:
        """The receiver has lost all entries: every sample is sent whole on its next visit. Microbatches in flight
        stay."""
        for sample in list(self._entries):
            self.forget(sample)
        if self.disk is not None:
            self.disk.clear()

    def resend(self, token: Hashable, ids: Sequence[int]) -> bytes:
        """The answer to a receiver that lacks entries (``Received.missing``): those samples of the microbatch, whole.

        CodecError if the microbatch is not (any more) in flight.
        """
        sent = self._sent.get(token)
        if sent is None:
            raise CodecError(f"microbatch {token!r} is not in flight")
        body = [bytes([_MESSAGE])]
        for sample in ids:
            if sample not in sent.ids:
                raise CodecError(f"sample {sample} is not in microbatch {token!r}")
            value = sent.values[sent.ids.index(sample)]
            body.append(self._whole(sample, value, self._staged[token]))
            self.counters.nacks += 1
        return b"".join(build(self.spec, "float32", (len(ids), sent.values.shape[1]), body, None, None))

    def commit(self, token: Hashable) -> None:
        self._sent.pop(token, None)
        super().commit(token)

    def rollback(self, token: Hashable) -> None:
        self._sent.pop(token, None)
        super().rollback(token)

    def clear(self) -> None:
        self._sent.clear()
        super().clear()

    def verdict(self, least: int = 256) -> str | None:
        """A sentence that says why a stateless codec (tile) would be better on this link; None if AQ-SGD pays, or if
        fewer than ``least`` samples were sent since the last judgement."""
        now, before = self.counters, self._recent
        samples = now.samples - before.samples
        if samples < least:
            return None
        hits = (now.hits - now.nacks - before.hits + before.nacks) / samples
        change, value = now.change_energy - before.change_energy, now.value_energy - before.value_energy
        self._recent = Counters(now.samples, now.hits, now.nacks, now.change_energy, now.value_energy)
        if hits < 0.5:
            return f"only {hits:.0%} of the last {samples} samples had been seen before: AQ-SGD gains nothing"
        if value and change > value:
            return f"activations change by {change / value:.1f} times their own energy between visits: AQ-SGD loses"
        return None

    def _whole(self, sample: int, value: torch.Tensor, staged: dict[int, Entry]) -> bytes:
        data, decoded = body(value, self.first_bits, self.group)
        entry = self._entries.get(sample)
        staged[sample] = entry_of(decoded.to(self.device), entry.version + 1 if entry else 1)
        return bytes([WHOLE]) + varint(sample) + varint(staged[sample].version) + data

    def _change(self, sample: int, entry: Entry, value: torch.Tensor, staged: dict[int, Entry]) -> bytes:
        base = entry.value.to(value.device).to(torch.float32)
        change = value - base
        data, decoded = body(change, self.bits, self.group)
        staged[sample] = entry_of((base + decoded).to(self.device), entry.version + 1)
        self.counters.hits += 1
        self.counters.change_energy += float(change.square().sum())
        self.counters.value_energy += float(value.square().sum())
        head = bytes([CHANGE]) + varint(sample) + varint(entry.version) + struct.pack("<I", entry.checksum)
        return head + data


@dataclass
class Received:
    """values: ``[b, ...]`` in the sender's dtype, or None while samples are missing. missing: ids of the samples of
    this microbatch to ask the sender for; its ``resend`` answers."""

    values: torch.Tensor | None
    missing: tuple[int, ...] = ()


@dataclass
class _Open:
    ids: list[int]
    rows: list[torch.Tensor | None]
    shape: tuple[int, ...]
    dtype: str
    missing: set[int] = field(default_factory=set)


class Receiver(End):
    """The end that receives the activations. Call ``receive`` for each message; ``commit`` for a microbatch when its
    gradient is sent, ``rollback`` when it is abandoned."""

    def __init__(
        self,
        spec: str | Spec = "aqsgd",
        *,
        max_bytes: int | None = None,
        device: torch.device | str = "cpu",
        disk: DiskStore | None = None,
    ) -> None:
        super().__init__(spec, max_bytes, device, disk)
        self.nacks = 0
        self.anew = True
        """Whether this end may have lost an earlier receiver's entries without the sender knowing."""
        self._open: dict[Hashable, _Open] = {}

    def receive(self, token: Hashable, blob: Buffer, shape: Sequence[int] | None = None) -> Received:
        """Take a microbatch's message, or the answer to a request for missing samples. shape: the shape that the
        message must have, if known.

        CodecError for bytes that no Sender writes; the state is then unchanged.
        """
        header, reader = open_blob(blob)
        if header.spec != self.spec:
            raise CodecError(f"the message is {str(header.spec)!r}, this link uses {str(self.spec)!r}")
        if not header.shape:
            raise CodecError("an AQ-SGD message has a dimension of samples")
        open_ = self._open.get(token)
        answer = open_ is not None and bool(open_.missing)
        if shape is not None and not answer and tuple(shape) != header.shape:
            raise CodecError(f"the message has shape {header.shape}, {tuple(shape)} is expected")
        size = header.elements // header.shape[0] if header.shape[0] else 0
        ids, rows, staged, missing = self._read(reader, header.shape[0], size)
        if answer:
            assert open_ is not None
            if set(ids) - open_.missing or size != _size(open_.shape):
                raise CodecError("the answer has samples that were not asked for")
            answers = dict(zip(ids, rows, strict=True))
            open_.rows = [answers.get(i) if row is None else row for i, row in zip(open_.ids, open_.rows, strict=True)]
            open_.missing = (open_.missing - set(ids)) | set(missing)
            self._staged[token].update(staged)
        else:
            open_ = _Open(ids, rows, header.shape, header.dtype, set(missing))
            self._open[token], self._staged[token] = open_, staged
        if answer:  # the sender knows it now
            self.anew = False
        self.nacks += len(missing)
        if open_.missing:
            return Received(None, tuple(dict.fromkeys(i for i in open_.ids if i in open_.missing)))
        done = [row for row in open_.rows if row is not None]
        values = torch.stack(done) if done else torch.zeros(0)
        del self._open[token]
        return Received(values.to(DTYPES[open_.dtype]).view(open_.shape))

    def commit(self, token: Hashable) -> None:
        self._open.pop(token, None)
        super().commit(token)

    def rollback(self, token: Hashable) -> None:
        self._open.pop(token, None)
        super().rollback(token)

    def clear(self) -> None:
        self._open.clear()
        self.anew = True
        super().clear()

    def _read(
        self, reader: Reader, samples: int, size: int
    ) -> tuple[list[int], list[torch.Tensor | None], dict[int, Entry], list[int]]:
        if reader.byte() != _MESSAGE:
            raise CodecError("the blob is a plain tensor, not an AQ-SGD message")
        ids: list[int] = []
        rows: list[torch.Tensor | None] = []
        staged: dict[int, Entry] = {}
        missing: list[int] = []
        for _ in range(samples):
            kind, sample, version = reader.byte(), reader.varint(), reader.varint()
            if kind not in (WHOLE, CHANGE):
                raise CodecError(f"the message has a sample of unknown kind {kind}")
            ids.append(sample)
            if kind == WHOLE:
                staged[sample] = entry_of(read_body(reader, size, self.first_bits, self.group, self.device), version)
            else:
                checksum: int = struct.unpack("<I", reader.take(4))[0]
                change = read_body(reader, size, self.bits, self.group, self.device)
                entry = self._find(sample)
                if entry is None or (entry.version, entry.checksum, entry.value.numel()) != (version, checksum, size):
                    missing.append(sample)
                    rows.append(None)
                    continue
                staged[sample] = entry_of(entry.value.to(torch.float32) + change, version + 1)
                self.anew = False  # the sender knows what this end has
            rows.append(staged[sample].value)
        reader.end()
        return ids, rows, staged, missing


def _size(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape[1:]:
        count *= size
    return count
