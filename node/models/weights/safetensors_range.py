"""Reads tensors of a safetensors file by range: only the header and the requested tensors travel.

A safetensors file is 8 bytes of header length, a JSON header with each tensor's dtype, shape and byte range, then the
bytes (https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import itertools
import json
import struct
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....job.model_folder.lfs import HINT, is_pointer
from ....proto.errors import FarflungError
from .fetch import Fetch

LONGEST_HEADER = 100 * 2**20  # the limit of the safetensors library
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Slot:
    """Where a tensor is: bytes [start, end) of ``file``."""

    file: str
    dtype: str  # as safetensors writes it: "F32", "F16", "BF16"
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Source:
    """A place with files: ``fetch`` reads them by the name ``prefix`` + file; ``where`` and ``hint`` go into errors."""

    fetch: Fetch
    prefix: str
    where: str
    hint: str

    def slots(self, file: str) -> dict[str, Slot]:
        """The tensors of a file by name. FarflungError when it is no safetensors file."""
        name = self.prefix + file
        start = self.fetch(name, 0, 8)
        if is_pointer(start):
            raise FarflungError(f"{file} of {self.where} is a Git LFS pointer, not the file itself", hint=HINT)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= LONGEST_HEADER:
            raise FarflungError(f"{file} of {self.where} is no safetensors file", hint=self.hint)
        found = {}
        for tensor, entry in self.json(self.fetch(name, 8, length), file).items():
            if tensor == "__metadata__":
                continue
            try:
                dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
                begin, end = (int(offset) for offset in entry["data_offsets"])
                if not 0 <= begin <= end:
                    raise ValueError(f"bytes {begin} to {end}")
            except (KeyError, TypeError, ValueError) as error:
                raise FarflungError(f"{file} of {self.where} has a damaged header at {tensor}", self.hint) from error
            found[tensor] = Slot(file, dtype, shape, 8 + length + begin, 8 + length + end)
        places = sorted((slot for slot in found.values() if slot.end > slot.start), key=lambda slot: slot.start)
        for one, other in itertools.pairwise(places):
            if other.start < one.end:
                named = [name for name, slot in found.items() if slot in (one, other)]
                what = f"{file} of {self.where} has a damaged header: {named[0]} and {named[-1]} are in the same bytes"
                raise FarflungError(what, self.hint)
        return found

    def read(self, slot: Slot, name: str) -> Tensor:
        """A tensor in its own dtype, on the CPU. FarflungError when the file ends within it."""
        data = bytearray(self.raw(slot, name))
        if not data:
            return torch.empty(slot.shape, dtype=DTYPES[slot.dtype])
        return torch.frombuffer(data, dtype=DTYPES[slot.dtype]).reshape(slot.shape)

    def raw(self, slot: Slot, name: str) -> bytes:
        """A tensor's bytes. FarflungError when the file ends within it."""
        data = self.fetch(self.prefix + slot.file, slot.start, slot.end - slot.start)
        if len(data) != slot.end - slot.start:
            raise FarflungError(f"{slot.file} of {self.where} ends within {name}", hint=self.hint)
        return data

    def json(self, data: bytes, file: str) -> dict[str, Any]:
        """The JSON object in ``data``, the content of ``file``. FarflungError when it is no JSON object."""
        try:
            values = json.loads(data)
        except ValueError as error:
            raise FarflungError(f"{file} of {self.where} is no JSON: {error}", hint=self.hint) from error
        if not isinstance(values, dict):
            raise FarflungError(f"{file} of {self.where} is no JSON object", hint=self.hint)
        return values
