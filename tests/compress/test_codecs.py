"""What holds for every codec, whatever it is."""

import struct
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung import compress
from farflung.compress import CodecError
from farflung.compress.blobs.wire import VERSION, varint
from farflung.compress.codec import tensor_bytes

SIZES = (0, 1, 2, 31, 32, 33, 127, 257, 1009)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
EVERY = [pytest.param(name, id=name) for name in compress.names()]
# 1.5-bit and 0.5-bit vectors, sketches of few values and so on can't be held to a bound on any one vector
LOSSY = set(compress.names()) - {"none", "fp16", "bf16", "int8"}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("size", SIZES)
def test_any_size_comes_back_in_shape_and_dtype(name: str, size: int) -> None:
    for dtype in DTYPES:
        x = torch.randn(size).to(dtype)
        before = x.clone()
        y = compress.decode(compress.make(name).encode(x, seed=5, step=3))
        assert y.shape == x.shape and y.dtype == dtype and bool(torch.isfinite(y).all())
        assert torch.equal(x, before), "the input was changed"


@pytest.mark.parametrize("name", EVERY)
def test_shapes_views_and_scalars(name: str) -> None:
    base = torch.randn(6, 40, 5)
    codec = compress.make(name)
    view = base.transpose(0, 2)[:, ::2]
    assert codec.encode(view, seed=1) == codec.encode(view.contiguous(), seed=1)
    assert compress.decode(codec.encode(view)).shape == view.shape
    assert compress.decode(codec.encode(torch.tensor(1.5))).shape == ()
    parameter = torch.nn.Parameter(torch.randn(64))
    assert not compress.decode(codec.encode(parameter)).requires_grad


@pytest.mark.parametrize("name", EVERY)
def test_the_same_input_gives_the_same_bytes(name: str) -> None:
    x = torch.randn(3000)
    codec = compress.make(name)
    assert codec.encode(x, seed=9, step=4) == codec.encode(x, seed=9, step=4)


@pytest.mark.parametrize("name", EVERY)
def test_zeros_decode_to_zeros(name: str) -> None:
    for step in range(10):
        y = compress.decode(compress.make(name).encode(torch.zeros(300), step=step))
        assert torch.equal(y, torch.zeros(300))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("exponent", [-40, 40])
def test_scaling_by_a_power_of_two_scales_the_result(name: str, exponent: int) -> None:
    if name == "fp16":
        exponent //= 10  # half precision has a range
    x = torch.randn(2000)
    codec = compress.make(name)
    one = compress.decode(codec.encode(x * 16, seed=2, step=6))
    scaled = compress.decode(codec.encode(x * 16 * 2.0**exponent, seed=2, step=6))
    assert torch.equal(one * 2.0**exponent, scaled)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_refused(name: str, bad: float) -> None:
    for at in (0, 500, 999):
        x = torch.randn(1000)
        x[at] = bad
        with pytest.raises(CodecError, match="1 of 1000 values are not finite"):
            compress.make(name).encode(x)


@pytest.mark.parametrize("name", EVERY)
def test_odd_values_are_survived(name: str) -> None:
    codec = compress.make(name)
    huge = torch.randn(700)
    huge[13] = 3e4
    vectors = [
        torch.full((700,), 1.25),
        torch.full((700,), 1e-40),
        huge,
        torch.zeros(700).index_fill(0, torch.tensor([3]), 1e-3),
    ]
    if name != "fp16":
        vectors += [torch.full((700,), 1e30), torch.randn(700) * 1e-38]
    if name.partition(":")[0] not in ("fp16", "quicfl", "thc"):  # which refuse a norm beyond fp32
        vectors += [torch.full((700,), -3e38)]
    for x in vectors:
        for step in (0, 1):
            assert bool(torch.isfinite(compress.decode(codec.encode(x, step=step))).all())


