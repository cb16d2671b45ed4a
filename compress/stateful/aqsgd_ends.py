"""The AQ-SGD state of either end of a link: entries by sample id, in memory and on disk."""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

import torch

from ..codec import bytes_tensor, tensor_bytes
from ..errors import CodecError
from ..specs.spec import Spec, parse
from .disk_store import DiskStore

_ON_DISK = struct.Struct("<QI")
"""Version and checksum, before a sample's values on disk."""


@dataclass(frozen=True)
class Entry:
    """The receiver's activation of a sample: bf16 values, version (number of changes), crc32 of the bytes."""

    value: torch.Tensor
    version: int
    checksum: int


def entry_of(value: torch.Tensor, version: int) -> Entry:
    value = value.to(torch.bfloat16)
    if not bool(torch.isfinite(value).all()):
        raise CodecError("an activation is beyond the range of bf16")
    return Entry(value, version, zlib.crc32(tensor_bytes(value)))


class End:
    """The store of one end: committed entries by sample id, least recently used first, and staged entries.

    max_bytes: bytes of entries in memory; beyond them the least recently used go to ``disk``, or are dropped without
    one.
    """

    def __init__(
        self, spec: str | Spec, max_bytes: int | None, device: torch.device | str, disk: DiskStore | None = None
    ) -> None:
        self.spec = parse(spec) if isinstance(spec, str) else spec
        if self.spec.name != "aqsgd":
            raise CodecError(f"an AQ-SGD end needs an aqsgd spec, not {str(self.spec)!r}")
        self.bits, self.first_bits = self.spec.number("bits"), self.spec.number("first_bits")
        self.group = self.spec.number("group")
        self.max_bytes, self.device = max_bytes, torch.device(device)
        self.disk = disk
        self.bytes = 0
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._staged: dict[Hashable, dict[int, Entry]] = {}

    def __len__(self) -> int:
        return len(self._entries) + (len(self.disk) if self.disk is not None else 0)

    def commit(self, token: Hashable) -> None:
        """Commit the entries staged for a microbatch; the next visit's change applies to them. An unknown token does
        nothing."""
        for sample, entry in self._staged.pop(token, {}).items():
            self.forget(sample)
            self._entries[sample] = entry
            self.bytes += entry.value.nbytes
        while self.max_bytes is not None and self.bytes > self.max_bytes and self._entries:
            sample = next(iter(self._entries))
            entry = self._entries[sample]
            self.forget(sample)
            if self.disk is not None:
                self.disk.put(sample, _ON_DISK.pack(entry.version, entry.checksum) + tensor_bytes(entry.value))

    def rollback(self, token: Hashable) -> None:
        """Drop the staged entries of a microbatch."""
        self._staged.pop(token, None)

    def rollback_all(self) -> None:
        """Drop all staged entries, as at a view change."""
        for token in list(self._staged):
            self.rollback(token)

    def forget(self, sample: int) -> None:
        """Drop a sample's entry: its next visit is sent whole."""
        entry = self._entries.pop(sample, None)
        if entry is not None:
            self.bytes -= entry.value.nbytes
        if self.disk is not None:
            self.disk.drop(sample)

    def clear(self) -> None:
        """Drop all entries, for example when the other end is a different node."""
        self._entries.clear()
        self._staged.clear()
        self.bytes = 0
        if self.disk is not None:
            self.disk.clear()

    def _find(self, sample: int) -> Entry | None:
        entry = self._entries.get(sample)
        if entry is None and self.disk is not None and (data := self.disk.take(sample)) is not None:
            version, checksum = _ON_DISK.unpack_from(data)
            value = memoryview(data)[_ON_DISK.size :]
            if zlib.crc32(value) == checksum:  # else the disk's copy is damaged: the sample is sent whole
                entry = Entry(bytes_tensor(value, torch.bfloat16, self.device), version, checksum)
                self._entries[sample] = entry
                self.bytes += entry.value.nbytes
        if entry is not None:
            self._entries.move_to_end(sample)
        return entry
