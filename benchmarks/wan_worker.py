"""The other systems in benchmarks/wan.py: plain data parallelism by torch DDP with its hooks, and by hivemind.

    python -m benchmarks.wan_worker SYSTEM --rank R --world N --meet ADDRESS_OR_FILE --batch B --steps S --text FILE

SYSTEM: alone (the same step with no exchange) | alone-fused (with torch's fused AdamW) | ddp | ddp-fp16 | ddp-bf16 |
ddp-powersgd (torch's hooks) | ddp-int8 (farflung's hook) | hivemind. It trains the model of `shape` on the bytes of the
text, one JSON line a step: {"step", "at", "loss"}, with "validation" where asked for. It needs torch and transformers,
and hivemind or farflung for a system of theirs alone, so that hivemind may live in an environment of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

CONTEXT = 128


def shape(layers: int, width: int) -> Any:
    """The GPT-2 that a job's ``family = "gpt2"`` builds, over bytes."""
    return transformers.GPT2Config(
        vocab_size=256,
        n_positions=CONTEXT,
        n_embd=width,
        n_layer=layers,
        n_head=width // 64,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )


def batches(text: Path, batch: int, seed: int) -> Iterator[torch.Tensor]:
    """Random windows of the text, [batch, CONTEXT] int64."""
    data = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(data) - CONTEXT, (batch,), generator=generator)
        yield torch.stack([data[start : start + CONTEXT] for start in starts.tolist()])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("system")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--meet", default="")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--validation", type=Path, help="text on which the loss is told, too, every few steps")
    parser.add_argument("--eval-every", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    model = transformers.GPT2LMHeadModel(shape(options.layers, options.width))
    run = hivemind_loop if options.system == "hivemind" else ddp_loop
    run(options, model, batches(options.text, options.batch, 1000 * options.seed + options.rank))


def say(step: int, loss: float, options: Any, model: Any) -> None:
    """One line a step; every rank looks at the validation text at the same time, so that none waits for another."""
    told: dict[str, Any] = {"step": step, "loss": loss}
    if options.validation and step % options.eval_every == 0:
        told["validation"] = validation_loss(model, options.validation, options.batch)
    print(json.dumps({**told, "at": time.time()}), flush=True)


def validation_loss(model: Any, text: Path, batch: int) -> float:
    """The mean loss of the text's windows, one after the other."""
    data = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8).long()
    windows = data[: len(data) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    with torch.no_grad():
        losses = [float(model(ids, labels=ids).loss) * len(ids) for ids in windows.split(batch)]
    return sum(losses) / len(windows)


def ddp_loop(options: Any, model: Any, data: Iterator[torch.Tensor]) -> None:
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    trained: Any = model
    if not options.system.startswith("alone"):
        dist.init_process_group("gloo", f"tcp://{options.meet}", rank=options.rank, world_size=options.world)
        # torch's PowerSGD hook aborts or hangs on gloo with more than one bucket.
        trained = DistributedDataParallel(model, bucket_cap_mb=1000 if options.system == "ddp-powersgd" else 25)
        if options.system == "ddp-fp16":
            trained.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif options.system == "ddp-bf16":
            # In a function of another name, for torch refuses this one without NCCL; gloo adds up bf16 as well.
            trained.register_comm_hook(None, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket))
        elif options.system == "ddp-int8":
            from farflung.compress import ddp

            trained.register_comm_hook(ddp.State("int8", feedback=True), ddp.hook)  # feedback: as a job's rounds
        elif options.system == "ddp-powersgd":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
            trained.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    fused = {"fused": True} if options.system == "alone-fused" else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, **fused)
    for step in range(1, options.steps + 1):
        ids = next(data)
        loss = trained(ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        say(step, float(loss.detach()), options, model)
    if not options.system.startswith("alone"):
        dist.barrier()
        dist.destroy_process_group()


def hivemind_loop(options: Any, model: Any, data: Iterator[torch.Tensor]) -> None:
    """hivemind.Optimizer as its documentation sets it for slow links: averaging behind the next step, 8 bits."""
    import hivemind

    meet = Path(options.meet)
    dht = hivemind.DHT(
        host_maddrs=[f"/ip4/{os.environ['FARFLUNG_BENCH_ADDRESS']}/tcp/0"],
        initial_peers=[] if options.rank == 0 else _when_there(meet, lambda: meet.read_text().split()),
        start=True,
    )
    if options.rank == 0:
        unfinished = meet.with_suffix(".part")
        unfinished.write_text("\n".join(str(address) for address in dht.get_visible_maddrs()))
        unfinished.replace(meet)
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="bench",
        batch_size_per_step=options.batch,
        target_batch_size=options.batch * options.world,
        params=list(model.parameters()),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=options.learning_rate),
        offload_optimizer=True,
        delay_optimizer_step=True,
        delay_grad_averaging=True,
        grad_compression=hivemind.compression.Uniform8BitQuantization(),
        state_averaging_compression=hivemind.compression.Uniform8BitQuantization(),
        average_state_every=1000,  # so that only gradients travel here
        matchmaking_time=1.0,
        averaging_timeout=120,
        tracker_opts={"min_refresh_period": 0.2, "default_refresh_period": 0.5},
        verbose=False,
    )
    epoch = optimizer.local_epoch
    try:
        while optimizer.local_epoch < options.steps:
            ids = next(data)
            loss = model(ids, labels=ids).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if optimizer.local_epoch != epoch:  # a global batch has been gathered, and a step taken
                epoch = optimizer.local_epoch
                say(epoch, float(loss.detach()), options, model)
    finally:
        with contextlib.suppress(Exception):  # the peer may be gone already; the process ends here
            optimizer.shutdown()
            dht.shutdown()


def _when_there(path: Path, read: Callable[[], Any], patience: float = 60.0) -> Any:
    deadline = time.monotonic() + patience
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} did not come")
        time.sleep(0.1)
    return read()


if __name__ == "__main__":
    main()
