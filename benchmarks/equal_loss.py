"""Loss against bits a parameter and step: every method at its own learning rate, on text enough for one pass.

    python -m benchmarks.equal_loss flat     how many steps until doubling them wins the baseline under 1 %
    python -m benchmarks.equal_loss tune     the same grid of learning rates for each method, on a seed of its own
    python -m benchmarks.equal_loss run      three other seeds at the rate that was best
    python -m benchmarks.equal_loss table    what is known so far
    python -m benchmarks.equal_loss tried    what the tuning saw, methods that were given up with it
    python -m benchmarks.equal_loss lengths  what longer runs (tune --steps N --rates R) lose, on the seed of tuning
    python -m benchmarks.equal_loss picture  docs/equal-loss.svg, or with --tuned docs/equal-loss-lengths.svg

    --size tiny|byte|byte-llama|1m|5m|25m|124m   --minutes M: begin no run after that   --only NAME   --steps N
    --device cuda:0   --rates R...   tune: these alone
    --tuned N   run, table, picture: the rate that was best with N steps, where the grid of longer runs is too dear
    --text T    what shows results: the lines of this text, else of the first that has any at this size and length

The text is the Python of the standard library, where that is too little also of the installed packages, its tokens a
byte-pair encoding of 4,096 made of it, each read once. Losses on two texts do not compare, so that every line names its
text by the first digits of its SHA-256. Real trainers, rounds and codecs in one process
(farflung.testing.loopback), four pipelines of one stage; bits are those of payloads and headers a node sent, divided
by parameters and steps. Each run is a line of benchmarks/results/equal_loss.jsonl with the command that repeats it; a
run whose line is there is not made again, so that all can be stopped and continued at any time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from farflung.job.data.facts import Facts
from farflung.job.schema import Job
from farflung.node.data.dataset import Dataset, Tokens

from .equal_loss_methods import BASELINE, METHODS
from .members import simulated
from .quality import prepared, shape_of, train
from .text import digest, in_pieces, make_tokenizer, sources

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "equal_loss.jsonl"
PICTURE = HERE.parent / "docs" / "equal-loss.svg"
LENGTHS = HERE.parent / "docs" / "equal-loss-lengths.svg"
VOCABULARY = 4096
BLOCK = 1 << 20
"""Of sections of looped sizes: one part, which is quicker."""
PIPELINES = 4
FP16 = 2 * (PIPELINES - 1) / PIPELINES * 16
"""Bits a parameter and step that a node sends in a ring all-reduce in fp16."""
TUNED_ON, SEEDS = 0, (1, 2, 3)
FLAT = 0.01
"""Of the loss, that twice as many steps may still win."""
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t by number of seeds: a mean's interval of 95 % is +- t * deviation / sqrt(seeds)."""


@dataclass(frozen=True)
class Size:
    """A model. ``steps`` of ``batch`` samples; ``text``: MB, enough for each token to be read once; ``grid``: the
    learning rates that every method tries; ``looped``: computed by members.py, on bytes, not by trainers."""

    layers: int
    width: int
    context: int
    batch: int
    steps: int
    text: int
    autocast: bool = False
    grid: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3)
    looped: bool = False
    family: str = "gpt2"


BYTE_GRID = (5e-3, 1e-2)
SIZES = {
    "tiny": Size(2, 32, 64, 16, 300, 4),
    "byte": Size(2, 64, 64, 16, 1000, 17, grid=BYTE_GRID, looped=True),
    "byte-llama": Size(2, 64, 64, 16, 1000, 17, grid=BYTE_GRID, looped=True, family="llama"),
    "1m": Size(4, 96, 128, 32, 4_000, 80),
    "5m": Size(6, 224, 256, 32, 8_000, 250),
    "25m": Size(8, 480, 512, 64, 10_000, 340, True),
    "124m": Size(12, 768, 1024, 64, 5_000, 340, True),
}


