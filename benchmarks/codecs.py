"""The tables of docs/codecs.md: bits, error, error of the mean and speed of every codec; and a picture of them.

python benchmarks/codecs.py            measures all of it (CPU, one thread), writes codecs.json, the picture and the tables
python benchmarks/codecs.py --speed    only the ratios of encode and decode-and-add to a copy of 25 M fp32
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import torch

from farflung import compress
from farflung.compress.cpu import dispatch as fast
from farflung.compress.exchange.measurement import mean_error, nmse
from farflung.compress.primitives.vectors import vector

# ruff: noqa: SIM905, E501
SPECS = """
none fp16 bf16 int8 int8:rounding=nearest int4 int4:group=32 int4:group=32,rounding=nearest int2 int8_tensor
int8_channel mxfp8 mxfp8:rounding=nearest mxfp6 mxfp4 mxfp4:rounding=nearest nvfp4 nvfp4:rounding=nearest nf4
qsgd:bits=8 qsgd qsgd:norm=l2 terngrad terngrad:clip=2.5 nuqsgd natural global_qsgd global_qsgd:bits=4 global_exp intsgd intsgd:rule=max
sign sign:scale=rms drive drive:biased=true eden:bits=0.5 eden:bits=1.5 eden:bits=2 eden:bits=3 eden eden:bits=6 eden:bits=8
turboquant turboquant:kind=prod quicfl:bits=1 quicfl:bits=2 quicfl:bits=3 quicfl quicfl:shared=false thc
thc:granularity=42,tail=1024 dynamiq:bits=3 dynamiq:bits=4 dynamiq dynamiq:bits=6 rotq:bits=3 rotq rotq:bits=5 rotq:bits=6
avq:bits=2 avq avq:rotate=true topk topk:ratio=0.1 topk:ratio=0.01,values=bf16 randomk randomk:ratio=0.1 chunked_topk
cocktail cocktail:values=log cocktail:random=1.0,top=0.2 cocktail:random=1.0,top=0.02 demo powersgd powersgd:rank=8
tile tile:rounding=stochastic docofl docofl:bits=2 aqsgd""".split()
SPEED = """cocktail cocktail:values=log int4:rounding=nearest int4 int8:rounding=nearest int8 eden eden:block=1024 drive bf16
none sign""".split()
ROOT = Path(__file__).parent.parent


def row(spec: str) -> dict[str, Any]:
    """Everything about one codec."""
    torch.set_num_threads(1)
    out: dict[str, Any] = {"codec": spec, "unbiased": compress.traits_of(spec).unbiased}
    for distribution in ("normal", "student3", "hetero"):
        error, _, bits = nmse(spec, vector(distribution, 1 << 16), 4)
        out[distribution] = error
        out.setdefault("bits", bits)
    x = vector("student3", 1 << 13)
    out["identical_16"] = mean_error(spec, [x] * 16, trials=2)
    big = vector("normal", 1 << 20)
    codec = compress.make(spec)
    blob = codec.encode(big, seed=1)
    out["encode_gb_s"] = big.numel() * 4 / best(lambda: codec.encode(big, seed=1), 3) / 1e9
    out["decode_gb_s"] = big.numel() * 4 / best(lambda: compress.decode(blob), 3) / 1e9
    return out


def best(what: Callable[[], object], repeats: int) -> float:
    """The least CPU time of a few calls."""
    least = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        what()
        least = min(least, time.process_time() - start)
    return least


def speed(rounds: int) -> list[str]:
    """Markdown lines: ratios of CPU times to a copy's, each taken in turn with the others, so that a busy moment is
    shared; the median, and the least of each over the least of the copy."""
    torch.set_num_threads(1)
    x = torch.randn(25_000_000) * torch.exp(torch.randn(25_000_000))
    out = torch.empty_like(x)
    step = 0

    def encode(codec: compress.Codec) -> bytes:
        nonlocal step
        step += 1
        return codec.encode(x, seed=1, step=step)

    calls: dict[str, Callable[[], object]] = {"copy": lambda: out.copy_(x)}
    for spec in SPEED:
        codec = compress.make(spec)
        blob = encode(codec)
        calls[f"{spec} encode"] = lambda codec=codec: encode(codec)  # type: ignore[misc]
        calls[f"{spec} add"] = lambda blob=blob: compress.add(blob, out)  # type: ignore[misc]
        compress.add(blob, out)
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.process_time()
            call()
            taken[name].append(time.process_time() - start)
            if name != "copy":
                start = time.process_time()
                out.copy_(x)
                taken["copy"].append(time.process_time() - start)
    copy = taken["copy"]

    def ratio(name: str) -> str:
        return f"{median(taken[name]) / median(copy):.2f} ({min(taken[name]) / min(copy):.2f})"

    lines = ["| codec | encode / copy | decode and add / copy |", "| --- | --- | --- |"]
    lines += [f"| {spec} | {ratio(f'{spec} encode')} | {ratio(f'{spec} add')} |" for spec in SPEED]
    about = f"a copy takes {median(copy) * 1e3:.1f} ({min(copy) * 1e3:.1f}) ms of CPU time, numba: {fast.available()}"
    print("\n".join([about, *lines]), flush=True)
    return lines


ADDS = {"sum": "encoded sum", "recode": "decode, add, encode", "gather": "gather"}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The markdown lines of the large table."""
    lines = ["| codec | bits | normal | t3 | hetero | mean of 16 | unbiased | adds up as | enc | dec |"]
    lines.append("| --- " * 10 + "|")
    for each in rows:
        traits = compress.traits_of(each["codec"])
        errors = " | ".join(f"{each[k]:.3g}" for k in ("normal", "student3", "hetero", "identical_16"))
        unbiased = "float" if traits.float_format and each["normal"] else "yes" if traits.unbiased else "no"
        speeds = f"{each['encode_gb_s']:.2f} | {each['decode_gb_s']:.2f}"
        lines.append(
            f"| `{each['codec']}` | {each['bits']:.3f} | {errors} | {unbiased} | {ADDS[traits.aggregation]} | {speeds} |"
        )
    return lines


