"""What a restart of everything costs: loss after it against the undisturbed run, codec by codec, in both modes.

    python -m benchmarks.restarts [--seeds 5] [--only cocktail] [--out benchmarks/results/restarts.json]

Nodes of a small llama train in one process (testing/loopback.py), all of them end after the checkpoint of step 40, and
begin again with it, with what each had kept beside it and without. The table has the mean over seeds of the training
loss of the next four steps and of steps 57 to 60, and the spread over seeds (a standard deviation) of the undisturbed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from farflung.coordinator.checkpoints.manifest import manifest_of, position_in
from farflung.coordinator.membership.resuming.learnt import taken_up, unsent_in
from farflung.job.data.facts import Facts, Profile
from farflung.job.schema import Job
from farflung.node.data.dataset import Dataset
from farflung.node.state.files.rests import Rests
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

AT, STEPS = 40, 60
PLAN = Plan(pipelines=(("a",), ("b",), ("c",)), stages=((0, 2),), microbatches=(2, 1, 1))
COCKTAIL = "cocktail:random=0.1,top=0.2,bits=4"
CASES: list[tuple[str, dict[str, Any]]] = [
    ("delta", {"codec": "none"}),
    ("delta", {"codec": COCKTAIL, "overlap": 1}),
    ("delta", {"codec": COCKTAIL, "overlap": 0}),
    ("delta", {"codec": f"{COCKTAIL},feedback=true", "overlap": 1}),
    ("delta", {"codec": "chunked_topk:k=128,bits=2", "overlap": 1}),
    ("delta", {"codec": "chunked_topk:k=128,bits=2,feedback=true", "overlap": 1}),
    ("delta", {"codec": "topk:ratio=0.05", "overlap": 1}),
    ("delta", {"codec": "int4", "overlap": 1}),
    ("delta", {"codec": "powersgd:rank=1", "overlap": 1}),
    ("delta", {"codec": "sign:scale=rms,feedback=true", "overlap": 1}),
    ("delta", {"codec": COCKTAIL, "every": 5, "overlap": 2, "outer": "nesterov:lr=0.7,momentum=0.9"}),
    ("delta", {"codec": COCKTAIL, "every": 4, "overlap": 1, "outer": "sgd:lr=0.7"}),
    ("delta", {"codec": COCKTAIL, "pattern": "gossip", "agreed": False}),
    ("delta", {"codec": COCKTAIL, "pattern": "async", "agreed": False}),
    ("gradient", {"codec": "chunked_topk:k=128,bits=2,feedback=true"}),
    ("gradient", {"codec": "topk:ratio=0.05,feedback=true"}),
    ("gradient", {"codec": "sign:scale=rms,feedback=true"}),
    ("gradient", {"codec": "powersgd:rank=1,feedback=true"}),
    ("gradient", {"codec": "int4"}),
]


class Windows(Dataset):
    """Learnable token windows, held in memory."""

    def __init__(self, facts: Facts, seed: int) -> None:
        self.samples, self.validation_samples = facts.samples, facts.validation_samples
        generator = torch.Generator().manual_seed(seed)
        start = torch.randint(0, facts.vocabulary, (facts.samples, 1), generator=generator)
        stride = torch.randint(1, 4, (facts.samples, 1), generator=generator)
        self.rows = (start + stride * torch.arange(facts.context + 1)) % facts.vocabulary

    def batch(self, ids: Any) -> Any:
        rows = self.rows[torch.tensor(list(ids))]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def job_of(mode: str, updates: dict[str, Any], seed: int, steps: int = STEPS) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "restarts", "seed": seed, "steps": steps},
            "model": {"family": "llama", "layers": 1, "width": 32, "heads": 2, "context": 16, "tie": False},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 16, "microbatch": 4, "learning_rate": 3e-3, "eval_every": 0},
            "updates": {"mode": mode, "block": 1024, "dense_rounds": 0, **updates},
            "checkpoint": {"every": AT},
        }
    )


def facts_of(samples: int = 4000) -> Facts:
    return Facts(
        samples=samples,
        validation_samples=0,
        context=16,
        vocabulary=29,
        token_dtype="uint8",
        steps=STEPS,
        tokens_digest="",
        profile=Profile(layers=[], tied=False, family=""),
        artifacts={},
    )


def begun(
    job: Job,
    folder: Path | None,
    artifacts: dict[str, bytes],
    plan: Plan,
    before: Callable[[Hub], None] = lambda hub: None,
    facts: Facts | None = None,
    **view: Any,
) -> Hub:
    """A hub whose nodes have a view. ``folder``: where they keep what they learn beside checkpoints. ``before``: what
    is done when the nodes are there and the view is not."""
    facts = facts or facts_of()
    hub = Hub(job, facts, artifacts)
    for name in plan.nodes:
        rests = Rests(folder / name, "restarts") if folder is not None else None
        hub.start(name, Windows(facts, job.run.seed or 0), rests=rests)
    before(hub)
    hub.begin(plan, plan.nodes, **{"checkpoint": 0, **view})
    return hub


def checkpoint_of(hub: Hub, step: int) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(manifest, artifacts) of the checkpoint that a hub's nodes made of a step."""
    files = {file: both for (one, file), both in hub.shards.items() if one == step}
    manifest = {**manifest_of({file: meta for file, (_, meta) in files.items()}), "step": step, "files": sorted(files)}
    artifacts = {f"checkpoint/{step}/{file}": content for file, (content, _) in files.items()}
    return manifest, {**artifacts, f"checkpoint/{step}/manifest.json": json.dumps(manifest).encode()}


