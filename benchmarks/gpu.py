"""Correctness, then speed, of the Triton kernels on this GPU. ``benchmarks/gpu.sh`` runs it with the right path.

Speed is bytes moved by the counts of docs/codecs.md over time, as a share of what a device-to-device copy moves.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from farflung.compress import make
from farflung.compress.gpu import dispatch as gpu
from farflung.compress.primitives.key import Key
from farflung.compress.sparsifiers import runs
from farflung.compress.summable.thc import Thc

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "compress"))
KEY = Key(1, 2)


def seconds(what: Callable[[], object], repeats: int = 15) -> float:
    """The median time of a launch, by device events, after two to warm up."""
    what()
    what()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        what()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def copy_rate(n: int) -> float:
    """Bytes a second that a device-to-device copy reads and writes."""
    x = torch.randn(n, device="cuda")
    y = torch.empty_like(x)
    return 8 * n / seconds(lambda: y.copy_(x))


def kernels(n: int) -> list[tuple[str, float, Callable[[], object], bool]]:
    """(name, bytes per element, launch, one pass?)."""
    x, other, out = torch.randn(n, device="cuda"), torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
    cases: list[tuple[str, float, Callable[[], object], bool]] = []
    for bits in (4, 8):
        steps, codes = gpu.group_encode(x, 128, bits, False, KEY)
        code = bits / 8 + 2 / 128
        cases += [
            (f"int{bits} encode", 4 + code, lambda b=bits: gpu.group_encode(x, 128, b, False, KEY), True),
            (f"int{bits} encode, stochastic", 4 + code, lambda b=bits: gpu.group_encode(x, 128, b, True, KEY), True),
            (
                f"int{bits} decode",
                4 + code,
                lambda b=bits, s=steps, c=codes: gpu.group_decode(c, s, out, 128, b, None),
                True,
            ),
            (
                f"int{bits} decode and add",
                8 + code,
                lambda b=bits, s=steps, c=codes: gpu.group_decode(c, s, out, 128, b, 0.5),
                True,
            ),
            (
                f"int{bits} hop (decode, add, encode)",
                4 + 2 * code,
                lambda b=bits, s=steps, c=codes: gpu.group_hop(c, s, other, 128, b, False, KEY),
                True,
            ),
        ]
    for block in (4096, 8192):
        cases.append((f"rotation, block {block}", 8, lambda b=block: gpu.rotate(x, b, KEY), True))
        for bits in (1, 4):
            packed, factors = gpu.eden_encode(x, block, bits, KEY)
            code = bits / 8 + 4 / block
            cases += [
                (
                    f"eden {bits} bit encode, block {block}",
                    4 + code,
                    lambda b=block, k=bits: gpu.eden_encode(x, b, k, KEY),
                    True,
                ),
                (
                    f"eden {bits} bit decode and add, block {block}",
                    8 + code,
                    lambda b=block, k=bits, p=packed, f=factors: gpu.eden_decode(p, f, out, b, k, KEY, 0.5),
                    True,
                ),
            ]
    passes = 1 + -(-(n.bit_length() - 1 - 12) // 7)
    cases.append(
        (f"rotation of the whole vector, {passes} passes", 8 * passes, lambda: gpu.hadamard_full(x, KEY), False)
    )
    codec = make("thc:block=4096")
    assert isinstance(codec, Thc)
    lengths = torch.full((n // 4096,), 64.0, device="cuda")
    cases.append(
        ("thc encode, block 4096", 4.5, lambda: gpu.thc_encode(x, lengths, codec.table, codec.reach, 4096, KEY), True)
    )
    error = torch.zeros(n, device="cuda")
    cases.append(("sign with feedback, 2 passes", 20.125, lambda: gpu.sign_with_feedback(x, error), False))
    offer = runs.offer(n, 0.1, 64, KEY)
    where = torch.from_numpy(offer.runs).cuda()
    kept = offer.elements // 5
    values, counts = gpu.offered(x, other, where, 64, offer.elements)
    index, chosen = gpu.largest(values, counts, kept)
    steps, codes = gpu.quantize_kept(chosen, index, where, 64, 128, None)
    share, local = kept / n, x.clone()
    cases += [
        # x, g and the difference of a tenth
        ("cocktail: offered difference", 1.2, lambda: gpu.offered(x, other, where, 64, offer.elements), False),
        # two more digits, a count and the compaction read it again; places and values of a fifth are written
        ("cocktail: the largest of it", 1.6 + share * 8, lambda: gpu.largest(values, counts, kept), False),
        # read places and values, write half a byte and a bucket's step; 64 bytes for a local weight, as below
        (
            "cocktail: quantise, and take what is sent from the local weights",
            share * (8.5 + 2 / 128 + 64),
            lambda: gpu.quantize_kept(chosen, index, where, 64, 128, local),
            False,
        ),
    ]
    # a value is added to a 32-byte sector of its own at worst: 64 bytes moved, and 8.5 read
    cases.append(
        (
            "cocktail decode and add",
            share * (8.5 + 64),
            lambda: gpu.sparse_add(out, where, 64, index, codes, steps, 128, 0.5),
            False,
        )
    )
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 28)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--skip-checks", action="store_true")
    options = parser.parse_args()
    if not options.skip_checks:
        import kernel_cases

        kernel_cases.main("cuda")
    n = options.elements
    copy = copy_rate(n)
    name = torch.cuda.get_device_name()
    print(f"\n{name}, {n} elements; a copy moves {copy / 1e12:.2f} TB/s\n")
    print("| kernel | bytes an element | ms | TB/s | of the copy |\n| --- | --- | --- | --- | --- |")
    rows = []
    for kernel, size, launch, one_pass in kernels(n):
        took = seconds(launch)
        rate = size * n / took
        rows.append(
            {
                "kernel": kernel,
                "bytes": size,
                "ms": took * 1e3,
                "tb_s": rate / 1e12,
                "share": rate / copy,
                "one_pass": one_pass,
            }
        )
        print(f"| {kernel} | {size:.2f} | {took * 1e3:.2f} | {rate / 1e12:.2f} | {rate / copy:.0%} |", flush=True)
    if options.json:
        options.json.write_text(
            json.dumps({"device": name, "elements": n, "copy_tb_s": copy / 1e12, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
