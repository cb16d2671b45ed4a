"""``docofl``: the entropy-coded quantiser of DoCoFL (Dorfman et al., ICML 2023).

It sends a vector unbiased at a budget of bits: equal levels, as many as the budget allows after Huffman coding (the
paper's entropy-constrained uniform quantiser). The paper's anchors are not here: a member that rejoins must have the
reference bit by bit, which an approximate correction to an older one does not give.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import torch

from ..blobs.claims import FEW
from ..blobs.wire import Buffer, Header, Reader
from ..codec import bytes_tensor, tensor_bytes
from ..cpu import dispatch as fast
from ..cpu.calls import fitted as loops
from ..cpu.calls import tables as tabled
from ..errors import CodecError
from ..primitives import philox
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, unpack
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
MOST = 4095
"""The last level at most."""


def entropy(counts: torch.Tensor) -> float:
    """Bits per symbol."""
    share = counts[counts > 0].double() / counts.sum()
    return float(-(share * share.log2()).sum())


class Entropy(Looped):
    """bits: the budget per element. Levels are one byte each, Huffman coded (DEFLATE without matches). If there are
    more than 256 levels, the upper 8 bits are Huffman coded, and the lower ones are packed plainly."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.bits = spec.real("bits")

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        low, high = x.min().double(), x.max().double()
        if low == high and x.numel() <= FEW:
            return [struct.pack("<ffB", float(low), float(high), 0)]
        low32, high32 = x.min(), x.max()
        if low == high:  # equal codes: a blob of nine bytes must not claim many elements
            head = struct.pack("<ffB", float(low32), float(high32), 1)
            return [head, *_coded(torch.zeros(x.numel(), dtype=torch.uint8))]
        n, span = x.numel(), high - low
        step = max(1, n >> _SAMPLED)  # of long vectors an even sample says how many levels the budget allows
        sample = (x[::step].double() - low) / span
        u = philox.uniform(len(sample), key.dither, 0 if step == 1 else 1, 0, x.device).double()
        best, least, most = 1, 2, MOST
        while least <= most:  # the size grows with the number of levels, except for noise: bisect
            middle = (least + most) // 2
            index = (sample * middle + u).floor().clamp(0, middle).to(torch.int64) >> _plain_bits(middle)
            if entropy(torch.bincount(index, minlength=256)) + _plain_bits(middle) <= self.bits:
                best, least = middle, middle + 1
            else:
                most = middle - 1
        if x.device.type == "cpu" and fast.worth(n):
            codes = loops.levels_of(x, float(low), float(span), best, key.dither)
        else:
            codes = torch.empty(n, dtype=torch.uint8 if best < 256 else torch.int32, device=x.device)
            for start, stop in pieces(n, n, x.device):
                place = (x[start:stop].double() - low).div_(span).mul_(best)
                place += philox.uniform(stop - start, key.dither, 0, start, x.device)
                codes[start:stop] = place.floor_().clamp_(0, best)
        if best < 256:
            return [struct.pack("<ffB", float(low32), float(high32), best), *_coded(codes)]
        plain, head = _plain_bits(best), struct.pack("<ffBH", float(low32), float(high32), 0, best)
        upper, lower = (torch.empty(n, dtype=torch.uint8, device=x.device) for _ in range(2))
        for start, stop in pieces(n, n, x.device):
            upper[start:stop] = codes[start:stop] >> plain
            lower[start:stop] = codes[start:stop] & ((1 << plain) - 1)
        return [head, tensor_bytes(pack(lower, plain)), *_coded(upper)]

    def _parts(
        self, reader: Reader, header: Header, device: torch.device
    ) -> tuple[bytes, torch.Tensor | None, torch.Tensor]:
        """(one byte of code for each element, uint8 lower bits or None for at most 256 levels, fp32 values of the
        levels). If all values are equal there are no codes."""
        n = header.elements
        low, high, levels = reader.float32(), reader.float32(), reader.byte()
        if levels == 0 and not reader.left:
            return b"", None, torch.tensor([low], device=device)
        plain, rest, lower = 0, memoryview(b""), None
        if levels == 0:
            levels = reader.byte() | reader.byte() << 8
            if not 256 <= levels <= MOST:
                raise CodecError("the blob has an absurd number of levels")
            plain = _plain_bits(levels)
            rest = reader.take(packed_size(n, plain))
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
        upper, top = np.frombuffer(codes, np.uint8), levels >> plain
        most = int(upper.max())
        if plain:
            lower = unpack(bytes_tensor(rest, torch.uint8), n, plain)
            most = most << plain | int(lower.numpy()[upper == top].max()) if most == top else most << plain
        if most > levels:
            raise CodecError("the blob has a level that is not there")
        place = torch.arange(levels + 1, dtype=torch.float64, device=device)
        return codes, lower, (low + place * ((high - low) / levels)).to(torch.float32).clamp(-LARGEST, LARGEST)

    def opened(self, reader: Reader, header: Header) -> Put:
        codes, lower, table = self._parts(reader, header, torch.device("cpu"))
        codes = codes or bytes(header.elements)
        if (low := lower) is not None:
            bits = _plain_bits(len(table) - 1)
            return lambda out, weight: loops.add_levels(out, codes, low, bits, table, weight)
        one = torch.ones(1)
        return lambda out, weight: tabled.add_table(out, codes, table, one, header.elements, 8, weight)

    def plain(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        codes, lower, table = self._parts(reader, header, device)
        if not codes:
            return table.expand(header.elements).clone()
        if lower is not None:
            out = torch.empty(header.elements, device=device)
            _put(codes, lower, table, out)
            return out
        return table.index_select(0, bytes_tensor(codes, torch.uint8, device).to(torch.int32))


def _put(codes: bytes, lower: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
    """Levels of more than a byte, in torch: out = decoded."""
    upper, plain = bytes_tensor(codes, torch.uint8), _plain_bits(len(table) - 1)
    for start, stop in pieces(len(upper), len(upper), upper.device):
        level = upper[start:stop].to(torch.int32).bitwise_left_shift_(plain).bitwise_or_(lower[start:stop])
        out[start:stop] = table.index_select(0, level.to(table.device))


def _plain_bits(last: int) -> int:
    """How many low bits of a level are packed plainly, so that the rest is a byte; they are nearly uniform."""
    return max(0, last.bit_length() - 8)


def _coded(index: torch.Tensor) -> list[Buffer]:
    """Levels, Huffman coded."""
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    return [coder.compress(tensor_bytes(index)), coder.flush()]