def again(
    job: Job, folder: Path, made: Hub, without: bool = False, start: bool = True, plan: Plan = PLAN, **more: Any
) -> Hub:
    """A new hub that goes on from another's checkpoint of step ``AT``; ``without`` what nodes had kept beside it.
    ``more``: of ``begun``."""
    manifest, artifacts = checkpoint_of(made, AT)
    here = {name: Rests(folder / name, "restarts").held() for name in plan.nodes if not without}
    gradient = job.updates.mode == "gradient"
    position, restores, _ = taken_up(position_in(manifest), unsent_in(manifest), here, {}, gradient)
    return begun(
        job,
        folder,
        artifacts,
        plan,
        checkpoint=AT,
        step=AT,
        cursor=position.cursor,
        redo=position.redo,
        restores=restores,
        kept_in=manifest["view"],
        start=start,
        **more,
    )


def losses(mode: str, updates: dict[str, Any], seed: int) -> list[dict[int, float]]:
    """Losses by step: undisturbed, restarted, and restarted without what nodes had learnt beside the checkpoint."""
    job = job_of(mode, updates, seed)
    with tempfile.TemporaryDirectory() as place:
        made = begun(job, Path(place), {}, PLAN)
        found = [made.finish(PLAN.nodes).losses]
        settle(made, AT)
        for without in (False, True):
            hub = again(job, Path(place), made, without=without)
            found.append(hub.finish(PLAN.nodes).losses)
            settle(hub, AT)
    return found


def settle(hub: Hub, step: int) -> None:
    """The nodes' disks are as they were when everything ended after ``step``."""
    for trainer in hub.trainers.values():
        if trainer.resources.rests is not None:
            trainer.resources.rests.forget_after(step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose description has this")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print(f"{'':81}{'steps 41-44':^27}{'steps 57-60':^27}")
    print(f"{'mode':9}{'updates':72}" + 2 * f"{'restart':>9}{'without':>9}{'undist.':>9}" + f"{'spread':>8}")
    for mode, updates in CASES:
        words = ", ".join(f"{key} = {value}" for key, value in updates.items() if key != "codec")
        what = f"{updates['codec']}{', ' if words else ''}{words}"
        if given.only not in f"{mode} {what}":
            continue
        found: list[list[float]] = []
        for seed in range(given.seeds):
            whole, after, bare = losses(mode, updates, seed)
            found.append(
                [
                    statistics.mean(curve[step] for step in range(first, first + 4))
                    for first in (AT + 1, STEPS - 3)
                    for curve in (after, bare, whole)
                ]
            )
        row = [statistics.mean(column) for column in zip(*found, strict=True)]
        spread = statistics.pstdev(one[5] for one in found)
        rows.append({"mode": mode, "updates": updates, "seeds": given.seeds, "losses": row, "spread": spread})
        print(f"{mode:9}{what:72}" + "".join(f"{one:9.4f}" for one in row) + f"{spread:8.4f}", flush=True)
        if given.out:
            given.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
