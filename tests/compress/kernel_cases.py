"""The Triton kernels against the CPU code, bit for bit. Run with TRITON_INTERPRET=1 on the CPU, or on a GPU."""

import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import far_device

from farflung.compress import CodecError, add, decode, make, names
from farflung.compress.blobs import pieces
from farflung.compress.blobs.pieces import fetch_packed
from farflung.compress.blobs.wire import Reader
from farflung.compress.cpu import dispatch as fast
from farflung.compress.gpu import checksum
from farflung.compress.gpu import dispatch as gpu
from farflung.compress.primitives import rotation, scales, selection
from farflung.compress.primitives.key import Key
from farflung.compress.primitives.packing import pack, packed_size, put
from farflung.compress.primitives.rotation import Segment
from farflung.compress.primitives.tables import lloyd
from farflung.compress.quantizers.groups import Group
from farflung.compress.rotated.eden import Eden
from farflung.compress.sparsifiers import masks, masks_there, runs
from farflung.compress.sparsifiers.cocktail import BUCKET
from farflung.compress.summable.thc import Thc

LONG = 5_001
"""Elements: two whole blocks of a kernel and a part of one, or a whole block of a rotation and shorter ones."""
KEY = Key(0xF23456789ABCDEF1, 77)
MEMBER = Key(KEY.seed, 0x80000001, 5, 7)
"""One of seven, who share their dither."""


def equal(name: str, one: torch.Tensor, other: torch.Tensor) -> None:
    one, other = one.cpu(), other.cpu()
    assert one.shape == other.shape and torch.equal(one, other), (
        f"{name}: {int((one != other).sum())} of {one.numel()} differ"
    )


def group(device: str) -> None:
    for n in (1, 31, 2048, LONG):
        x = torch.randn(n) * torch.exp(2 * torch.randn(n))
        for bits in (4, 8):
            for size in (32, 128):
                for rounding, key in (("nearest", KEY), ("stochastic", KEY), ("stochastic", MEMBER)):
                    codec = make(f"int{bits}:group={size},rounding={rounding}")
                    assert isinstance(codec, Group)
                    steps, codes = codec.quantize(x, key)
                    flag = gpu.new_flag(torch.device(device))
                    got = gpu.group_encode(x.to(device), size, bits, rounding == "stochastic", key.dither, flag)
                    equal("steps", got[0], steps)
                    equal("codes", got[1], pack(codes, bits))
                    assert not int(flag)
                    level = codes.float() - float(1 << (bits - 1))
                    value = level * scales.to_scales(steps).repeat_interleave(size)[:n]
                    out = torch.empty(n, device=device)
                    gpu.group_decode(got[1], got[0], out, size, bits, None)
                    equal("decoded", out, value)
                    out = torch.linspace(-1, 1, n).to(device)
                    gpu.group_decode(got[1], got[0], out, size, bits, 0.3)
                    equal("added", out, torch.linspace(-1, 1, n) + value * torch.tensor(0.3))


