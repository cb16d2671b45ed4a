"""``none``, ``fp16`` and ``bf16``: the values themselves, or rounded to a shorter float."""

from __future__ import annotations

import torch

from .codec import DTYPES, Codec, bytes_tensor, flatten, tensor_bytes
from .errors import CodecError
from .phases import Context, Program, Reduce
from .philox import Key
from .wire import Buffer, Header, Reader, build


class Plain(Codec):
    """The bytes of the tensor in its own dtype: decode gives the same bits."""

    def encode(self, x: torch.Tensor, seed: int = 0, step: int = 0, rank: int = 0) -> bytes:
        flat, dtype = flatten(x, exact=True)
        return build(self.spec, dtype, tuple(x.shape), [tensor_bytes(flat)], None, None)

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        return [tensor_bytes(x)]

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        dtype = DTYPES[header.dtype]
        return finite(bytes_tensor(reader.take(header.elements * dtype.itemsize), dtype, device))

    def rounds(self, x: torch.Tensor, context: Context) -> Program:
        """One plain reduction: nobody needs to see the others' values."""
        flat, _ = flatten(x)
        weighted = flat if context.weight == 1.0 else flat * context.weight
        total = yield Reduce(weighted, "sum")
        context.own = weighted
        return total.view(x.shape)  # type: ignore[no-any-return]


class Cast(Codec):
    """Rounded to nearest even in fp16 or bf16. fp16 refuses what it can't hold (more than 65504)."""

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        short = x.to(self._dtype)
        if not bool(torch.isfinite(short.sum(dtype=torch.float32))) and not bool(torch.isfinite(short).all()):
            largest = float(x.abs().max())
            raise CodecError(f"a value of {largest:g} is beyond {self.spec.name}: use bf16 or a scaled codec")
        return [tensor_bytes(short)]

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        return finite(bytes_tensor(reader.take(header.elements * 2), self._dtype, device)).to(torch.float32)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float16 if self.spec.name == "fp16" else torch.bfloat16


def finite(values: torch.Tensor) -> torch.Tensor:
    """The values, or CodecError: a stranger's blob can have a right checksum and a NaN."""
    wide = torch.float32 if values.itemsize == 2 else None  # fp16 sums overflow soon; others are looked at twice then
    if not bool(torch.isfinite(values.sum(dtype=wide))) and not bool(torch.isfinite(values).all()):
        raise CodecError("the blob has values that are not finite")
    return values
