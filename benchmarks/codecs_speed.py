"""The speed table of docs/codecs.md: encode, and decode and add, of every codec as a ratio to a copy of the vector.

python benchmarks/codecs_speed.py              measures what codecs_speed.json lacks for this code; about ten minutes
python benchmarks/codecs_speed.py --table      writes the table of docs/codecs.md from codecs_speed.json; seconds

One thread. A codec's calls take turns with copies, so that a busy moment is shared; ratios are of medians of CPU time. With
numba, then without (FARFLUNG_FAST=0), then 1,000 elements. Each codec is written down as soon as it is measured: a run that
is stopped goes on where it was. A row is measured anew when the code of compress/ changes, or the number of elements.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from farflung import compress
from farflung.compress.cpu import dispatch as fast

ROOT = Path(__file__).parent.parent
FILE = ROOT / "benchmarks" / "codecs_speed.json"
# ruff: noqa: SIM905, E501
SPECS = """
none fp16 bf16 int8 int8:rounding=nearest int4 int4:rounding=nearest int4:group=32 int2 int8_tensor int8_channel mxfp8 mxfp6 mxfp4
mxfp4:rounding=nearest nvfp4 nf4 qsgd qsgd:norm=l2 terngrad nuqsgd natural global_qsgd global_exp intsgd sign drive eden:bits=0.5
eden:bits=1.5 eden:bits=2 eden eden:bits=6 eden:bits=8 turboquant turboquant:kind=prod quicfl quicfl:shared=false thc thc:block=4096
dynamiq rotq avq topk topk:ratio=0.1 randomk chunked_topk cocktail cocktail:values=log demo powersgd tile tile:rounding=stochastic
docofl aqsgd""".split()
GOALS = {"encode": 10.0, "add": 6.0, "plain encode": 60.0, "plain add": 60.0, "small encode": 100.0, "small add": 100.0}
"""At most so many copies, or, of 1,000 elements, microseconds."""
SHARP = {"cocktail": {"encode": 0.9, "add": 0.5}}


def code() -> str:
    """What the measured code is."""
    found = hashlib.sha256()
    for file in sorted((ROOT / "compress").rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def in_turn(calls: dict[str, Callable[[], object]], seconds: float, least: int, most: int) -> dict[str, float]:
    """The median CPU time of each call in seconds; a copy between any two."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    begun, rounds = time.process_time(), 0
    while rounds < least or (rounds < most and time.process_time() - begun < seconds):
        for name, call in calls.items():
            start = time.process_time()
            call()
            taken[name].append(time.process_time() - start)
            if name != "copy":
                start = time.process_time()
                calls["copy"]()
                taken["copy"].append(time.process_time() - start)
        rounds += 1
    return {name: median(values) for name, values in taken.items()}


def ratios(codec: compress.Codec, x: torch.Tensor, out: torch.Tensor, seconds: float, least: int) -> dict[str, float]:
    """Copies that encode, and decode and add, of ``x`` take."""
    step = 0

    def encode() -> bytes:
        nonlocal step
        step += 1
        return codec.encode(x, seed=1, step=step)

    begun = time.process_time()
    blob = encode()
    compress.add(blob, out)
    if time.process_time() - begun > seconds / 2:
        least = 1  # so slow that its goal is far
    calls: dict[str, Callable[[], object]] = {
        "copy": lambda: out.copy_(x),
        "encode": encode,
        "add": lambda: compress.add(blob, out),
    }
    found = in_turn(calls, seconds, least, 25)
    return {name: round(found[name] / found["copy"], 2) for name in ("encode", "add")} | {"ms": found["copy"] * 1e3}


def switch(on: bool) -> None:
    """The compiled loops on or off."""
    os.environ["FARFLUNG_FAST"] = "1" if on else "0"
    fast.available.cache_clear()


def small(codec: compress.Codec, x: torch.Tensor) -> dict[str, float]:
    """Microseconds that 1,000 elements take, the compiled loops not loaded for it."""
    out, blob = torch.zeros(len(x)), codec.encode(x, seed=1)
    found: dict[str, float] = {}
    for name, call in {
        "encode": lambda: codec.encode(x, seed=1, step=1),
        "add": lambda: compress.add(blob, out),
    }.items():
        call()
        times = []
        for _ in range(15):
            start = time.perf_counter()
            for _ in range(5):
                call()
            times.append((time.perf_counter() - start) / 5)
        found[name] = round(min(times) * 1e6, 1)
    return found


def measure(spec: str, x: torch.Tensor, out: torch.Tensor, seconds: float) -> dict[str, Any]:
    """The row of one codec."""
    codec, row = compress.make(spec), {"codec": spec}
    row |= {f"small {name}": value for name, value in small(codec, x[:1000].clone()).items()}
    if fast.available():
        row |= ratios(codec, x, out, seconds, 5)
        switch(False)
    row |= {f"plain {name}": value for name, value in ratios(codec, x, out, seconds / 2, 2).items()}
    switch(True)
    return row


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown; a number over its goal is bold."""
    lines = ["| codec | encode | decode and add | without numba: encode | decode and add | 1,000 elements, µs | µs |"]
    lines.append("| --- " * 7 + "|")
    for row in rows:
        goals = GOALS | SHARP.get(row["codec"], {})
        cells = []
        for name, goal in goals.items():
            if name not in row:
                cells.append("")
                continue
            value = f"{row[name]:.0f}" if name.startswith("small") or row[name] >= 100 else f"{row[name]:.1f}"
            value = f"{row[name]:.2f}" if goal < 1 else value
            cells.append(f"**{value}**" if row[name] > goal else value)
        lines.append(f"| `{row['codec']}` | " + " | ".join(cells) + " |")
    return lines


def put(lines: list[str]) -> None:
    """Replaces the table of docs/codecs.md that has the same first line."""
    path = ROOT / "docs" / "codecs.md"
    text = path.read_text()
    start = text.index(lines[0] + "\n")
    path.write_text(text[:start] + "\n".join(lines) + text[text.index("\n\n", start) :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="write the table of docs/codecs.md, and measure nothing")
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--seconds", type=float, default=3.0, help="of CPU time, for each codec")
    parser.add_argument("--codecs", default="", help="only these specs, separated by blanks; not written down")
    parser.add_argument("--again", action="store_true", help="measure what codecs_speed.json has, too")
    options = parser.parse_args()
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    if options.table:
        put(table([kept[spec] for spec in SPECS if spec in kept]))
        return
    torch.set_num_threads(1)
    here = {"code": code(), "elements": options.elements, "numba": fast.available()}
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(options.elements, generator=generator)
    x *= torch.exp(torch.randn(options.elements, generator=generator))
    out = torch.empty_like(x)
    print("\n".join(table([])), flush=True)
    for spec in options.codecs.split() or SPECS:
        if not options.again and not options.codecs and spec in kept and here.items() <= kept[spec].items():
            continue
        row = measure(spec, x, out, options.seconds) | here
        print(table([row])[-1], flush=True)
        if not options.codecs:
            kept[spec] = row
            new = FILE.with_suffix(".new")
            new.write_text(json.dumps(kept, indent=1) + "\n")
            new.replace(FILE)
    if not options.codecs:
        print(f"missing: {' '.join(spec for spec in SPECS if spec not in kept) or 'nothing'}; now: --table")


if __name__ == "__main__":
    main()