def put(lines: list[str]) -> None:
    """Replaces the table of docs/codecs.md that has the same first line."""
    path = ROOT / "docs" / "codecs.md"
    text = path.read_text()
    start = text.index(lines[0] + "\n")
    path.write_text(text[:start] + "\n".join(lines) + text[text.index("\n\n", start) :])


def plot(rows: list[dict[str, Any]], target: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 7))
    families: dict[str, list[dict[str, Any]]] = {}
    for each in rows:
        if each["student3"] > 1e-12:
            families.setdefault(each["codec"].partition(":")[0], []).append(each)
    markers = "osv^D<>ph*X"
    for place, (name, members) in enumerate(families.items()):
        members.sort(key=lambda r: r["bits"])
        style = {"marker": markers[place % len(markers)], "linestyle": ":" if len(members) > 1 else "none"}
        axes.plot(
            [r["bits"] for r in members],
            [r["student3"] for r in members],
            label=name,
            markersize=6,
            linewidth=0.8,
            **style,
        )
    bits = [0.05 * i for i in range(1, 340)]
    axes.plot(bits, [2 ** (-2 * b) for b in bits], color="black", linewidth=1.2, label="rate-distortion bound, normal")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="bits per element on the wire",
        ylabel="squared error / energy (Student t, 3)",
    )
    axes.set_ylim(1e-9, 50)
    axes.grid(True, which="major", linewidth=0.3)
    axes.legend(fontsize=7, ncol=3)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    lines = speed(options.rounds)
    if options.speed:
        return
    rows = []
    with ProcessPoolExecutor(options.processes) as pool:
        for each in pool.map(row, SPECS):
            rows.append(each)
            print(table([each])[-1], flush=True)
    (ROOT / "benchmarks" / "codecs.json").write_text(json.dumps(rows, indent=1) + "\n")
    plot(rows, ROOT / "docs" / "codecs.svg")
    put(table(rows))
    put(lines)


if __name__ == "__main__":
    main()
