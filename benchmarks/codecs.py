"""The table of docs/codecs.md: bits, error and error of the mean of every codec; and a picture of them.

python benchmarks/codecs.py            measures all of it (CPU), writes codecs.json, the picture and the table

Speeds are codecs_speed.py's.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from farflung import compress
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
    return out


ADDS = {"sum": "encoded sum", "recode": "decode, add, encode", "gather": "gather"}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The markdown lines of the large table."""
    return [
        "| codec | bits | normal | t3 | hetero | mean of 16 | unbiased | adds up as |",
        "| --- " * 8 + "|",
        *map(line, rows),
    ]


def line(each: dict[str, Any]) -> str:
    """One of them."""
    traits = compress.traits_of(each["codec"])
    errors = " | ".join(f"{each[k]:.3g}" for k in ("normal", "student3", "hetero", "identical_16"))
    unbiased = "float" if traits.float_format and each["normal"] else "yes" if traits.unbiased else "no"
    return f"| `{each['codec']}` | {each['bits']:.3f} | {errors} | {unbiased} | {ADDS[traits.aggregation]} |"


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
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    rows = []
    with ProcessPoolExecutor(options.processes) as pool:
        for each in pool.map(row, SPECS):
            rows.append(each)
            print(table([each])[-1], flush=True)
    (ROOT / "benchmarks" / "codecs.json").write_text(json.dumps(rows, indent=1) + "\n")
    plot(rows, ROOT / "docs" / "codecs.svg")
    put(table(rows))


if __name__ == "__main__":
    main()
