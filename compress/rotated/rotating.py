"""The base class of codecs that rotate blocks before they quantise them."""

from __future__ import annotations

import torch

from ..blobs.pieces import onto
from ..blobs.wire import Reader
from ..codec import Codec, bytes_tensor
from ..errors import CodecError
from ..primitives import rotation
from ..specs.spec import Spec


class Rotated(Codec):
    """Base class of the rotated codecs: segments, packed planes of codes, fp32 numbers per block."""

    keyed = True

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.block = int(spec["block"])

    def read_scales(self, reader: Reader, count: int, device: torch.device) -> torch.Tensor:
        """``blocks(count)`` fp32 numbers, finite."""
        numbers = bytes_tensor(reader.take(4 * rotation.blocks(count, self.block)), torch.float32)
        if not bool(torch.isfinite(numbers).all()):  # on the CPU: no wait for a device
            raise CodecError("the blob has a scale that is not finite")
        return onto(numbers, device)
