"""A training run on one card: two nodes that share it, beside a plain loop; memory, and what a killed node costs.

    python benchmarks/gpu_run.py [--tiny] [--json FILE]        (benchmarks/gpu.sh runs it with the right path)

The model is GPT-2's smallest (124 M, bf16 autocast), the text the sources of Python's library and of the packages that
are installed here, in tokens of a byte-pair encoding made of them. First a plain loop (transformers' model, torch's
fused AdamW) trains for some time, then a coordinator and two nodes, real processes on this machine, the updates
compressed by cocktail and overlapped with the next step; then one of the nodes is killed with SIGKILL. Speed is tokens
a second after the first steps; the loss is that of training over the last steps of the same time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from farflung.benchmarks.text import in_pieces, make_tokenizer, sources

RATE = 6e-4
FIRST = 5
"""Steps that are not timed: kernels are chosen and built in them."""


@dataclass(frozen=True)
class Size:
    """What the run is made of."""

    device: str
    text: int
    """Bytes."""
    vocabulary: int
    """Of the tokenizer; the model's table has ``rows``."""
    rows: int
    layers: int
    width: int
    heads: int
    context: int
    batch: int
    microbatch: int
    seconds: float
    """Of each of the two trainings."""
    patience: float = 120.0


CARD = Size("cuda:0", 40_000_000, 16_384, 50_257, 12, 768, 12, 1024, 32, 8, 45.0)
TINY = Size("cpu", 400_000, 300, 512, 2, 32, 2, 32, 8, 2, 4.0, 300.0)


