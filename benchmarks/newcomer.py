"""How long a newcomer's way takes: clone, install, demo, two machines that fine-tune a model folder, transformers.

    python -m benchmarks.newcomer [--output FILE]       # root, for the two machines are hosts of an emulated WAN

It types what README.md and docs/tutorials/two-machines.md say, in a fresh clone of this repository's last commit and a
fresh environment, prints how long each command took, and puts that into the tutorial. The model folder is a small GPT-2
with new weights, so that no model has to be downloaded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tutorials" / "two-machines.md"
LIMIT_S = 3600
WAN = f"newcomer{os.getpid()}"
MODEL = """\
import transformers
shape = transformers.GPT2Config(vocab_size=256, n_positions=128, n_embd=128, n_layer=4, n_head=4,
                                bos_token_id=None, eos_token_id=None)
transformers.GPT2LMHeadModel(shape).save_pretrained("model")
"""
LOAD = """\
import transformers
model = transformers.AutoModelForCausalLM.from_pretrained("tuned")
print(sum(values.numel() for values in model.parameters()))
"""
TRAINER = """\
import farflung, transformers
model = transformers.AutoModelForCausalLM.from_pretrained("model")
tokenizer = transformers.AutoTokenizer.from_pretrained("tuned")
rows = [tokenizer(open("data/hamlet.txt", encoding="utf-8").read())["input_ids"]]
arguments = farflung.Arguments(output_dir="runs/trainer", max_steps=20, max_length=128)
trainer = farflung.Trainer(model, arguments, rows, processing_class=tokenizer, nodes=2, on_event=lambda event: None)
trainer.train()
print(trainer.evaluate())
"""


class Way:
    """Commands typed one after the other in ``folder``, each timed."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        self.environment.pop("PYTHONPATH", None)
        self.times: list[tuple[str, float]] = []

    def types(self, words: list[str], what: str = "") -> str:
        """Run it to its end; what it printed."""
        began = time.monotonic()
        done = subprocess.run(words, cwd=self.folder, env=self.environment, text=True, capture_output=True)
        self.says(what or " ".join(words), time.monotonic() - began)
        if done.returncode:
            sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout

    def says(self, what: str, seconds: float) -> None:
        self.times.append((what, round(seconds, 1)))
        print(f"{seconds:7.1f} s  {what}", flush=True)

    @contextlib.contextmanager
    def on(self, host: str, words: list[str]) -> Iterator[subprocess.Popen[str]]:
        """A command on one of the two machines, until the context ends."""
        process = subprocess.Popen(
            [*inside(host), *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def inside(host: str) -> list[str]:
    return ["farflung", "wan", "exec", WAN, host, "--"]


def wait_for(kind: str, events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """The coordinator's next event of that kind."""
    for event in events:
        if event["event"] == kind:
            return event
        if event["event"] == "error":
            sys.exit(f"the coordinator ended: {event['message']}\n{event['hint']}")
    sys.exit(f"the coordinator has ended before its event {kind}")


def two_machines(way: Way) -> None:
    """The tutorial: a coordinator and a node on the first machine, a node on the second."""
    way.types(
        ["farflung", "wan", "up", "lan", "--name", WAN, "--hosts-per-region", "2"], "farflung wan up (two machines)"
    )
    try:
        up = map(json.loads, way.types(["farflung", "wan", "list", "--json"]).splitlines())
        address = next(wan for wan in up if wan["name"] == WAN)["hosts"][0]["address"]
        began = time.monotonic()
        start = ["farflung", "coordinator", "start", "tune.toml", "--advertise", f"{address}:7070", "--min-nodes", "2"]
        with contextlib.ExitStack() as stack:
            coordinator = stack.enter_context(way.on("lan/0", [*start, "--listen", f"{address}:7070", "--json"]))
            assert coordinator.stdout is not None
            events = map(json.loads, coordinator.stdout)
            link = wait_for("listening", events)["link"]
            way.says("farflung coordinator start tune.toml: the join line is there", time.monotonic() - began)
            way.types([*inside("lan/1"), "farflung", "doctor", link], "farflung doctor LINK, on the second machine")
            began = time.monotonic()
            for number in (0, 1):
                join = ["farflung", "join", link, "--cache", f"cache-{number}"]
                stack.enter_context(way.on(f"lan/{number}", join))
            wait_for("step", events)
            way.says("farflung join LINK, on both: the first step is done", time.monotonic() - began)
            done = wait_for("done", events)
            way.says(
                f"... all {done['steps']} steps are done (validation loss {done['eval_loss']:.2f} nats a byte)",
                time.monotonic() - began,
            )
    finally:
        subprocess.run(["farflung", "wan", "down", WAN], env=way.environment, check=True, capture_output=True)


def table(found: dict[str, Any]) -> str:
    """The tutorial's section: what took how long, and on what."""
    lines = ["| typed | seconds |", "| --- | ---: |"]
    lines += [f"| {row['what']} | {row['seconds']:.0f} |" for row in found["rows"]]
    busy = found["load_before"] > 1
    beside = f", on which other programs ran (a load of {found['load_before']:.1f})" if busy else ", otherwise idle"
    return "\n".join([*lines, "", f"On {found['cores']} cores{beside}."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "newcomer.json")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"not at the end after {LIMIT_S} s"))
    signal.alarm(LIMIT_S)
    with tempfile.TemporaryDirectory(prefix="farflung-newcomer-") as scratch:
        clone = Path(scratch) / "farflung"
        way = Way(Path(scratch), clone / ".venv" / "bin")
        way.types(["git", "clone", "--quiet", str(ROOT), str(clone)], "git clone")
        way.folder = clone
        way.types(["make", "runtime"], "make demo: installs what a run needs (make runtime)")
        way.types(["make", "demo"], "... trains, exports and writes a sample")
        way.folder = Path(scratch) / "work"
        (way.folder / "data").mkdir(parents=True)
        shutil.copy(clone / "examples" / "shakespeare" / "hamlet.txt", way.folder / "data")
        way.types([str(clone / ".venv" / "bin" / "python"), "-c", MODEL], "a small model folder")
        way.types(["farflung", "job", "init", "tune.toml", "--pretrained", "model"])
        two_machines(way)
        way.types(["farflung", "export", "runs/tune", "tuned"])
        way.types(["farflung", "generate", "runs/tune", "To be"])
        way.types([str(clone / ".venv" / "bin" / "python"), "-c", LOAD], "transformers loads it")
        way.types([str(clone / ".venv" / "bin" / "python"), "-c", TRAINER], "farflung.Trainer, 20 steps")
        job = (way.folder / "tune.toml").read_text().replace('"tune"', '"lora"').replace("epochs = 5", "steps = 20")
        (way.folder / "lora.toml").write_text(f"{job}\n[model.lora]\nrank = 4\n")
        way.types(
            [str(clone / ".venv" / "bin" / "pip"), "install", "--quiet", "-e", f"{clone}[lora]"],
            "pip install '.[lora]'",
        )
        way.types(["farflung", "run", "lora.toml", "--nodes", "2"], "farflung run, adapters alone")
        way.types(["farflung", "export", "runs/lora", "merged", "--merge"])
    rows = [{"what": what, "seconds": seconds} for what, seconds in way.times]
    found = {"cores": os.cpu_count(), "load_before": round(load, 1), "rows": rows}
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    marks = "(<!-- newcomer -->\n).*?(<!-- end -->\n)"
    page = re.sub(marks, lambda mark: f"{mark[1]}\n{table(found)}\n\n{mark[2]}", PAGE.read_text(), flags=re.DOTALL)
    PAGE.write_text(page)
    print(options.output)


if __name__ == "__main__":
    main()
