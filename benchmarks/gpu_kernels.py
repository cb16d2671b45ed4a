"""Speed of the Triton kernels and of whole codecs on a GPU. ``benchmarks/gpu.sh`` runs it with the right path.

A kernel's speed is bytes moved, by the counts of docs/codecs.md, over time, as a share of what a device-to-device copy
moves. A codec's is the time of ``encode``, ``decode`` and ``add`` of a vector on the device, with all that its front
door does (blobs are bytes of the host), in copies of that vector.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from farflung import compress
from farflung.compress.gpu import checksum
from farflung.compress.gpu import dispatch as gpu
from farflung.compress.primitives.key import Key
from farflung.compress.primitives.tables import lloyd
from farflung.compress.sparsifiers import runs
from farflung.compress.summable.thc import Thc

KEY = Key(1, 2)
DEVICE = os.environ.get("FARFLUNG_GPU", "cuda")
SIZES = (25_000_000, 250_000_000)
LARGE = 1_000_000_000
"""Elements at which only ``AT_LARGE`` are measured, after all others."""
AT_LARGE = ("cocktail", "int4", "int8", "topk")
BOX = 1.5
"""Seconds after which an operation is not repeated; a codec that needs minutes for a size takes no other's time."""
SPECS = (
    "none",
    "fp16",
    "bf16",
    "int8",
    "int4",
    "sign",
    "eden:bits=1",
    "eden:bits=4",
    "eden:bits=2",
    "thc",
    "topk",
    "cocktail",
    "chunked_topk",
    "tile",
)


def seconds(what: Callable[[], object], repeats: int = 15) -> float:
    """The median time of a launch, by device events, after two to warm up; on the CPU one, by the clock. Of a slow one
    less: once it has taken ``BOX`` seconds in all, what is measured so far counts."""
    began = time.perf_counter()
    what()
    if DEVICE == "cpu":
        return time.perf_counter() - began
    torch.cuda.synchronize()
    if (first := time.perf_counter() - began) > BOX:
        return first
    what()
    times: list[float] = []
    for _ in range(repeats):
        if times and time.perf_counter() - began > BOX:
            break
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        what()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def copy_rate(n: int) -> float:
    """Bytes a second that a device-to-device copy reads and writes."""
    x = torch.randn(n, device=DEVICE)
    y = torch.empty_like(x)
    return 8 * n / seconds(lambda: y.copy_(x))