def tokenized(folder: Path, size: Size) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """The text's tokens, also in ``folder``/tokens.bin; their tokenizer in ``folder``/tokenizer."""
    pieces = in_pieces(sources(size.text))
    made = make_tokenizer(folder / "tokenizer", pieces[: 1 + len(pieces) // 8], size.vocabulary)
    ids = np.concatenate([np.array(one.ids, dtype=np.uint16) for one in made.encode_batch(pieces)])
    ids.tofile(folder / "tokens.bin")
    return ids


def plain(size: Size, tokens: np.ndarray[Any, np.dtype[np.uint16]]) -> dict[str, Any]:
    """The plain loop."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    shape = {"n_layer": size.layers, "n_embd": size.width, "n_head": size.heads, "n_positions": size.context}
    no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(vocab_size=size.rows, bos_token_id=0, eos_token_id=0, **no_dropout, **shape)
    model = GPT2LMHeadModel(config).to(size.device)
    cuda = size.device != "cpu"
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=cuda)
    chance = np.random.default_rng(1)
    losses, steps, began = [], [], time.monotonic()
    while time.monotonic() - began < size.seconds or len(steps) <= FIRST:
        start = time.monotonic()
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (len(steps) + 1) / 50)
        total = torch.zeros((), device=size.device)
        for _ in range(size.batch // size.microbatch):
            at = chance.integers(0, len(tokens) - size.context - 1, size.microbatch)
            rows = np.stack([tokens[one : one + size.context + 1] for one in at]).astype(np.int64)
            x = torch.from_numpy(rows).to(size.device)
            with torch.autocast(x.device.type, torch.bfloat16):
                logits = model(input_ids=x[:, :-1], use_cache=False).logits
            loss = functional.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten())
            loss = loss * size.microbatch / size.batch
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(total))
        steps.append(time.monotonic() - start)
    peak = torch.cuda.max_memory_allocated() if cuda else 0
    seconds = median(steps[FIRST:])
    return {
        "steps": len(steps),
        "step_s": seconds,
        "tokens_per_second": size.batch * size.context / seconds,
        "loss": float(np.mean(losses[-20:])),
        "peak_bytes": peak,
    }


JOB = """\
[run]
name = "card"
steps = 1_000_000
[model]
family = "gpt2"
layers = {layers}
width = {width}
heads = {heads}
context = {context}
vocabulary = {rows}
[data]
tokens = ["tokens.bin"]
tokenizer = "tokenizer"
validation = 0.01
[train]
batch = {batch}
microbatch = {microbatch}
learning_rate = {rate}
warmup_steps = 50
decay = "none"
weight_decay = 0.1
precision = "bf16"
eval_every = 0
[parallel]
stages = 1
pipelines = 2
[updates]
mode = "delta"
codec = "cocktail:random=0.1,top=0.2,bits=4"
overlap = 1
dense_rounds = 0
[checkpoint]
every = 0
"""


class Run:
    """A coordinator and its nodes; what the coordinator says is read by a thread."""

    def __init__(self, folder: Path, size: Size) -> None:
        self.folder, self.size = folder, size
        shape = {name: getattr(size, name) for name in ("layers", "width", "heads", "context", "rows")}
        job = JOB.format(**shape, batch=size.batch, microbatch=size.microbatch, rate=RATE)
        (folder / "job.toml").write_text(job)
        self.events: list[dict[str, Any]] = []
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def begin(self) -> None:
        """Start everybody; `end` ends them, also if this fails half-way."""
        words = ["coordinator", "start", "job.toml", "--state", "state", "--listen", "127.0.0.1:0", "--no-page"]
        coordinator = self._begin("coordinator", [*words, "--link-file", "link"])
        threading.Thread(target=self._read, args=(coordinator,), daemon=True).start()
        self.wait(lambda: self.of("listening"), "the coordinator listens")
        for name in ("a", "b"):
            self._begin(name, ["join", "@link", "--name", name, "--cache", name, "--device", self.size.device])

    def _begin(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("wb")
        out = subprocess.PIPE if name == "coordinator" else log
        command = [sys.executable, "-m", "farflung", *words, "--json"]
        self.processes[name] = subprocess.Popen(command, cwd=self.folder, stdout=out, stderr=log, process_group=0)
        return self.processes[name]

    def _read(self, coordinator: subprocess.Popen[bytes]) -> None:
        assert coordinator.stdout is not None
        for line in coordinator.stdout:
            self.events.append(json.loads(line))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["event"] == kind]

    def check(self, what: str) -> None:
        """Whether everybody lives who was not killed."""
        ended = [name for name, one in self.processes.items() if one.poll() not in (None, -signal.SIGKILL)]
        assert not ended, f"{ended} ended before: {what}\n{self.story()}"

    def wait(self, done: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + self.size.patience
        while not (found := done()):
            self.check(what)
            assert time.monotonic() < end, f"not within {self.size.patience:.0f} s: {what}\n{self.story()}"
            time.sleep(0.05)
        return found

    def story(self) -> str:
        """The last words of everybody."""
        said = [json.dumps(event)[:400] for event in self.events[-8:]]
        logs = [f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in self.folder.glob("*.log")]
        return "\n".join([*said, *logs])

    def end(self) -> None:
        """Everybody's process, and the children of each."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def running(folder: Path, size: Size) -> Iterator[Run]:
    run = Run(folder, size)
    try:
        run.begin()
        yield run
    finally:
        run.end()


def used(device: str) -> int:
    """Bytes of the card that are taken, by all processes; 0 where there is no card."""
    if device == "cpu":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def parts_of(folder: Path) -> dict[str, dict[str, float]]:
    """node -> the shares of its steps' time in each part: computing, codecs, the wire, waiting; empty if unknown."""
    words = [sys.executable, "-m", "farflung", "status", "@link", "--json"]
    asked = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=30)
    lines = asked.stdout.strip().splitlines()
    if asked.returncode or not lines:
        print(f"no status: {asked.stderr[-300:]}", flush=True)
        return {}
    return {one["node"]: one.get("parts") or {} for one in json.loads(lines[-1]).get("nodes") or ()}


def farflung(folder: Path, size: Size, save: Callable[[str, dict[str, Any]], None]) -> None:
    """The run of two nodes, then of one."""
    before = used(size.device)
    with running(folder, size) as run:
        run.wait(lambda: len(run.of("step")) > FIRST, "the first steps")
        began, peak = time.monotonic(), 0
        while time.monotonic() - began < size.seconds or len(run.of("step")) < 4 * FIRST:
            peak = max(peak, used(size.device) - before)
            run.check("the end of the measurement")
            time.sleep(0.2)
        steps = run.of("step")
        seconds = median(later["time"] - step["time"] for step, later in pairwise(steps[FIRST:]))
        sent = sum(step["bytes_updates"] for step in steps[FIRST:])
        dense = sum(step["bytes_dense_updates"] for step in steps[FIRST:])
        save(
            "farflung",
            {
                "steps": len(steps),
                "step_s": seconds,
                "tokens_per_second": size.batch * size.context / seconds,
                "loss": float(np.mean([step["loss"] for step in steps[-20:]])),
                "peak_bytes_of_both": peak,
                "of_the_bytes_of_fp16": sent / dense if dense else None,
                "parts": parts_of(folder),
            },
        )
        last, moment = run.of("step")[-1]["step"], time.time()
        os.killpg(run.processes["b"].pid, signal.SIGKILL)
        run.wait(lambda: any(event["node"] == "b" for event in run.of("left")), "the others hear of it")
        found = run.wait(
            lambda: [event for event in run.of("step") if event["step"] > last + 2 and event["time"] > moment],
            "training goes on",
        )
        save("recovery", {"from_kill_to_third_step_s": found[0]["time"] - moment, "step_s_before": seconds})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU, for seconds")
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    size = TINY if wanted.tiny else CARD
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    results: dict[str, Any] = {}

    def save(name: str, found: dict[str, Any]) -> None:
        results[name] = found
        print(f"{name}: {json.dumps(found)}", flush=True)
        if wanted.json:
            wanted.json.write_text(json.dumps(results, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tokens = tokenized(folder, size)
        print(f"{len(tokens)} tokens", flush=True)
        save("plain", plain(size, tokens))
        if size.device != "cpu":
            torch.cuda.empty_cache()
        farflung(folder, size, save)


if __name__ == "__main__":
    main()
