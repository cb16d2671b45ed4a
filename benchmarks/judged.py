"""What judging contributions by effect finds, whom it puts out, and what it costs.

    python -m benchmarks.judged [--backwards] [--only liars|seeds|spare|uneven|cost]     the rows that are not there yet
    python -m benchmarks.judged row --liars 2 --kind copy --seed 3       one row again, printed
    python -m benchmarks.judged table                                    the tables, from the saved rows

Eight members in one process (benchmarks/judged_group.py) train a small GPT-2 on Shakespeare in ``delta`` mode with
codec int8, three local steps of eight samples each between two rounds. The last one, two or three of them lie in each
round about what they learnt: with its sign turned, as noise of the same norm, as a copy of the first member's, or as
what they learnt in the round before. Rows are stored one by one, so that it can be stopped and continued, also by two
at once.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.judged_group import NAMES, Case, play
from farflung.coordinator.data.facts import prepare
from farflung.job.data.facts import Facts
from farflung.job.schema import Job
from farflung.node.data.dataset import Tokens

RESULTS = Path(__file__).resolve().parent / "results" / "judged.json"
KINDS = ("sign flip", "noise", "copy", "stale")
SEEDS = 20
EVERY, BATCH = 3, 64
JUDGE = 0.05


def job_of(case: Case, text: list[str]) -> Job:
    width, heads, context = (256, 4, 128) if case.large else (32, 4, 32)
    size = {"layers": 2 if case.large else 1, "width": width, "heads": heads, "context": context}
    return Job.model_validate(
        {
            "model": {"family": "gpt2", **size, "vocabulary": 256, "tie": False},
            "train": {"learning_rate": 8e-3, "betas": (0.9, 0.99), "batch": BATCH, "microbatch": 1},
            "updates": {"mode": "delta", "every": EVERY, "codec": "int8", "pattern": "all_to_all", "judge": case.judge},
            "run": {"steps": EVERY * case.rounds, "seed": case.seed},
            "data": {"text": text},
        }
    )


def cases() -> Iterator[tuple[str, Case]]:
    for judge in (0.0, JUDGE):
        yield "liars", Case(judge=judge)
        for kind in KINDS:
            for liars in (1, 2, 3):
                yield "liars", Case(liars=liars, kind=kind, judge=judge)
    for seed in range(1, SEEDS + 1):
        yield "seeds", Case(seed=seed, spare=True, rounds=24)
        yield "seeds", Case(seed=seed, liars=2, kind=KINDS[seed % len(KINDS)], slander=True, spare=True, rounds=24)
    for kind in KINDS:
        yield "spare", Case(liars=2, kind=kind, spare=True)
    for seed in range(1, 4):
        yield "uneven", Case(seed=seed, uneven=True, spare=True)
    yield "cost", Case(judge=1.0, large=True, rounds=2)


def command_of(case: Case) -> str:
    words = ["python", "-m", "benchmarks.judged", "row"]
    for one in fields(Case):
        value = getattr(case, one.name)
        if value != one.default:
            words += [f"--{one.name}"] if value is True else [f"--{one.name}", str(value)]
    return shlex.join(words)


class Bench:
    def __init__(self, folder: Path) -> None:
        from farflung.examples.shakespeare import write_text

        self._folder, self._text = folder, [str(path) for path in write_text(folder)]
        self._known: dict[int, tuple[Facts, Tokens]] = {}

    def play(self, case: Case) -> dict[str, Any]:
        job = job_of(case, self._text)
        context = int(job.model.context or 0)
        if context not in self._known:
            made = asyncio.run(prepare(job, self._folder / str(context)))
            tokens = made.files["data/tokens"].read_bytes()
            data = Tokens(made.facts, lambda name, offset, length: tokens[offset : offset + length])
            self._known[context] = made.facts, data
        return play(job, *self._known[context], case)


def read(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def add(path: Path, row: dict[str, Any]) -> None:
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = [one for one in read(path) if one["command"] != row["command"]]
        lines = ",\n".join(json.dumps(one) for one in [*rows, row])
        path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def measure(path: Path, only: str, backwards: bool) -> None:
    wanted = [(group, case) for group, case in cases() if only in ("", group)]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        for group, case in reversed(wanted) if backwards else wanted:
            command = command_of(case)
            if command not in {row["command"] for row in read(path)}:
                add(path, {"command": command, "group": group, **asdict(case), **bench.play(case)})
                print(command, file=sys.stderr)


# ---- tables --------------------------------------------------------------------------------------


def whom(row: dict[str, Any]) -> str:
    liars = NAMES[len(NAMES) - row["liars"] :]
    found = [str(row["out"][name]) for name in liars if name in row["out"]]
    missed = [name for name in liars if name not in row["out"]]
    rounds = f"round{'s' * (len(found) > 1)} {' and '.join(found)}" if found else ""
    return ", ".join(filter(None, [rounds, f"{len(missed)} not" if missed else ""]))


def table(rows: list[dict[str, Any]]) -> str:
    of = {row["command"]: row for row in rows}
    lines = [
        f"| {len(NAMES)} members, {Case().rounds} rounds of {EVERY} steps"
        " | not judged | judged | liars out at | honest out |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind in ("", *KINDS):
        for liars in (1, 2, 3) if kind else (0,):
            plain, judged = (of.get(command_of(Case(liars=liars, kind=kind, judge=one))) for one in (0.0, JUDGE))
            if plain and judged:
                who = f"{liars} liar{'s' * (liars > 1)}: {kind}" if liars else "nobody lies"
                out = whom(judged) if liars else ""
                lines.append(
                    f"| {who} | {plain['loss']:.3f} | {judged['loss']:.3f} | {out} | {len(judged['honest_out'])} |"
                )
    spare = {kind: of.get(command_of(Case(liars=2, kind=kind, spare=True))) for kind in KINDS}
    lines += [
        f"| 2 liars: {kind}; a spare judges | | {row['loss']:.3f} | {whom(row)} | {len(row['honest_out'])} |"
        for kind, row in spare.items()
        if row
    ]
    return "\n".join(lines)


def sentences(rows: list[dict[str, Any]]) -> str:
    lines = []
    for liars in (0, 2):
        some = [row for row in rows if row["group"] == "seeds" and row["liars"] == liars]
        if some:
            honest = sum(len(row["honest_out"]) for row in some)
            wrong = mean(sum(name in NAMES[: 8 - liars] for _, name in row["looks"]) for row in some)
            found = [row["out"].get(name) for row in some for name in NAMES[8 - liars :]] if liars else []
            lines.append(
                f"{len(some)} seeds, {liars} liars: honest members out {honest}; looks at honest members {wrong:.1f} a"
                f" run; liars out {sum(one is not None for one in found)} of {len(found)}"
            )
            for kind in KINDS if liars else ():
                of_kind = [row for row in some if row["kind"] == kind]
                when = sorted(row["out"].get(name, 999) for row in of_kind for name in NAMES[8 - liars :])
                lines.append(f"  {kind}: out at rounds {when} (999: not)")
    for row in rows:
        if row["group"] == "uneven":
            lines.append(f"uneven, seed {row['seed']}: honest out {row['honest_out']}, scores {row['score']}")
        if row["group"] == "cost":
            part = row["judging_s"] / row["training_s"]
            lines.append(
                f"width 256, all judge every round: {part:.0%} of the time of the steps between two rounds; at"
                f" judge = {JUDGE}, a part {JUDGE} of that: {JUDGE * part:.1%}"
            )
    plain = [row for row in rows if row["judge"] and not row["looks"] and not row["large"]]
    if plain:
        part = sum(row["judging_s"] for row in plain) / sum(row["training_s"] for row in plain)
        lines.append(f"judge = {JUDGE}, width 32, {len(plain)} runs without a look: {part:.1%}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("measure", "row", "table"), default="measure")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", choices=("", *dict(cases())))
    parser.add_argument("--backwards", action="store_true")
    for one in fields(Case):
        if isinstance(one.default, bool):
            parser.add_argument(f"--{one.name}", action="store_true")
        else:
            parser.add_argument(f"--{one.name}", type=type(one.default), default=one.default)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    if wanted.what == "row":
        with tempfile.TemporaryDirectory() as folder:
            print(
                json.dumps(
                    Bench(Path(folder)).play(Case(**{one.name: getattr(wanted, one.name) for one in fields(Case)}))
                )
            )
        return
    if wanted.what == "measure":
        measure(wanted.output, wanted.only, wanted.backwards)
    rows = read(wanted.output)
    print(table(rows), sentences(rows), sep="\n\n")


if __name__ == "__main__":
    main()
