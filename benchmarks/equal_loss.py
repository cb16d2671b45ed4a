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
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from farflung.job.data.facts import Facts
from farflung.job.schema import Job
from farflung.node.data.dataset import Dataset, Tokens

from . import equal_loss_lines
from .equal_loss_lines import PIPELINES, SEEDS, SIZES, TUNED_ON, Size, best_rate, rows
from .equal_loss_methods import BASELINE, METHODS
from .equal_loss_shown import lengths, lengths_picture, picture, table, tried
from .members import simulated
from .quality import prepared, shape_of, train
from .text import digest, in_pieces, make_tokenizer, sources

VOCABULARY = 4096
BLOCK = 1 << 20
"""Of sections of looped sizes: one part, which is quicker."""
FLAT = 0.01
"""Of the loss, that twice as many steps may still win."""


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
        with equal_loss_lines.RESULTS.open("a") as file:
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
