"""The Triton kernels against the CPU code, bit for bit. Run with TRITON_INTERPRET=1 on the CPU, or on a GPU."""

import sys

import torch

from farflung.compress import add, decode, make, names
from farflung.compress.cpu import dispatch as fast
from farflung.compress.gpu import dispatch as gpu
from farflung.compress.primitives import rotation, scales, selection
from farflung.compress.primitives.key import Key
from farflung.compress.primitives.packing import pack
from farflung.compress.primitives.rotation import Segment
from farflung.compress.quantizers.eden import Eden
from farflung.compress.quantizers.groups import Group
from farflung.compress.sparsifiers import runs
from farflung.compress.sparsifiers.cocktail import BUCKET
from farflung.compress.summable.thc import Thc

KEY = Key(0x123456789ABCDEF, 77)


def equal(name: str, one: torch.Tensor, other: torch.Tensor) -> None:
    one, other = one.cpu(), other.cpu()
    assert one.shape == other.shape and torch.equal(one, other), (
        f"{name}: {int((one != other).sum())} of {one.numel()} differ"
    )


def group(device: str) -> None:
    for n in (1, 31, 2048, 5001):
        x = torch.randn(n) * torch.exp(2 * torch.randn(n))
        for bits in (4, 8):
            for size in (32, 128):
                for rounding in ("nearest", "stochastic"):
                    codec = make(f"int{bits}:group={size},rounding={rounding}")
                    assert isinstance(codec, Group)
                    steps, codes = codec.quantize(x, KEY)
                    got = gpu.group_encode(x.to(device), size, bits, rounding == "stochastic", KEY)
                    equal("steps", got[0], steps)
                    equal("codes", got[1], pack(codes, bits))
                    level = codes.float() - float(1 << (bits - 1))
                    value = level * scales.to_scales(steps).repeat_interleave(size)[:n]
                    out = torch.empty(n, device=device)
                    gpu.group_decode(got[1], got[0], out, size, bits, None)
                    equal("decoded", out, value)
                    out = torch.linspace(-1, 1, n).to(device)
                    gpu.group_decode(got[1], got[0], out, size, bits, 0.3)
                    equal("added", out, torch.linspace(-1, 1, n) + value * torch.tensor(0.3))
                    local = torch.randn(n)
                    hop = gpu.group_hop(got[1], got[0], local.to(device), size, bits, rounding == "stochastic", KEY)
                    steps, codes = codec.quantize(value + local, KEY)
                    equal("hop steps", hop[0], steps)
                    equal("hop codes", hop[1], pack(codes, bits))


def sign(device: str) -> None:
    for n in (8, 2048, 5000):
        gradient, error = torch.randn(n), torch.randn(n)
        kept = error.clone().to(device)
        bits, scale = gpu.sign_with_feedback(gradient.to(device), kept)
        total = gradient + error
        assert abs(float(scale) / float(total.abs().mean()) - 1) < 1e-5
        equal("sign bits", bits, pack((total >= 0).to(torch.uint8), 1))
        size = scale.cpu()
        equal("sign error", kept, total - torch.where(total >= 0, size, -size))


def cocktail(device: str) -> None:
    n = 40_003  # the last run is a short one, and offered
    g = torch.randn(n)
    for x in (torch.randn(n), g + torch.randn(n).round(), g.clone(), g + 1e-42):
        offer = runs.offer(n, 0.5, 64, Key(KEY.seed, 1))
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


def eden(device: str) -> None:
    for block in (4096, 8192):
        x = torch.randn(2 * block) * torch.tensor([1e-3, 1e4]).repeat_interleave(block)
        segment = Segment(0, 2 * block, 2, block, 0, 0)
        rows = x.view(2, block)
        equal("rotated", gpu.rotate(x.to(device), block, KEY), rotation.forward(rows, segment, KEY).view(-1))
        equal(
            "rotated back", gpu.rotate(x.to(device), block, KEY, True), rotation.backward(rows, segment, KEY).view(-1)
        )
        for bits in (1, 4):
            codec = make(f"eden:bits={bits},block={block}")
            assert isinstance(codec, Eden)
            scaled, exponent = rotation.rescale(rows)
            energy = rotation.energy(scaled)
            turned = rotation.forward(scaled, segment, KEY)
            code = codec.quantize(turned / energy.sqrt().float()[:, None], None)
            levels = codec.levels(code, None)
            factor = torch.ldexp(codec.factor(turned, levels, energy, segment).float(), exponent)
            packed, factors = gpu.eden_encode(x.to(device), block, bits, KEY)
            equal("eden codes", packed, pack(code.view(-1), bits))
            equal("eden factors", factors, factor)
            value = (rotation.backward(levels, segment, KEY) * factor[:, None]).view(-1)
            out = torch.empty(2 * block, device=device)
            gpu.eden_decode(packed, factors, out, block, bits, KEY, None)
            equal("eden decoded", out, value)
            out = torch.linspace(-1, 1, 2 * block).to(device)
            gpu.eden_decode(packed, factors, out, block, bits, KEY, 0.3)
            equal("eden added", out, torch.linspace(-1, 1, 2 * block) + value * torch.tensor(0.3))
    x = torch.randn(1 << 16)
    whole = rotation.forward(x.view(1, -1), Segment(0, 1 << 16, 1, 1 << 16, 0, 0), KEY).view(-1)
    equal("full rotation", gpu.hadamard_full(x.to(device), KEY), whole)


def thc(device: str) -> None:
    codec = make("thc:block=4096")
    assert isinstance(codec, Thc)
    x = torch.randn(8192)
    lengths = codec.statistic(x)
    key = Key(KEY.seed, KEY.step, 3)
    packed = gpu.thc_encode(x.to(device), lengths.to(device), codec.table, codec.reach, 4096, key)
    there, gpu.available = gpu.available, lambda device: False  # type: ignore[assignment]
    equal("thc codes", packed, pack(codec.to_codes(codec.levels(x, lengths, key, 1)), 4))
    gpu.available = there


DISPATCHED = [
    "thc:block=4096",
    "int4",
    "int8:rounding=nearest",
    "eden",
    "drive",
    "cocktail",
    "cocktail:values=log,random=0.5",
]
NOT_DISPATCHED = ["int2", "eden:bits=2", "int4:scale=32"]


def dispatch(device: str) -> None:
    """Whole blobs and sums through the front door, with the kernels and without."""
    calls: list[str] = []
    for kernel in ("group_encode", "group_decode", "eden_encode", "eden_decode", "largest", "sparse_add", "thc_encode"):
        launch = getattr(gpu, kernel)
        setattr(gpu, kernel, lambda *a, _launch=launch, _name=kernel: (calls.append(_name), _launch(*a))[1])
    there = gpu.available
    for spec in DISPATCHED + NOT_DISPATCHED:
        for n in (5, 9_001):
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


CASES = [group, sign, cocktail, eden, thc, dispatch, plain]


def main(device: str) -> None:
    fast.available = lambda: False  # type: ignore[assignment]
    torch.manual_seed(0)
    for case in CASES:
        case(device)
        print(f"{case.__name__}: the same bits", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