def cocktail(device: str) -> None:
    n = 10_003  # two whole blocks of offered elements and a part of one; the last run is a short one, and offered
    g = torch.randn(n)
    for x in (torch.randn(n), g + torch.randn(n).round(), g.clone(), g + 1e-42):
        offer = runs.offer(n, 0.5, 64, Key(KEY.seed, 1))
        assert offer.runs[-1] == n // 64 and offer.elements % 64 and offer.elements > 2 * gpu.BLOCK
        where = torch.from_numpy(offer.runs).to(device)
        values, counts = gpu.offered(x.to(device), g.to(device), where, offer.run, offer.elements)
        delta = offer.gather((x - g).numpy())
        equal("delta", values, torch.from_numpy(delta))
        equal("x alone", gpu.offered(x.to(device), None, where, offer.run, offer.elements)[0], offer.select(x))
        for k in (1, offer.elements // 5, offer.elements):
            index, kept = gpu.largest(values, counts, k)
            chosen = torch.from_numpy(selection.largest(delta, k))
            equal("chosen", index.long(), chosen)
            equal("kept", kept, torch.from_numpy(delta)[chosen])
            codec = make("int4:rounding=nearest")
            assert isinstance(codec, Group)
            steps, codes = codec.quantize(kept.cpu(), KEY)
            local = x.clone().to(device)
            for target in (None, local):
                got = gpu.quantize_kept(kept, index, where, offer.run, BUCKET, target)
                equal("steps", got[0], steps)
                equal("codes", got[1], pack(codes, 4))
            decoded = (codes.float() - 8.0) * scales.to_scales(steps).repeat_interleave(BUCKET)[: len(codes)]
            at = torch.from_numpy(offer.positions(chosen.numpy()))
            left = x.clone()
            left[at] = left[at] - decoded
            equal("what is left", local, left)
            out = torch.linspace(-1, 1, n).to(device)
            gpu.sparse_add(out, where, offer.run, index, got[1], got[0], BUCKET, 0.3)
            expected = torch.linspace(-1, 1, n)
            expected[at] = expected[at] + decoded * torch.tensor(0.3)
            equal("sparse add", out, expected)


def turned(device: str) -> None:
    for size, rows, origin in ((512, 5, 8192), (1 << 14, 2, 1 << 16)):
        x = torch.randn(rows, size)
        segment = Segment(0, x.numel(), rows, size, origin, 0)
        there, gpu.available = gpu.available, lambda device: False  # type: ignore[assignment]
        forth, back = (each(x, segment, KEY, 2) for each in (rotation.forward, rotation.backward))
        gpu.available = there
        equal("turned", rotation.forward(x.to(device), segment, KEY, 2), forth)
        equal("turned back", rotation.backward(x.to(device), segment, KEY, 2), back)


def eden(device: str) -> None:
    for block, bits, biased in ((4096, 1, False), (4096, 1, True), (4096, 2, False), (512, 3, True), (8192, 4, False)):
        x = (torch.randn(2 * block) * torch.tensor([1e-3, 1e4]).repeat_interleave(block)).view(2, block)
        origin = 4 * block
        segment = Segment(0, 2 * block, 2, block, origin, 0)
        codec, count = make(f"eden:bits={bits},block={block},biased={str(biased).lower()}"), 6 * block + 8
        assert isinstance(codec, Eden)
        there, gpu.available = gpu.available, lambda device: False  # type: ignore[assignment]
        factor = torch.empty(2)
        code = codec._rows(x, segment, KEY, factor)
        packed = torch.zeros(packed_size(count, bits), dtype=torch.uint8)
        put(packed, code.view(-1), bits, count, origin)
        value = rotation.backward(codec.levels(code, None), segment, KEY) * factor[:, None]
        gpu.available = there
        got, flag = torch.zeros_like(packed, device=device), gpu.new_flag(torch.device(device))
        factors = torch.empty(2, device=device)
        gpu.eden_encode(x.to(device), bits, KEY, origin, count, got, factors, flag, biased)
        equal("eden codes", got, packed)
        equal("eden factors", factors, factor)
        assert not int(flag)
        table = lloyd(bits, torch.device(device))
        out = torch.empty(2, block, device=device)
        gpu.eden_decode(got, table, KEY, origin, count, factors, out, None)
        equal("eden decoded", out, value)
        out = torch.ones(2, block, device=device)
        gpu.eden_decode(got, table, KEY, origin, count, factors, out, 0.3)
        equal("eden added", out, 1 + value * torch.tensor(0.3))


def thc(device: str) -> None:
    for spec in ("thc:block=4096", "thc", "thc:bits=2,granularity=0"):
        codec, x = make(spec), torch.randn(1 << 14)
        assert isinstance(codec, Thc)
        lengths = codec.statistic(x)
        for key in (Key(KEY.seed, KEY.step, 3), MEMBER):
            there, gpu.available = gpu.available, lambda device: False  # type: ignore[assignment]
            levels = codec.levels(x, lengths, key, 1)
            gpu.available = there
            equal("thc levels", codec.levels(x.to(device), lengths.to(device), key, 1), levels)


def checksums(device: str) -> None:
    """The checksum that the device computes is crc32."""
    least, checksum.LEAST = checksum.LEAST, 1
    head = b"some bytes before"
    # less than a word, and a piece of nothing; two blocks, and bytes that are no word
    for count in (1, 4 * checksum.ROWS * checksum.COLUMNS + 9):
        body = torch.randint(0, 256, (count,), dtype=torch.uint8)
        found, rest = pieces.fetch([body[: count // 2].to(device), body[count // 2 :].to(device)])
        assert b"".join(found) == body.numpy().tobytes() and rest is not None
        assert checksum.joined(zlib.crc32(head), rest, count) == zlib.crc32(body.numpy(), zlib.crc32(head)), count
    checksum.LEAST = least


def positions(device: str) -> None:
    """Masks that a device makes and reads are those of the CPU, and what is no mask is refused before it is used."""
    for size, count in ((1, 1), (100, 0), (1000, 1), (1000, 200), (5000, 3000), (1 << 20, 20), (1 << 16, 13_000)):
        there = torch.randperm(size)[:count].sort().values
        for how in ("auto", "rice", "bitmap"):
            data = masks.encode(there.numpy(), size, how)
            (made,), _ = pieces.fetch([masks_there.encode(there.to(device), size, how)])
            assert bytes(made) == data, (size, count, how)
            reader = Reader(data)
            equal("positions", masks_there.decode(reader, count, size, torch.device(device)), there)
            reader.end()
            for place in range(0, len(data), -(-len(data) // 50)):
                for flip in (1, 0x80):
                    changed = data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :]
                    assert refused(masks.decode, changed, count, size) == refused(
                        lambda r, c, s: masks_there.decode(r, c, s, torch.device(device)), changed, count, size
                    ), (size, count, how, place)  # fmt: skip


def refused(decode: Callable[..., Any], data: bytes, count: int, size: int) -> bool:
    reader = Reader(data)
    try:
        decode(reader, count, size)
        reader.end()
    except CodecError:
        return True
    return False


def strangers(device: str) -> None:
    """What is not finite, or can't be done by the kernels, is found when the blob is asked for."""
    for spec in ("int4", "eden:bits=2", "thc", "cocktail:random=0.5", "bf16", "qsgd"):
        codec = make(spec)
        for at in (3, LONG - 1):
            for bad in (float("nan"), float("inf"), -float("inf")):
                x = torch.randn(LONG).to(device)
                x[at] = bad
                try:
                    codec.stage(x, 3, 1).pieces()
                except CodecError as error:
                    assert f"1 of {LONG} values are not finite" in str(error)
                else:
                    raise AssertionError(f"{spec} takes {bad} at {at}")
    large = torch.full((9_000,), 3e37).to(device)  # their sum is beyond fp32, their norm too
    make("int4").encode(large), make("cocktail").encode(large)
    try:
        make("thc").encode(large)
    except CodecError as error:
        assert "norm of a block is beyond" in str(error)
    else:
        raise AssertionError("a length beyond fp32 was sent")
    whole = make("int4").encode(x.nan_to_num(), 3, 1)
    large, pieces.LARGE = pieces.LARGE, 100  # each piece in a copy of its own, where they are too large for one
    assert make("int4").encode(x.nan_to_num(), 3, 1) == whole
    try:
        make("int4").encode(x, 3, 1)
    except CodecError:
        pieces.LARGE = large
    else:
        raise AssertionError("int4 takes what is not finite")


KERNELS = ["int4", "int8", "eden:bits=2", "eden:bits=1,biased=true", "eden", "thc", "cocktail", "cocktail:values=log"]
PLAIN = ["mxfp8", "mxfp4", "nf4", "qsgd", "nuqsgd", "natural", "terngrad", "tile", "global_qsgd", "int8_tensor"]

HOPS = ["rotq", "dynamiq"]


def waits(device: str) -> None:
    """How often an encoder and a decoder wait for the device: for the one copy of the blob, and never."""
    if device != "cpu":
        return  # there the emulated device counts
    launch = gpu.launch
    gpu.launch = lambda kernel, programs, *a, **k: launch(kernel, programs, *map(far_device.near, a), **k)
    with far_device.far_device() as far, far_device.counted() as waited:
        x = torch.randn(LONG).to(far)
        for spec in PLAIN:  # to see whether all is finite, and for the copy
            waited.clear()
            make(spec).encode(x, 3, 1)
            assert len(waited) <= 2, f"{spec} waits {waited} to encode"
        for spec in HOPS:  # the largest value, the blocks' energies, and the copy
            waited.clear()
            blob = make(spec).encode(x, 3, 1)
            assert len(waited) <= 4, f"{spec} waits {waited} to encode"
            waited.clear()
            add(blob, torch.zeros(LONG, device=far), 0.5)
            assert not waited, f"{spec} waits {waited} to decode"
        waited.clear()
        make("bf16").encode(x)
        assert len(waited) == 1, f"bf16 waits {waited} to encode"
        for spec in KERNELS:
            waited.clear()
            blob = make(spec).encode(x, 3, 1)
            assert len(waited) == 1, f"{spec} waits {waited} to encode"
            waited.clear()
            out = torch.zeros(LONG, device=far)
            add(blob, out, 0.5)
            assert not waited, f"{spec} waits {waited} to decode"
            waited.clear()
            staged = [make(spec).stage(x, 3, step) for step in range(3)]
            assert not waited, f"{spec} waits {waited} to begin"
            assert b"".join(staged[1].pieces()) == blob
            waited.clear()
            packed, length = [one.packed() for one in staged], torch.linalg.vector_norm(x)
            assert not waited, f"{spec} waits {waited} to pack"
            found, (came,) = fetch_packed(packed, [length])
            assert waited == ["cpu"], f"{spec} waits {waited} for three blobs"
            assert b"".join(found[1] or ()) == blob and float(came) == float(far_device.near(length))
    gpu.launch = launch


DISPATCHED = [
    "thc",
    "thc:block=4096",
    "eden:bits=2",
    "eden:bits=3,block=1024",
    "eden:bits=1,biased=true",
    "eden:bits=4,biased=true,block=512",
    "int4",
    "int8:rounding=nearest",
    "eden",
    "drive",
    "cocktail",
    "cocktail:values=log,random=0.5",
]
NOT_DISPATCHED = ["int2", "eden:bits=6", "int4:scale=32"]


def dispatch(device: str) -> None:
    """Whole blobs and sums through the front door, with the kernels and without."""
    calls: list[str] = []
    for kernel in ("group_encode", "group_decode", "eden_encode", "eden_decode", "largest", "sparse_add", "thc_encode"):
        launch = getattr(gpu, kernel)
        setattr(gpu, kernel, lambda *a, _launch=launch, _name=kernel: (calls.append(_name), _launch(*a))[1])
    there = gpu.available
    for spec in DISPATCHED + NOT_DISPATCHED:
        for n in (5, LONG):
            for x in (
                torch.randn(n) * torch.exp(torch.randn(n)),
                torch.zeros(n),
                torch.randn(n) * 1e-39 * (torch.arange(n) % 3),
            ):
                gpu.available = lambda device: False  # type: ignore[assignment]
                blob, expected = make(spec).encode(x, 3, 1), torch.linspace(-1, 1, n)
                add(blob, expected, 0.3)
                gpu.available = there
                calls.clear()
                assert make(spec).encode(x.to(device), 3, 1) == blob, f"{spec} of {n}: other bytes"
                out = torch.linspace(-1, 1, n).to(device)
                add(blob, out, 0.3)
                equal(f"{spec} of {n}, added", out, expected)
                assert n == 5 or x[0] == 0 or bool(calls) == (spec in DISPATCHED), f"{spec} of {n} called {calls}"


# Their encoders use matrix products, logarithms or other sums whose last bit is the device's own.
ABOUT = (
    "powersgd",
    "demo",
    "quicfl",
    "turboquant",
    "avq",
    "docofl",
    "rotq",
    "dynamiq",
    "intsgd",
    "thc",
    "sign",
    "qsgd",
)
ABOUT += ("nuqsgd", "terngrad", "tile", "global_qsgd", "aqsgd")


def plain(device: str) -> None:
    """Every codec takes the device's tensors where there are no kernels, and gives them back there."""
    there, gpu.available = gpu.available, lambda device: False  # type: ignore[assignment]
    x = torch.randn(3, 3001)
    for name in names():
        blob, other = make(name).encode(x, 3, 1), make(name).encode(x.to(device), 3, 1)
        assert name in ABOUT or blob == other, f"{name}: other bytes"
        here, away = decode(other), decode(other, device)
        assert away.device.type == torch.device(device).type and here.shape == away.shape
        assert (here - away.cpu()).norm() <= 1e-5 * here.norm(), f"{name}: decodes to something else"
        assert name in ABOUT or torch.equal(here, away.cpu()), f"{name}: decodes to other bits"
    gpu.available = there


CASES = [group, cocktail, turned, eden, thc, checksums, positions, strangers, waits, dispatch, plain]


def main(device: str) -> None:
    fast.available = lambda: False  # type: ignore[assignment]
    torch.manual_seed(0)
    for case in [one for one in CASES if not sys.argv[2:] or one.__name__ in sys.argv[2:]]:
        case(device)
        print(f"{case.__name__}: the same bits", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