def job_of(size: Size, method: str, seed: int, rate: float, steps: int, folder: Path) -> Job:
    """A method's job; ``folder`` has the text and its tokenizer."""
    chosen = METHODS[method]
    warm = max(10, steps // (20 if size.looped else 50))
    return Job.model_validate(
        {
            "run": {"name": "equal_loss", "seed": seed, "steps": steps},
            "model": {
                "family": size.family,
                "layers": size.layers,
                "width": size.width,
                "heads": max(2, size.width // 64),
                "context": size.context,
            },
            "data": {
                "text": [str(folder / "text.txt")],
                "tokenizer": "bytes" if size.looped else str(folder / "tokenizer"),
                "validation": 0.004 if size.looped else 0.01,
            },
            "train": {
                "batch": size.batch,
                "microbatch": size.batch // PIPELINES,
                "learning_rate": rate,
                "betas": [0.9, 0.99],
                "warmup_steps": warm,
                "decay": "cosine",
                "clip": 1.0,
                "eval_every": steps // 2 if size.looped else max(20, steps // 10 // 20 * 20),
                "precision": "bf16" if size.autocast else "fp32",
                **chosen.train,
            },
            "parallel": {"stages": 1, "pipelines": 1 if method.startswith(BASELINE) else PIPELINES},
            "updates": {"block": BLOCK, **chosen.updates} if size.looped else chosen.updates,
            "checkpoint": {"every": 0},
        }
    )


class Bench:
    """The text of a size, and the runs on it."""

    def __init__(self, name: str, folder: Path, device: str, minutes: float, tuned: int | None = None) -> None:
        self.name, self.size, self.folder, self.device, self.tuned = name, SIZES[name], folder, device, tuned
        self.until = time.monotonic() + 60 * minutes
        (folder / "text.txt").write_text(text := sources(self.size.text * 1_000_000))
        self.text = digest(text)
        self.known: dict[int, tuple[Facts, Dataset]] = {}
        self.made: tuple[Facts, dict[str, bytes]] | None = None
        if not self.size.looped:
            make_tokenizer(folder / "tokenizer", in_pieces(text[:10_000_000]), VOCABULARY)

    def lose(self, method: str, seed: int, rate: float, steps: int) -> dict[str, Any] | None:
        """The run's line, made if it isn't there yet; None where there is no time to make it."""
        wanted = {"size": self.name, "text": self.text, "method": method, "seed": seed, "rate": rate, "steps": steps}
        for row in self.rows():
            if all(row[key] == value for key, value in wanted.items()):
                return row
        if time.monotonic() > self.until:
            return None
        job = job_of(self.size, method, seed, rate, steps, self.folder)
        made = self._loop(job, method) if self.size.looped else self._train(job)
        row = {
            **wanted,
            **made,
            "tokens": steps * self.size.batch * self.size.context,
            "command": self.command(method, steps),
        }
        with RESULTS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(
            f"{method:26}seed {seed}  rate {rate:g}  {steps} steps: loss {row['loss']:.4f}, "
            f"{row['bits']:.4f} bits a parameter and step, {row['seconds']:.0f} s",
            flush=True,
        )
        return row

    def command(self, method: str, steps: int) -> str:
        tuned = "" if self.tuned in (None, steps) else f" --tuned {self.tuned}"
        return f"python -m benchmarks.equal_loss run --size {self.name} --steps {steps}{tuned} --only {method!r}"

    def rows(self) -> list[dict[str, Any]]:
        """The lines of this size and text."""
        return rows(self.name, self.text)

    def _prepared(self, job: Job) -> tuple[Facts, dict[str, bytes]]:
        """Facts and artifacts, which all runs of a size share: the same data and shape; a run sets its own steps."""
        self.made = self.made or prepared(job, self.folder / "state")
        return self.made

    def _train(self, job: Job) -> dict[str, Any]:
        """A run of the real trainers."""
        facts, artifacts = self._prepared(job)
        plan = shape_of(job)
        made = train(job, facts, artifacts, plan, device=self.device)
        pipelines = len(plan.pipelines)
        sent = made["update_bytes"] if pipelines > 1 else 0
        bits = 8 * sent / pipelines / made["parameters"] / made["steps"]
        return {"bits": bits, **{name: made[name] for name in ("loss", "parameters", "evals", "seconds")}}

    def _loop(self, job: Job, method: str) -> dict[str, Any]:
        """A run of members.py. Bits are those before the run's end, whose two rounds in int8 a long run doesn't
        notice."""
        if not self.known:
            facts, artifacts = self._prepared(job)
            self.known[0] = facts, Tokens(facts, lambda name, at=0, count=None: artifacts[name][at:][:count])
        facts, data = self.known[0]
        started = time.monotonic()
        ended = simulated(job, facts.model_copy(update={"steps": job.run.steps}), data, METHODS[method].remedy)
        return {
            "loss": ended.loss,
            "bits": ended.bits - ended.closing,
            "closing": ended.closing,
            "unclosed": ended.unclosed,
            "averaged": ended.averaged,
            "parameters": ended.parameters,
            "evals": ended.evals,
            "seconds": time.monotonic() - started,
        }


def rows(size: str, text: str | None = None, steps: int | None = None) -> list[dict[str, Any]]:
    """The lines of a size and one text: of ``text``, else of the first that has a line (of ``steps`` steps, if given),
    as losses on two texts do not compare."""
    if not RESULTS.exists():
        return []
    of_size = [row for row in map(json.loads, RESULTS.read_text().splitlines()) if row["size"] == size]
    texts = (row["text"] for row in of_size if steps in (None, row["steps"]))
    chosen = text or next(texts, None)
    return [row for row in of_size if row["text"] == chosen]


def best_rate(lines: list[dict[str, Any]], method: str, steps: int, tuned: int | None = None) -> float | None:
    """Of the grid, where all of it was tried on the seed for that with ``tuned`` steps, if given, else ``steps``;
    ``lines``: of one size and text."""
    steps = tuned or steps
    tried = {
        row["rate"]: row["loss"]
        for row in lines
        if (row["method"], row["steps"], row["seed"]) == (method, steps, TUNED_ON)
    }
    finite = {rate: loss for rate, loss in tried.items() if math.isfinite(loss)}
    whole = bool(finite) and len(tried) >= len(SIZES[lines[0]["size"]].grid)
    return min(finite, key=finite.__getitem__) if whole else None


def named(size: Size, only: str) -> list[str]:
    """The methods that a size can compute whose name matches ``only``, a regular expression."""
    return [name for name, method in METHODS.items() if re.search(only, name) and (size.looped or not method.remedy)]


def tune(bench: Bench, steps: int, only: str, rates: tuple[float, ...]) -> None:
    for method, rate in itertools.product(named(bench.size, only), rates or bench.size.grid):
        bench.lose(method, TUNED_ON, rate, steps)


def run(bench: Bench, steps: int, only: str) -> None:
    for seed, method in itertools.product(SEEDS, named(bench.size, only)):
        rate = best_rate(bench.rows(), method, steps, bench.tuned)
        if rate is None:
            print(f"{method}: its learning rate is not found yet (tune)", flush=True)
        else:
            bench.lose(method, seed, rate, steps)


def flat(bench: Bench) -> None:
    """Doubles the baseline's steps until that wins less than FLAT."""
    steps, before = 250, math.inf
    while (row := bench.lose(BASELINE, TUNED_ON, bench.size.grid[1], steps)) is not None:
        won = 1 - row["loss"] / before
        print(f"{steps} steps: loss {row['loss']:.4f}, {100 * won:.2f} % below half as many", flush=True)
        if won < FLAT:
            return
        steps, before = 2 * steps, row["loss"]


def found(lines: list[dict[str, Any]], steps: int, tuned: int | None = None) -> dict[str, list[dict[str, Any]]]:
    """Of the lines of one size and text those of each method that count: its best rate, the seeds of the table."""
    out: dict[str, list[dict[str, Any]]] = {}
    for method in METHODS:
        rate = best_rate(lines, method, steps, tuned)
        for row in lines:
            if (row["method"], row["steps"], row["rate"]) == (method, steps, rate) and row["seed"] in SEEDS:
                out.setdefault(method, []).append(row)
    return out


def interval(losses: list[float]) -> float:
    """Half of the mean's 95 % interval; nan for one loss."""
    if len(losses) < 2:
        return math.nan
    return T_95[len(losses)] * statistics.stdev(losses) / math.sqrt(len(losses))


def against(lines: list[dict[str, Any]], base: list[dict[str, Any]]) -> tuple[float, float]:
    """(mean, half of its 95 % interval) of the percentage that a method loses against the baseline on the same seeds:
    the same samples in the same order from the same weights."""
    alone = {row["seed"]: row["loss"] for row in base}
    shares = [100 * (row["loss"] / alone[row["seed"]] - 1) for row in lines if row["seed"] in alone]
    return (statistics.mean(shares), interval(shares)) if shares else (math.nan, math.nan)


def table(size: str, steps: int, text: str | None, tuned: int | None = None) -> None:
    """A claim without an interval is none: a method of one seed has a dash there."""
    of_text = rows(size, text, steps)
    known = found(of_text, steps, tuned)
    tokens = SIZES[size].batch * SIZES[size].context * steps
    print(f"\n{size}, {steps} steps, {tokens:,} tokens of text {of_text[0]['text'] if of_text else '-'}\n")
    print("| method | learning rate | seeds | validation loss | against one optimiser | bits | of fp16's bytes |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for method, lines in known.items():
        losses = [row["loss"] for row in lines]
        more, half = against(lines, known.get(BASELINE, []))
        bits = statistics.mean(row["bits"] for row in lines)
        sent = f"{bits:.3f} | 1/{FP16 / bits:.3g}" if bits else " | "
        mean = f"{statistics.mean(losses):.4f} ± {shown(interval(losses), 4)}"
        print(
            f"| {method} | {lines[0]['rate']:g} | {len(lines)} | {mean} | {more:+.2f} ± {shown(half, 2)} % | {sent} |"
        )


def shown(half: float, digits: int) -> str:
    return "-" if math.isnan(half) else f"{half:.{digits}f}"


def tried(size: str, steps: int, text: str | None) -> None:
    """What is known of each method on the seed of tuning, which no claim rests on."""
    runs: dict[str, dict[float, dict[str, Any]]] = {}
    for row in rows(size, text, steps):
        if (row["steps"], row["seed"]) == (steps, TUNED_ON) and row["method"] in METHODS:
            runs.setdefault(row["method"], {})[row["rate"]] = row
    grid = SIZES[size].grid
    print(f"| method | bits | {' | '.join(f'at {rate:g}' for rate in grid)} |")
    print(f"| --- | --- |{' --- |' * len(grid)}")
    for method, of in sorted(runs.items(), key=lambda item: list(METHODS).index(item[0])):
        losses = " | ".join(f"{of[rate]['loss']:.4f}" if rate in of else "" for rate in grid)
        print(f"| {method} | {next(iter(of.values()))['bits']:.3f} | {losses} |")


def lengths(size: str, text: str | None) -> None:
    """What the methods that ran at several lengths lose on the seed of tuning, beside one optimiser with the same rate
    and length. No method has its rate tuned at each length, so the columns are no claim."""
    runs: dict[str, dict[tuple[float, int], float]] = {}
    for row in rows(size, text):
        if row["seed"] == TUNED_ON and row["method"] in METHODS:
            runs.setdefault(row["method"], {})[row["rate"], row["steps"]] = row["loss"]
    base = runs.get(BASELINE, {})
    columns = sorted({steps for (_, steps) in base})
    print(f"| method | learning rate | {' | '.join(f'{steps:,} steps' for steps in columns)} |")
    print(f"| --- | --- |{' --- |' * len(columns)}")
    for method, of in sorted(runs.items(), key=lambda item: list(METHODS).index(item[0])):
        for rate in sorted({rate for rate, _ in of}):
            if sum(key[0] == rate for key in of) < 2:
                continue
            cells = (_beside(of.get((rate, steps)), base.get((rate, steps))) for steps in columns)
            print(f"| {method} | {rate:g} | {' | '.join(cells)} |")


def _beside(loss: float | None, base: float | None) -> str:
    if loss is None:
        return ""
    return f"{loss:.4f}" if base in (None, loss) else f"{loss:.4f} ({100 * (loss / base - 1):+.1f} %)"


def gaps(lines: list[dict[str, Any]], tuned: int) -> dict[str, list[tuple[int, float, float]]]:
    """(steps, percentage above one optimiser of that length, half of its 95 % interval) of the methods that ran with
    all seeds at several lengths; up to ``tuned`` steps each at the rate of its length, then at that of ``tuned``."""
    out: dict[str, list[tuple[int, float, float]]] = {}
    for steps in sorted({row["steps"] for row in lines}):
        known = found(lines, steps, tuned if steps > tuned else None)
        for method, of in known.items():
            if method != BASELINE and len(of) == len(known.get(BASELINE, [])) == len(SEEDS):
                out.setdefault(method, []).append((steps, *against(of, known[BASELINE])))
    return {method: points for method, points in out.items() if len(points) > 1}


def lengths_picture(size: str, text: str | None, tuned: int) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    for method, points in gaps(rows(size, text), tuned).items():
        steps, means, halves = zip(*points, strict=True)
        axes.errorbar(steps, means, halves, fmt="o-", capsize=3, label=method)
    axes.axhline(0, color="black", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", xlabel="steps", ylabel="validation loss, % above one optimiser of that length")
    axes.set(title=f"{size}; whiskers: 95 %")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(LENGTHS, metadata={"Date": None})


def picture(size: str, steps: int, text: str | None) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5))
    for number, (method, lines) in enumerate(found(rows(size, text, steps), steps).items()):
        losses = [row["loss"] for row in lines]
        mean, half = statistics.mean(losses), interval(losses)
        color = "tab:red" if "muon" in method else "tab:blue"
        if method.startswith(BASELINE):
            axes.axhline(mean, color=color, linewidth=0.8, linestyle=":", label=method)
            continue
        bits = statistics.mean(row["bits"] for row in lines)
        axes.errorbar([bits], [mean], [0.0 if math.isnan(half) else half], fmt="o", capsize=3, color=color)
        axes.annotate(
            method, (bits, mean), xytext=(6, -11 if number % 2 else 3), textcoords="offset points", fontsize=8
        )
    axes.set(xscale="log", xlabel="bits a parameter and step that a node sends")
    axes.set(ylabel="validation loss, nats a token", title=f"{size}, {steps} steps; whiskers: 95 %")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["flat", "tune", "run", "table", "tried", "lengths", "picture"])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--only", default="", help="methods whose name matches this regular expression")
    parser.add_argument("--rates", type=float, nargs="*", default=[], help="tune: these of the grid")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, help="other than the size's")
    parser.add_argument("--tuned", type=int, help="the learning rates are those that were best with so many steps")
    parser.add_argument("--text", help="what shows results: the text whose lines count")
    arguments = parser.parse_args()
    steps = arguments.steps or SIZES[arguments.size].steps
    torch.set_num_threads(1)
    if arguments.what == "table":
        table(arguments.size, steps, arguments.text, arguments.tuned)
    elif arguments.what == "tried":
        tried(arguments.size, steps, arguments.text)
    elif arguments.what == "lengths":
        lengths(arguments.size, arguments.text)
    elif arguments.what == "picture":
        if arguments.tuned:
            lengths_picture(arguments.size, arguments.text, arguments.tuned)
        else:
            picture(arguments.size, steps, arguments.text)
    else:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(arguments.size, Path(folder), arguments.device, arguments.minutes, arguments.tuned)
            if arguments.what == "flat":
                flat(bench)
            elif arguments.what == "tune":
                tune(bench, steps, arguments.only, tuple(arguments.rates))
            else:
                run(bench, steps, arguments.only)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("stopped: the same command goes on with the runs that are not there yet") from None
