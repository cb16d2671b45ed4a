"""Main memory that each process of an island takes: ``python -m benchmarks.island_memory [RANKS ...]``.

A node trains a few steps of a model of some tens of millions of parameters (``--width``), on the CPU, over gloo: alone,
or with ``--members 2`` beside a node of one device, which is a thread of the first process. Of each process it prints
what it has in memory in the last but one step beyond what it had after a run of one layer: resident bytes, its share of
pages where several processes have touched them (PSS), and, of the resident bytes, those in memory that the ranks share:
the sections, and boxes for messages.
"""

from __future__ import annotations

import argparse
import os
import subprocess
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
KINDS = ("Rss", "Pss", "Shared")


def memory_of(process: int) -> dict[str, float]:
    """MB by kind."""
    found = dict.fromkeys(KINDS, 0.0)
    shared = False
    for line in Path(f"/proc/{process}/smaps").read_text(encoding="utf-8").splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            shared = "memfd:farflung" in line
        elif (kind := first.rstrip(":")) in KINDS:
            found[kind] += int(rest[0]) * 1024 / 1e6
            if kind == "Rss" and shared:
                found["Shared"] += int(rest[0]) * 1024 / 1e6
    return found


def job_of(given: argparse.Namespace) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "memory", "seed": 3, "steps": STEPS},
            "model": {"family": "llama", "layers": given.layers, "width": given.width, "heads": 4, "context": 16},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 4 * given.members, "microbatch": 4, "eval_every": 0},
            "parallel": {"inside": given.inside},
            "updates": {"mode": given.mode, "codec": given.codec},
            "checkpoint": {"every": given.checkpoint},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ranks", type=int, nargs="*", default=[2])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--mode", default="delta", choices=("delta", "gradient"))
    parser.add_argument("--inside", default="fsdp", choices=("ddp", "fsdp", "tp"))
    parser.add_argument("--codec", default="none")
    parser.add_argument("--members", type=int, default=1, choices=(1, 2))
    parser.add_argument("--checkpoint", type=int, default=0, metavar="STEPS", help="a checkpoint every so many steps")
    given = parser.parse_args()
    if len(given.ranks) == 1:
        measure(given.ranks[0], job_of(given), given.members)
    for ranks in given.ranks if len(given.ranks) > 1 else ():  # in a process of its own, which has nothing of others
        options = [f"--{name}={value}" for name, value in vars(given).items() if name != "ranks"]
        subprocess.run([sys.executable, "-m", "benchmarks.island_memory", str(ranks), *options], check=True)


def measure(ranks: int, job: Job, members: int) -> None:
    """Print a line for each process of an island of so many ranks."""
    with Island("cpu", ranks) if ranks > 1 else nullcontext() as island:
        if island is not None:
            island.measure()
        hands = island._hands if island is not None else ()
        processes = [os.getpid(), *(hand.process.pid for hand in hands)]
        small = job.model.model_copy(update={"layers": 1})
        train(job.model_copy(update={"model": small}), island, processes, members)  # loads all code that a step needs
        before = [memory_of(one) for one in processes]
        found, weights, loss = train(job, island, processes, members)
        updates = f"{job.parallel.inside}, {job.updates.mode}, {job.updates.codec}, members: {members}"
        print(f"{ranks} ranks, {updates}: {weights:.0f} MB of weights, loss {loss:.4f}")
        for rank, (old, new) in enumerate(zip(before, found, strict=True)):
            said = ", ".join(f"{kind.upper()} {new[kind] - old[kind]:.0f} MB" for kind in KINDS)
            print(f"  rank {rank}: {said}", flush=True)


def train(
    job: Job, island: Island | None, processes: Sequence[int], members: int
) -> tuple[list[dict[str, float]], float, float]:
    """(each process's memory in the last but one step, MB of weights, last loss) of a run."""
    facts = facts_of(samples=100, validation=10, context=16, vocabulary=997, steps=STEPS)
    pipelines = tuple((f"n{number}",) for number in range(members))
    plan = Plan(pipelines, ((0, job.model.layers + 1),), (1,) * members, schedule="1f1b")
    hub = Hub(job, facts)
    for name in plan.nodes:
        hub.start(name, Windows(facts), island if name == "n0" else None)
    found: list[dict[str, float]] = []
    stepped = ViewMember.stepped

    def watched(view: ViewMember, step: int) -> None:
        if step == STEPS - 1 and view.context.name == "n0":
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
