"""farflung's gradient mode and torch DDP with the same codec on both sides, between two hosts of an emulated WAN.

    python -m benchmarks.ddp_codecs           # under 8 minutes with nothing else on two cores; needs root
    python -m benchmarks.ddp_codecs --table   # Markdown, from the results

Both sides train the same GPT-2 on the same text, one thread a node, and exchange every step's gradient: DDP by its own
all-reduce (none), torch's bf16_compress_hook (bf16) and farflung's hook with error feedback (int8), farflung by rounds
with that codec. A run's figure is the median time between steps after the first few; the two sides of a pair run one
after the other, in turns which is first, and the ratio is that of a pair. Beside it: the processor time of a step, of
all processes of a side, and the rate at which a step's bytes travelled, over the whole of its time.

The links of 10,000 Mbit/s are computed (benchmarks/early_rounds.py: coding and the protocol's work take no time), for
what two cores carry through the emulator is less: that is measured and told. No pair begins after --minutes; results
are saved after every pair, so a run may be broken off (Ctrl-C or SIGTERM): benchmarks/results/ddp_codecs.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from farflung.deploy.wan import build, probe
from farflung.deploy.wan.lab import Lab
from farflung.deploy.wan.topology import Change
from farflung.examples.shakespeare import write_text
from farflung.scheduler.workloads.codecs import bits_of

from .early_rounds import Group, Step, ddp_step_s
from .wan import LEFT_OUT, measure, star
from .wan_worker import shape

RESULTS = Path(__file__).resolve().parent / "results" / "ddp_codecs.json"
PAIRS = {
    "none": ("farflung-exact", "ddp"),
    "bf16": ("farflung-exact-bf16", "ddp-bf16"),
    "int8": ("farflung-exact-int8", "ddp-int8"),
}
SIDES = ("farflung", "ddp")
COMPUTED = 10_000.0
"""Mbit/s of the links that are computed."""


def elements_of(layers: int, width: int) -> int:
    """Parameters of the model."""
    config = shape(layers, width)
    block = 12 * width * width + 13 * width
    return int(layers * block + (config.vocab_size + config.n_positions + 2) * width)


def bits(codec: str, elements: int) -> float:
    """Bits of an element on the wire."""
    return bits_of(codec, elements, 32.0)


def carried(made: Lab, rate: float) -> float:
    """Mbit/s of payload that the emulator carries from one host to the other, where the links have a rate in Mbit/s."""
    made.change(Change(0, "set", "*->*", {"rate": rate * 1e6, "queue_ms": 100.0}))
    found = probe.stream(made, (0, 1), 3.0, 1.0)
    return round(found.rate(1.0, 4.0) / 1e6)


def run(options: Any) -> None:
    """All pairs, interleaved, and the step alone."""
    until, made = time.monotonic() + 60 * options.minutes, star(2, options.rtt)
    found: dict[str, Any] = {
        "layers": options.layers,
        "width": options.width,
        "elements": elements_of(options.layers, options.width),
        "sequences_a_node": options.batch,
        "rtt_ms": options.rtt,
        "steps": options.steps,
        "load_before": round(os.getloadavg()[0], 1),
        "load_after": 0.0,
        "alone_s": [],
        "pairs": [],
    }
    try:
        with tempfile.TemporaryDirectory(prefix="farflung-ddp-") as scratch:
            write_text(Path(scratch))
            options.text, options.nodes = Path(scratch) / "shakespeare" / "hamlet.txt", 2
            found["carried_mbit"] = {f"{rate:g}": carried(made, rate) for rate in (*options.rates, COMPUTED)}
            for repeat, rate, codec in itertools.product(range(options.repeats), options.rates, options.codecs):
                if time.monotonic() > until:
                    print(f"{options.minutes:g} minutes are over", file=sys.stderr)
                    break
                if len(found["alone_s"]) <= repeat:
                    found["alone_s"].append(_one(made, "alone", options, Path(scratch))[0])
                made.change(Change(0, "set", "*->*", {"rate": rate * 1e6, "queue_ms": 100.0}))
                found["pairs"].append(_pair(made, codec, repeat, options, Path(scratch)) | {"rate_mbit": rate})
                found["load_after"] = round(os.getloadavg()[0], 1)
                options.results.write_text(json.dumps(found, indent=1) + "\n")
                print(found["pairs"][-1], flush=True)
    finally:
        build.down(made.name)
    table(found)


def _pair(made: Lab, codec: str, repeat: int, options: Any, scratch: Path) -> dict[str, Any]:
    """Both sides, one after the other: seconds a step, and seconds of the processors a step."""
    systems = list(zip(SIDES, PAIRS[codec], strict=True))
    row: dict[str, Any] = {"codec": codec, "repeat": repeat}
    for side, system in systems if repeat % 2 else systems[::-1]:
        seconds, used = _one(made, system, options, scratch)
        row |= {f"{side}_s": seconds, f"{side}_processor_s": used}
    return row


def _one(made: Lab, system: str, options: Any, scratch: Path) -> tuple[float, float]:
    folder = scratch / system
    folder.mkdir()
    gaps, used = measure(made, system, options, folder)
    shutil.rmtree(folder)
    return round(statistics.median(gaps), 4), round(sum(used.values()), 4)


def table(found: dict[str, Any]) -> None:
    """Markdown of the results, and of what is computed."""
    elements, alone = found["elements"], statistics.median(found["alone_s"])
    through = ", ".join(f"{got} of {rate} Mbit/s" for rate, got in found["carried_mbit"].items())
    print(f"\nalone {alone:.3f} s a step; load {found['load_before']} to {found['load_after']}; carried: {through}\n")
    print("| Mbit/s | codec | farflung | DDP | farflung / DDP | processor time | travelled, Mbit/s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for rate, codec in sorted({(row["rate_mbit"], row["codec"]) for row in found["pairs"]}):
        rows = [row for row in found["pairs"] if (row["rate_mbit"], row["codec"]) == (rate, codec)]
        ours, theirs = (statistics.median(row[f"{side}_s"] for row in rows) for side in SIDES)
        ratios = sorted(row["farflung_s"] / row["ddp_s"] for row in rows)
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        used = " and ".join(f"{statistics.median(row[f'{side}_processor_s'] for row in rows):.2f}" for side in SIDES)
        rates = " and ".join(f"{bits(codec, elements) * elements / 1e6 / seconds:.0f}" for seconds in (ours, theirs))
        print(f"| {rate:,.0f} | {codec} | {ours:.3f} s | {theirs:.3f} s | {spread} | {used} s | {rates} |")
    step = Step(elements, alone, found["rtt_ms"] / 2e3)
    for codec in PAIRS:
        each = bits(codec, elements) / 8
        ours = Group(2, COMPUTED, each, True, step).step_s()
        theirs = ddp_step_s(2, COMPUTED, each, step)
        print(f"| {COMPUTED:,.0f}, computed | {codec} | {ours:.3f} s | {theirs:.3f} s | {ours / theirs:.2f} | | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="only print the results of an earlier run")
    parser.add_argument("--rates", type=lambda text: [float(one) for one in text.split(",")], default=[100.0, 1000.0])
    parser.add_argument("--codecs", type=lambda text: text.split(","), default=list(PAIRS))
    parser.add_argument("--rtt", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=7.5, help="no pair begins later")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--batch", type=int, default=4, help="sequences of 128 tokens a node and step")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.steps < LEFT_OUT + 2:
        parser.error(f"--steps {options.steps}: the first {LEFT_OUT} are left out, so it takes {LEFT_OUT + 2} or more")
    if options.table:
        table(json.loads(options.results.read_text()))
    else:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            run(options)
        except KeyboardInterrupt:
            sys.exit("broken off: --table shows the pairs that were measured")


if __name__ == "__main__":
    main()