def kernels(n: int) -> list[tuple[str, float, Callable[[], object], bool]]:
    """(name, bytes per element, launch, one pass?)."""
    x, other, out = torch.randn(n, device=DEVICE), torch.randn(n, device=DEVICE), torch.zeros(n, device=DEVICE)
    cases: list[tuple[str, float, Callable[[], object], bool]] = []
    flag = gpu.new_flag(DEVICE)
    for bits in (4, 8):
        steps, codes = gpu.group_encode(x, 128, bits, False, KEY, flag)
        code = bits / 8 + 2 / 128
        cases += [
            (f"int{bits} encode", 4 + code, lambda b=bits: gpu.group_encode(x, 128, b, False, KEY, flag), True),
            (
                f"int{bits} encode, stochastic",
                4 + code,
                lambda b=bits: gpu.group_encode(x, 128, b, True, KEY, flag),
                True,
            ),
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
        ]
    packed, table = torch.zeros(n // 2, dtype=torch.uint8, device=DEVICE), lloyd(4, torch.device(DEVICE))
    for block in (4096, 8192):
        rows, factors = x.view(-1, block), torch.ones(n // block, device=DEVICE)
        cases.append((f"rotation, block {block}", 8, lambda r=rows: gpu.turn(r, KEY, gpu.SIGNS, 0), True))
        for bits in (1, 2, 3, 4):
            code, table = bits / 8 + 4 / block, lloyd(bits, torch.device(DEVICE))
            cases += [
                (
                    f"eden {bits} bit encode, block {block}",
                    4 + code,
                    lambda r=rows, k=bits, f=factors: gpu.eden_encode(r, k, KEY, 0, n, packed, f, flag, True),
                    True,
                ),
                (
                    f"eden {bits} bit decode and add, block {block}",
                    8 + code,
                    lambda b=block, t=table, f=factors: gpu.eden_decode(packed, t, KEY, 0, n, f, out.view(-1, b), 0.5),
                    True,
                ),
            ]
    passes = 1 + -(-(n.bit_length() - 1 - 12) // 7)
    whole = x.view(1, n)
    cases.append(
        (
            f"rotation of the whole vector, {passes} passes",
            8 * passes,
            lambda: gpu.turn(whole, KEY, gpu.SIGNS, 0),
            False,
        )
    )
    codec = compress.make("thc")
    assert isinstance(codec, Thc)
    entries, lengths = tuple(codec.table.tolist()), torch.full((n // 4096,), 64.0, device=DEVICE)
    for name, rows, size in (("block 4096", x.view(-1, 4096), 4.5), ("the whole vector", whole, 8 * passes + 12.5)):
        cases.append(
            (
                f"thc encode, {name}",
                size,
                lambda r=rows: gpu.thc_encode(r, lengths[: len(r)], entries, 4, codec.reach, KEY, 0, packed),
                size < 5,
            )
        )
    cases.append(("checksum", 0.5, lambda: checksum.of_device(packed, flag.view(torch.uint8)), False))
    offer = runs.offer(n, 0.1, 64, KEY)
    where = torch.from_numpy(offer.runs).to(DEVICE)
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


def time_kernels(n: int) -> dict[str, Any]:
    """The table of kernels, at ``n`` elements."""
    copy = copy_rate(n)
    print(f"\n{n} elements; a copy moves {copy / 1e12:.2f} TB/s\n")
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
    return {"elements": n, "copy_tb_s": copy / 1e12, "rows": rows}


def time_codecs(tiny: bool, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The table of codecs; ``save`` is called with what is there after each row. ``pieces`` is what a round uses: it
    writes them into memory that is there, while the bytes of ``encode`` are new ones, whose pages above 32 MB the
    system must make first."""
    found: dict[str, Any] = {"rows": []}
    print("| codec | elements | a copy, ms | pieces | encode | decode | add | peak of memory |\n" + "| --- " * 8 + "|")
    orders = [(1 << 14, SPECS)] if tiny else [*((size, SPECS) for size in SIZES), (LARGE, AT_LARGE)]
    for n, specs in orders:
        x = torch.randn(n, device=DEVICE)
        out = torch.zeros_like(x)
        copy = seconds(lambda x=x, out=out: out.copy_(x), 5)  # type: ignore[misc]
        for spec in specs:
            codec = compress.make(spec)
            if DEVICE != "cpu":
                torch.cuda.reset_peak_memory_stats()
            blob = codec.encode(x, seed=1)
            took = {
                "pieces": seconds(lambda c=codec, x=x: c.pieces(x, seed=1), 3),  # type: ignore[misc]
                "encode": seconds(lambda c=codec, x=x: c.encode(x, seed=1), 3),  # type: ignore[misc]
                "decode": seconds(lambda b=blob: compress.decode(b, device=DEVICE), 3),  # type: ignore[misc]
                "add": seconds(lambda b=blob, o=out: compress.add(b, o), 3),  # type: ignore[misc]
            }
            peak = 0 if DEVICE == "cpu" else torch.cuda.max_memory_allocated()
            row = {"codec": spec, "elements": n, "copy_ms": copy * 1e3, "peak_bytes": peak, "bytes": len(blob)}
            row |= {f"{name}_copies": each / copy for name, each in took.items()}
            found["rows"].append(row)
            save(found)
            copies = " | ".join(f"{each / copy:.1f}" for each in took.values())
            print(f"| {spec} | {n} | {copy * 1e3:.2f} | {copies} | {peak / 4 / n:.2f} vectors |", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("kernels", "codecs"))
    parser.add_argument("--elements", type=int, default=1 << 28)
    parser.add_argument("--tiny", action="store_true", help="sizes for Triton's interpreter")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    def save(found: dict[str, Any]) -> None:
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")

    if options.what == "kernels":
        save(time_kernels(1 << 14 if options.tiny else options.elements))
    else:
        time_codecs(options.tiny, save)


if __name__ == "__main__":
    main()
