"""DDP hooks side by side with torch's own: time per step, bytes a rank sends, loss. Gloo on this machine.

    python benchmarks/ddp.py [--ranks 2] [--steps 60]

torch's PowerSGD hook is run with one bucket: with more it aborts or hangs on gloo.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from farflung.compress import ddp

OURS = [
    "none",
    "bf16",
    "int8",
    "eden:bits=2",
    "drive",
    "sign",
    "powersgd:rank=2",
    "topk:ratio=0.01",
    "thc",
    "cocktail:feedback=true",
]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def torch_hooks() -> dict[str, tuple[Callable[[], Any], Any]]:
    def power() -> Any:
        return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)

    return {
        "torch: no hook": (lambda: None, None),
        "torch: fp16": (lambda: None, default_hooks.fp16_compress_hook),
        "torch: powerSGD rank 2": (power, powerSGD_hook.powerSGD_hook),
    }


def train(rank: int, name: str, steps: int) -> tuple[float, float]:
    """(milliseconds a step, validation loss)."""
    hooks = torch_hooks()
    model = DistributedDataParallel(net(), bucket_cap_mb=25 if "powerSGD" in name else 0.5)
    if name in hooks:
        state, hook = hooks[name]
        if hook is not None:
            model.register_comm_hook(state(), hook)
    else:
        model.register_comm_hook(ddp.State(name), ddp.hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(rank + 1)
    teacher = torch.randn(64, 10, generator=torch.Generator().manual_seed(99))
    start = 0.0
    for step in range(steps):
        if step == 5:
            start = time.perf_counter()
        x = torch.randn(64, 64, generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1)).backward()
        optimizer.step()
    took = (time.perf_counter() - start) / max(1, steps - 5)
    x = torch.randn(4000, 64, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        loss = float(nn.functional.cross_entropy(model.module(x), (x @ teacher).argmax(1)))
    return took * 1e3, loss


def worker(rank: int, ranks: int, store: str, steps: int, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    for name in [*torch_hooks(), *OURS]:
        dist.barrier()
        row = train(rank, name, steps)
        if rank == 0:
            results.put((name, *row))
    results.put(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        workers = [
            context.Process(target=worker, args=(rank, options.ranks, store, options.steps, results), daemon=True)
            for rank in range(options.ranks)
        ]
        for each in workers:
            each.start()
        print("| hook | ms a step | validation loss |\n| --- | --- | --- |")
        done = 0
        while done < options.ranks:
            if any(each.exitcode for each in workers):
                raise SystemExit("a rank failed: see above")
            try:
                row = results.get(timeout=2)
            except queue.Empty:
                continue
            if row is None:
                done += 1
            else:
                print(f"| {row[0]} | {row[1]:.1f} | {row[2]:.3f} |", flush=True)
        for each in workers:
            each.join(10)
            each.kill()


if __name__ == "__main__":
    main()
