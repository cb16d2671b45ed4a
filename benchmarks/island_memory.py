"""Main memory that each process of an island takes: ``python -m benchmarks.island_memory [RANKS ...]``.

A node alone trains a few steps of a model of some tens of millions of parameters (``--width``), on the CPU, over gloo.
Of each process it prints what it has in memory in the last but one step beyond what it had after a run of one layer:
resident bytes, and its share of pages where several processes have touched them (PSS).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from windows import Windows, facts_of

from farflung.job.schema import Job
from farflung.node.pipeline.island import Island
from farflung.node.training.member.view_member import ViewMember
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

STEPS = 4
ROLLUP = ("Rss", "Pss")


def memory_of(process: int) -> dict[str, float]:
    """MB by kind."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 / 1e6 for line in lines[1:]}
    return {kind: found[kind] for kind in ROLLUP}


def job_of(width: int, layers: int, mode: str, inside: str) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "memory", "seed": 3, "steps": STEPS},
            "model": {"family": "llama", "layers": layers, "width": width, "heads": 4, "context": 16},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 4, "microbatch": 4, "eval_every": 0},
            "parallel": {"inside": inside},
            "updates": {"mode": mode},
            "checkpoint": {"every": 0},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ranks", type=int, nargs="*", default=[2])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--mode", default="delta", choices=("delta", "gradient"))
    parser.add_argument("--inside", default="fsdp", choices=("ddp", "fsdp", "tp"))
    given = parser.parse_args()
    for ranks in given.ranks:
        measure(ranks, job_of(given.width, given.layers, given.mode, given.inside))


def measure(ranks: int, job: Job) -> None:
    """Print a line for each process of an island of so many ranks."""
    with Island("cpu", ranks) if ranks > 1 else nullcontext() as island:
        if island is not None:
            island.measure()
        hands = island._hands if island is not None else ()
        processes = [os.getpid(), *(hand.process.pid for hand in hands)]
        small = job.model.model_copy(update={"layers": 1})
        train(job.model_copy(update={"model": small}), island, processes)  # loads all code that a step needs
        before = [memory_of(one) for one in processes]
        found, weights, loss = train(job, island, processes)
        print(f"{ranks} ranks, {job.parallel.inside}, {job.updates.mode}: {weights:.0f} MB of weights, loss {loss:.4f}")
        for rank, (old, new) in enumerate(zip(before, found, strict=True)):
            said = ", ".join(f"{kind.upper()} {new[kind] - old[kind]:.0f} MB" for kind in ROLLUP)
            print(f"  rank {rank}: {said}", flush=True)


def train(job: Job, island: Island | None, processes: Sequence[int]) -> tuple[list[dict[str, float]], float, float]:
    """(each process's memory in the last but one step, MB of weights, last loss) of a run."""
    facts = facts_of(samples=100, validation=10, context=16, vocabulary=997, steps=STEPS)
    plan = Plan((("n0",),), ((0, job.model.layers + 1),), (1,), schedule="1f1b")
    hub = Hub(job, facts)
    hub.start("n0", Windows(facts), island)
    found: list[dict[str, float]] = []
    stepped = ViewMember.stepped

    def watched(view: ViewMember, step: int) -> None:
        if step == STEPS - 1:
            found[:] = [memory_of(one) for one in processes]
        stepped(view, step)

    ViewMember.stepped = watched  # type: ignore[method-assign]
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    ViewMember.stepped = stepped  # type: ignore[method-assign]
    assert not hub.errors, hub.errors
    state = hub.trainers["n0"].state
    assert state is not None
    weights = sum(section.x.nbytes for section in state.sections.values()) / 1e6
    return found, weights, outcome.losses[STEPS]


if __name__ == "__main__":
    main()
