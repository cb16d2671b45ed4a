"""A blob of a stranger, its checksum right, makes a decoder allocate no more than its bytes can be worth."""

import os
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from farflung import compress
from farflung.compress import CodecError
from farflung.compress.blobs import claims
from farflung.compress.blobs.wire import open_blob, varint
from farflung.compress.cpu import dispatch as fast

EVERY = compress.names()
EXTREMES = """topk:ratio=1e-6 topk:ratio=0.00001,values=bf16 cocktail:random=0.001,top=0.0001,bits=1
cocktail:bits=1,top=0.0001 cocktail:bits=8,values=log dynamiq:bits=8 rotq:bits=8 eden:bits=0.05 quicfl:bits=1
randomk:ratio=0.001 avq:bits=8 powersgd:rank=1 demo:k=1 chunked_topk:k=1,bits=1 aqsgd:first_bits=2,bits=8
docofl:bits=8 docofl:bits=1""".split()  # noqa: SIM905
MOST = 64 << 20


class _Largest(TorchDispatchMode):
    """The bytes of the largest tensor that an operation makes."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(one, torch.Tensor):
                self.bytes = max(self.bytes, one.untyped_storage().nbytes())
        return out


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """What torch and numba import at their first use is not a decoder's memory."""
    with _Largest():
        torch.zeros(3)
    fast.available()


@contextmanager
def within_memory() -> Iterator[None]:
    """Neither a tensor nor Python and numpy together take more than 64 MiB."""
    tracemalloc.start()
    try:
        with _Largest() as largest:
            yield
        assert largest.bytes < MOST
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def sealed(blob: bytes | bytearray) -> bytes:
    """The blob with its checksum made right."""
    head, rest = bytes(blob[:4]), bytes(blob[8:])
    return head + struct.pack("<I", zlib.crc32(rest, zlib.crc32(head))) + rest


def claiming(blob: bytes, shape: tuple[int, ...]) -> bytes:
    """The blob of a vector of 200 or of an empty one, with another shape."""
    assert blob[9] == 1 and blob[10] in (0, 200), "the header's layout changed: change this test with it"
    rest = blob[11 if not blob[10] else 12 :]
    return sealed(blob[:9] + varint(len(shape)) + b"".join(map(varint, shape)) + rest)


NUMBERS = torch.linspace(-1, 2, 200).sin()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("shape", [(0, 1 << 63), (1 << 63, 0), (0, 1 << 33, 1 << 33), (1 << 32, 1 << 32), (1,) * 17])
def test_a_shape_whose_sizes_wrap_is_refused(name: str, shape: tuple[int, ...]) -> None:
    blob = claiming(compress.make(name).encode(torch.empty(0), seed=1, step=2), shape)
    for limit in (None, claims.MAX_ELEMENTS):
        with pytest.raises(CodecError):
            compress.decode(blob, limit=limit)
    for take in (compress.add, compress.decode_into):
        with pytest.raises(CodecError):
            take(blob, torch.empty(0))


@pytest.mark.parametrize("name", EVERY)
def test_an_empty_tensor_keeps_its_shape(name: str) -> None:
    codec = compress.make(name)
    assert compress.decode(codec.encode(torch.empty(3, 0, 5))).shape == (3, 0, 5)
    with pytest.raises(CodecError, match="more than"):
        codec.encode(torch.empty(0, 1 << 40))


@pytest.mark.parametrize("name", EVERY)
def test_a_short_blob_can_not_claim_a_long_tensor(name: str) -> None:
    blob = compress.make(name).encode(NUMBERS, seed=1, step=2)
    for size in (1 << 20, 1 << 24, 1 << 28, 1 << 34):
        for limit in (None, claims.MAX_ELEMENTS):
            with within_memory(), pytest.raises(CodecError):
                compress.decode(claiming(blob, (size,)), limit=limit)


@pytest.mark.parametrize("spec", [*EVERY, *EXTREMES])
@settings(max_examples=8)
@given(kind=st.sampled_from(["zeros", "spike", "front", "normal"]), seed=st.integers(0, 1000))
def test_what_encoders_write_is_long_enough_to_be_believed(spec: str, kind: str, seed: int) -> None:
    x = torch.zeros(5000)
    if kind == "spike":
        x[seed] = 1.0
    elif kind != "zeros":
        made = torch.randn(5000 if kind == "normal" else 50, generator=torch.Generator().manual_seed(seed))
        x[: len(made)] = made
    header, reader = open_blob(compress.make(spec).encode(x, seed=seed))
    if header.spec.name == "docofl" and reader.left == 9:
        return  # one level: written for few elements only
    assert 8 * 10 * (reader.left + 8) > header.spec.declaration.bits(dict(header.spec.values), 5000)


def test_docofl_writes_codes_for_a_long_constant() -> None:
    for size in (claims.FEW, claims.FEW + 1):
        x = torch.full((size,), 0.1)
        blob = compress.make("docofl").encode(x)
        assert torch.equal(compress.decode(blob), x)
        assert size <= claims.FEW or 8 * len(blob) > size


def test_docofl_refuses_a_bomb_before_it_is_large() -> None:
    count = 1 << 26
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = b"".join(coder.compress(bytes(1 << 20)) for _ in range(count >> 20)) + coder.flush()
    head = compress.make("docofl").encode(NUMBERS)
    at = len(head) - open_blob(head)[1].left
    blob = claiming(head[:at] + struct.pack("<ffB", -1.0, 1.0, 15) + packed, (count,))
    for limit in (None, count):
        with within_memory(), pytest.raises(CodecError, match="too many for its"):
            compress.decode(blob, limit=limit)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=12)
@given(data=st.data())
def test_a_changed_blob_is_decoded_or_refused_in_little_memory(name: str, data: st.DataObject) -> None:
    blob = bytearray(compress.make(name).encode(NUMBERS, seed=1, step=2))
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["byte", "cut", "grow", "number"]))
        at = data.draw(st.integers(8, max(8, min(len(blob) - 1, 40 if data.draw(st.booleans()) else len(blob)))))
        if kind == "byte":
            blob[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
        elif kind == "cut":
            del blob[at:]
        elif kind == "grow":
            blob[at:at] = data.draw(st.binary(max_size=6))
        else:
            blob[at : at + 1] = varint(data.draw(st.integers(0, (1 << 64) - 1)))
    with within_memory():
        try:
            compress.decode(sealed(blob), limit=1 << 20)
        except CodecError:
            return


def test_fp16_on_a_processor_without_a_conversion() -> None:
    """LLVM calls a function for it there, which numba lacks: the process ended."""
    pytest.importorskip("numba")
    code = (
        "import torch; from farflung import compress; x = torch.arange(1 << 17) % 2048 / 64.0; out = x.clone()\n"
        "blob = compress.make('fp16').encode(x); compress.norm(blob, len(x)); compress.add(blob, out, 2.0)\n"
        "assert torch.equal(out, x * 3)"
    )
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
