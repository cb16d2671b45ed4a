"""``docofl``: a correction to an anchor that the receiver already has (DoCoFL, Dorfman et al., ICML 2023).

The codec sends a vector unbiased at a budget of bits: equal levels, as many as the budget allows after Huffman coding
(the paper's entropy-constrained uniform quantiser). ``Anchors`` names the versions: a receiver fetches an anchor off
the critical path, and then w = anchor + decoded correction in a few bits.
"""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict

import torch

from ..claims import FEW
from ..codec import Codec, bytes_tensor, decode, make, tensor_bytes
from ..errors import CodecError
from ..primitives import philox
from ..primitives.key import Key
from ..spec import Spec
from ..wire import Buffer, Header, Reader, varint
from .dithered import LARGEST


def entropy(counts: torch.Tensor) -> float:
    """Bits per symbol."""
    share = counts[counts > 0].double() / counts.sum()
    return float(-(share * share.log2()).sum())


class Entropy(Codec):
    """bits: the budget per element. Levels of one byte each, Huffman coded (DEFLATE without matches)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.bits = spec.real("bits")

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        low, high = x.min().double(), x.max().double()
        if low == high and x.numel() <= FEW:
            return [struct.pack("<ffB", float(low), float(high), 0)]
        low32, high32 = x.min(), x.max()
        if low == high:  # codes all the same: nine bytes may not claim any number of elements
            head = struct.pack("<ffB", float(low32), float(high32), 1)
            return [head, *_coded(torch.zeros(x.numel(), dtype=torch.uint8))]
        u = philox.uniform(x.numel(), key.dither, 0, 0, x.device).double()
        place = (x.double() - low) / (high - low)
        best, least, most = 1, 2, 255
        while least <= most:  # the entropy grows with the number of levels, but for noise: bisect
            middle = (least + most) // 2
            index = (place * middle + u).floor().clamp(0, middle).to(torch.int64)
            if entropy(torch.bincount(index, minlength=middle + 1)) <= self.bits:
                best, least = middle, middle + 1
            else:
                most = middle - 1
        index = (place * best + u).floor().clamp(0, best).to(torch.uint8)
        return [struct.pack("<ffB", float(low32), float(high32), best), *_coded(index)]

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        n = header.elements
        low, high, levels = reader.float32(), reader.float32(), reader.byte()
        if levels == 0:
            return torch.full((n,), low, device=device)
        packed = reader.rest()
        if n > 8 * len(packed):  # a Huffman code has a bit at least, and an encoder writes no matches
            raise CodecError(f"the blob claims {n} elements, too many for its {len(packed)} bytes")
        coder = zlib.decompressobj(-15)
        try:
            codes = coder.decompress(packed, n + 1)
        except zlib.error as error:
            raise CodecError(f"the blob's entropy code is wrong: {error}") from None
        if len(codes) != n or not coder.eof or coder.unused_data:
            raise CodecError("the blob's entropy code has another number of elements")
        index = bytes_tensor(codes, torch.uint8, device)
        if int(index.max()) > levels:
            raise CodecError("the blob has a level that is not there")
        place = torch.arange(levels + 1, dtype=torch.float64, device=device)
        table = (low + place * ((high - low) / levels)).to(torch.float32).clamp(-LARGEST, LARGEST)
        return table.index_select(0, index.to(torch.int32))


def _coded(index: torch.Tensor) -> list[Buffer]:
    """Levels, Huffman coded."""
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    return [coder.compress(tensor_bytes(index)), coder.flush()]


class Anchors:
    """Versions of a vector at one end. The sender ``put``s and encodes against a version, the receiver ``put``s what it
    fetched and decodes. Old versions are forgotten when there are more than ``keep``."""

    def __init__(self, spec: str | Spec = "docofl", keep: int = 2) -> None:
        self.codec, self.keep = make(spec), keep
        self._versions: OrderedDict[int, torch.Tensor] = OrderedDict()

    def put(self, version: int, x: torch.Tensor) -> None:
        """Keep ``x`` (fp32) as this version."""
        self._versions[version] = x.detach().clone().to(torch.float32)
        while len(self._versions) > self.keep:
            self._versions.popitem(last=False)

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(self._versions)

    def encode(self, x: torch.Tensor, version: int, seed: int = 0, step: int = 0) -> bytes:
        """The correction that makes ``x`` of a version."""
        anchor = self._get(version)
        return varint(version) + self.codec.encode(x - anchor, seed, step)

    def decode(self, blob: bytes) -> torch.Tensor:
        """anchor + correction, fp32. CodecError names a version that this end does not have: fetch it."""
        reader = Reader(blob)
        anchor = self._get(reader.varint())
        correction = decode(reader.rest(), limit=anchor.numel())
        if correction.shape != anchor.shape:
            raise CodecError(f"the correction has shape {tuple(correction.shape)}, the anchor {tuple(anchor.shape)}")
        return anchor + correction

    def _get(self, version: int) -> torch.Tensor:
        if version not in self._versions:
            raise CodecError(f"anchor {version} is not here (here: {list(self._versions)}): fetch it first")
        return self._versions[version]
