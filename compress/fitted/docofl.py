"""``docofl``: a correction to an anchor that the receiver already has (DoCoFL, Dorfman et al., ICML 2023).

The codec sends a vector unbiased at a budget of bits: equal levels, as many as the budget allows after Huffman coding
(the paper's entropy-constrained uniform quantiser). ``Anchors`` names the versions: a receiver fetches an anchor off
the critical path, and then w = anchor + decoded correction in a few bits.
"""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict
from typing import Any

import torch

from ..blobs.claims import FEW
from ..blobs.wire import Buffer, Header, Reader, varint
from ..codec import bytes_tensor, decode, make, tensor_bytes
from ..cpu.calls import tables as tabled
from ..errors import CodecError
from ..primitives import philox
from ..primitives.key import Key
from ..quantizers.dithered import LARGEST
from ..quantizers.looped import Looped, Put
from ..quantizers.tables import pieces
from ..specs.spec import Spec

try:
    from isal import isal_zlib as inflating  # the extra `fast`: twice as fast
except ImportError:
    import zlib as inflating  # type: ignore[no-redef]

_inflate_error: Any = inflating.error
_SAMPLED = 17


def entropy(counts: torch.Tensor) -> float:
    """Bits per symbol."""
    share = counts[counts > 0].double() / counts.sum()
    return float(-(share * share.log2()).sum())


class Entropy(Looped):
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
        n, span = x.numel(), high - low
        step = max(1, n >> _SAMPLED)  # of long vectors an even sample says how many levels the budget allows
        sample = (x[::step].double() - low) / span
        u = philox.uniform(len(sample), key.dither, 0 if step == 1 else 1, 0, x.device).double()
        best, least, most = 1, 2, 255
        while least <= most:  # the entropy grows with the number of levels, but for noise: bisect
            middle = (least + most) // 2
            index = (sample * middle + u).floor().clamp(0, middle).to(torch.int64)
            if entropy(torch.bincount(index, minlength=middle + 1)) <= self.bits:
                best, least = middle, middle + 1
            else:
                most = middle - 1
        codes = torch.empty(n, dtype=torch.uint8, device=x.device)
        for start, stop in pieces(n, n, x.device):
            place = (x[start:stop].double() - low).div_(span).mul_(best)
            place += philox.uniform(stop - start, key.dither, 0, start, x.device)
            codes[start:stop] = place.floor_().clamp_(0, best)
        return [struct.pack("<ffB", float(low32), float(high32), best), *_coded(codes)]

    def _parts(self, reader: Reader, header: Header, device: torch.device) -> tuple[bytes, torch.Tensor]:
        """(a code of one byte for each element, fp32 values of the codes); of one value alone no codes."""
        n = header.elements
        low, high, levels = reader.float32(), reader.float32(), reader.byte()
        if levels == 0:
            return b"", torch.tensor([low], device=device)
        packed = reader.rest()
        if n > 8 * len(packed):  # a Huffman code has a bit at least, and an encoder writes no matches
            raise CodecError(f"the blob claims {n} elements, too many for its {len(packed)} bytes")
        coder = inflating.decompressobj(-15)
        try:
            codes = coder.decompress(packed, n + 1)
        except (zlib.error, _inflate_error) as error:
            raise CodecError(f"the blob's entropy code is wrong: {error}") from None
        if len(codes) != n or not coder.eof or coder.unused_data:
            raise CodecError("the blob's entropy code has another number of elements")
        if int(bytes_tensor(codes, torch.uint8).max()) > levels:
            raise CodecError("the blob has a level that is not there")
        place = torch.arange(levels + 1, dtype=torch.float64, device=device)
        return codes, (low + place * ((high - low) / levels)).to(torch.float32).clamp(-LARGEST, LARGEST)

    def opened(self, reader: Reader, header: Header) -> Put:
        codes, table = self._parts(reader, header, torch.device("cpu"))
        codes = codes or bytes(header.elements)
        one = torch.ones(1)
        return lambda out, weight: tabled.add_table(out, codes, table, one, header.elements, 8, weight)

    def plain(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        codes, table = self._parts(reader, header, device)
        if not codes:
            return table.expand(header.elements).clone()
        return table.index_select(0, bytes_tensor(codes, torch.uint8, device).to(torch.int32))


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
