"""Loss against the bytes between four stages, in training that reads each token once: codecs, and model.subspace.

    python -m benchmarks.subspace [--steps 600] [--seeds 1] [--only NAME]     train what is not known yet
    python -m benchmarks.subspace --table [--text T]                          what is known, for docs/quality.md

A llama of 4 blocks, width 128 and context 128 over bytes of installed Python, batch 16, real trainers and codecs in one
process. Each setting has the better of two learning rates, chosen on seed 0, which is not in the table. Results are
kept in benchmarks/results/quality.json: a run that is there is not repeated. Losses on two texts do not compare: each
result names its text by the first digits of its SHA-256, and the table is of one, the first unless T is given.
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from farflung.job.schema import Job

from .equal_loss_lines import against, interval, shown
from .quality import keep, known, load, prepared, shape_of, train
from .text import digest, sources

WIDTH, CONTEXT, BATCH = 128, 128, 16
RATES = (2e-3, 4e-3)
BASELINE = "bf16"
SETTINGS: dict[str, tuple[int | None, str]] = {
    BASELINE: (None, "bf16"),
    "int4": (None, "int4"),
    "int2": (None, "int2"),
    "subspace 32, bf16": (32, "bf16"),
    "subspace 32, int4": (32, "int4"),
    "subspace 16, bf16": (16, "bf16"),
    "subspace 16, int8": (16, "int8"),
    "subspace 8, bf16": (8, "bf16"),
}
"""Of each setting ``model.subspace`` and the forward codec; gradients go back as int8 where that is not bf16."""


def job_of(setting: str, steps: int, seed: int, rate: float, text: list[str]) -> Job:
    subspace, codec = SETTINGS[setting]
    backward = "bf16" if codec == "bf16" else "int8"
    return Job.model_validate(
        {
            "run": {"name": "subspace", "seed": seed, "steps": steps},
            "model": {
                "family": "llama",
                "layers": 4,
                "width": WIDTH,
                "heads": 4,
                "context": CONTEXT,
                "tie": False,
                "subspace": subspace,
            },
            "data": {"text": text, "validation": 0.05},
            "train": {
                "batch": BATCH,
                "microbatch": BATCH // 2,
                "learning_rate": rate,
                "warmup_steps": 40,
                "eval_every": steps // 4,
            },
            "parallel": {"stages": 4, "pipelines": 1, "schedule": "1f1b"},
            "activations": {"forward": codec, "backward": backward},
            "checkpoint": {"every": 0},
        }
    )


def measure(steps: int, seeds: int, only: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "sources.txt"
        place.write_text(written := sources(steps * BATCH * CONTEXT * 11 // 10 + 200_000))
        text = digest(written)
        chosen = [setting for setting in SETTINGS if re.search(only, setting)]
        for seed, setting in itertools.product(range(seeds + 1), chosen):
            for rate in RATES if seed == 0 else [best(setting, steps, text)]:
                name = named(setting, steps, rate, text)
                if not known("subspace", name, seed):
                    job = job_of(setting, steps, seed, rate, [str(place)])
                    facts, artifacts = prepared(job, Path(folder) / "state")
                    keep("subspace", name, seed, train(job, facts, artifacts, shape_of(job)))


def named(setting: str, steps: int, rate: float, text: str) -> str:
    return f"{setting}, {steps} steps, rate {rate:g}, text {text}"


def best(setting: str, steps: int, text: str) -> float:
    """The learning rate that was best on seed 0."""
    results = load()["subspace"]
    return min(RATES, key=lambda rate: float(results[named(setting, steps, rate, text)]["0"]["loss"]))


def table(steps: int, text: str | None) -> None:
    results: dict[str, dict[str, dict[str, Any]]] = load().get("subspace", {})
    texts = (name.rpartition(" ")[2] for name in results if f", {steps} steps, " in name)
    text, runs = text or next(texts, ""), {}
    for setting in SETTINGS:
        if all(named(setting, steps, rate, text) in results for rate in RATES):
            of = results[named(setting, steps, best(setting, steps, text), text)]
            runs[setting] = [{**run, "seed": int(seed)} for seed, run in of.items() if seed != "0"]
    runs = {setting: found for setting, found in runs.items() if found}
    if BASELINE not in runs:
        raise SystemExit("nothing is known yet")
    whole = statistics.mean(run["activation_bytes"] / run["steps"] for run in runs[BASELINE])
    print("| between stages | seeds | validation loss | against bf16 | bytes a step | times fewer than bf16 |")
    print("| --- | --- | --- | --- | --- | --- |")
    for setting, found in runs.items():
        losses = [run["loss"] for run in found]
        size = statistics.mean(run["activation_bytes"] / run["steps"] for run in found)
        more, half = against(found, runs[BASELINE])
        print(
            f"| {setting} | {len(losses)} | {statistics.mean(losses):.4f} ± {shown(interval(losses), 4)} "
            f"| {more:+.2f} ± {shown(half, 2)} % | {size:,.0f} | {whole / size:.1f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="settings whose name matches this regular expression")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--text", help="table: of this text")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.table:
        table(given.steps, given.text)
    else:
        measure(given.steps, given.seeds, given.only)


if __name__ == "__main__":
    main()