@pytest.mark.parametrize("name", EVERY)
def test_integers_and_absurd_seeds_are_refused(name: str) -> None:
    codec = compress.make(name)
    for bad in (torch.arange(4), torch.ones(4, dtype=torch.complex64), torch.ones(4, dtype=torch.bool)):
        with pytest.raises(CodecError):
            codec.encode(bad)


@pytest.mark.parametrize("name", EVERY)
def test_decode_and_add_is_decode_then_add(name: str) -> None:
    x = torch.randn(3000)
    blob = compress.make(name).encode(x, seed=3, step=8)
    decoded = compress.decode(blob)
    for weight in (1.0, 0.3):
        start = torch.randn(3000)
        out = start.clone()
        compress.add(blob, out, weight)
        assert torch.equal(out, start + decoded * torch.tensor(weight, dtype=torch.float32))
    into = torch.empty(3000)
    compress.decode_into(blob, into)
    assert torch.equal(into, decoded)
    with pytest.raises(CodecError):
        compress.add(blob, torch.zeros(2999))


@pytest.mark.parametrize("name", EVERY)
def test_truncated_and_flipped_blobs_are_refused(name: str) -> None:
    blob = compress.make(name).encode(torch.randn(300), seed=1, step=2)
    for end in {0, 3, 8, 10, len(blob) // 2, len(blob) - 1}:
        with pytest.raises(CodecError):
            compress.decode(blob[:end])
    with pytest.raises(CodecError):
        compress.decode(blob + b"\0")
    for at in range(0, len(blob), max(1, len(blob) // 40)):
        flipped = bytearray(blob)
        flipped[at] ^= 0x10
        with pytest.raises(CodecError):
            compress.decode(bytes(flipped))


def reseal(blob: bytes) -> bytes:
    """The blob with its checksum made right again: what a stranger who knows the format can send."""
    return blob[:4] + struct.pack("<I", zlib.crc32(blob[8:], zlib.crc32(blob[:4]))) + blob[8:]


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=12)
@given(st.data())
def test_a_hostile_blob_with_a_right_checksum_is_decoded_or_refused(name: str, data: st.DataObject) -> None:
    blob = bytearray(compress.make(name).encode(torch.linspace(-1, 2, 200).sin(), seed=1, step=2))
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["flip", "cut", "grow"]))
        at = data.draw(st.integers(8, max(8, len(blob) - 1)))
        if kind == "flip" and at < len(blob):
            blob[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del blob[at:]
        else:
            blob[at:at] = data.draw(st.binary(max_size=6))
    try:
        y = compress.decode(reseal(bytes(blob)), limit=1 << 20)
    except CodecError:
        return
    assert bool(torch.isfinite(y).all())


@pytest.mark.parametrize("name", EVERY)
def test_an_absurd_shape_is_refused_before_anything_is_made(name: str) -> None:
    blob = compress.make(name).encode(torch.randn(200), seed=1, step=2)
    assert blob[9:11] == b"\x01" + b"\xc8", "the header's layout changed: change this test with it"
    for size in (1 << 33, 1 << 40, 1 << 63):
        with pytest.raises(CodecError):
            compress.decode(reseal(blob[:10] + varint(size) + blob[12:]))
    with pytest.raises(CodecError, match="more than 100 elements"):
        compress.decode(blob, limit=100)
    with pytest.raises(CodecError, match=f"version {VERSION + 1}"):
        compress.decode(reseal(blob[:2] + bytes([VERSION + 1]) + blob[3:]))
    with pytest.raises(CodecError, match="codec number 255"):
        compress.decode(reseal(blob[:3] + b"\xff" + blob[4:]))


@pytest.mark.parametrize("name", EVERY)
def test_the_header_is_small(name: str) -> None:
    blob = compress.make(name).encode(torch.randn(0), seed=(1 << 64) - 1, step=100_000)
    assert len(blob) <= 32


def test_the_bytes_of_a_column_are_those_of_its_values() -> None:
    column = torch.arange(16.0)[None, :].t()
    assert column.is_contiguous() and column.stride(-1) != 1
    assert bytes(tensor_bytes(column)) == column.numpy().tobytes()
