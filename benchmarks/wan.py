"""Step time over slow links: farflung beside torch DDP (with its own hooks) and hivemind, on the same emulated WAN.

    python -m benchmarks.wan steps --nodes 2 --rates 20,100,500,1000 [--hivemind-python venv/bin/python]
    python -m benchmarks.wan draw                       # docs/wan-steps.svg from the results

Every system trains the same GPT-2 on the same text, one host of the WAN and one thread a node; a figure is the median
time between steps after the first few, systems and repetitions interleaved. `alone` is the same step with no exchange:
the limit. hivemind comes from PyPI into an environment of its own (`pip install torch hivemind transformers`). Needs
root, as `farflung wan` does. Results go to benchmarks/results/wan_steps.json, with the emulator's own lateness.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from farflung.deploy.wan import build, files, lab, lateness, netem
from farflung.deploy.wan.lab import Lab
from farflung.deploy.wan.run import run as run_on_wan
from farflung.deploy.wan.topology import Change
from farflung.examples.shakespeare import write_text
from farflung.node.training.steps.early_offers import SWITCH

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "wan_steps.json"
PICTURE = ROOT / "docs" / "wan-steps.svg"
COCKTAIL = "cocktail:random=0.1,top=0.2,bits=4"
OURS = {
    "farflung": ("delta", 1, COCKTAIL),
    "farflung-none": ("delta", 1, "none"),
    "farflung-exact": ("gradient", 0, "none"),
    "farflung-exact-late": ("gradient", 0, "none"),
    "farflung-exact-bf16": ("gradient", 0, "bf16"),
    "farflung-exact-int8": ("gradient", 0, "int8"),
}
LATE = "farflung-exact-late"
"""The same with rounds that begin after the backward pass."""
THEIRS = ("alone", "alone-fused", "ddp", "ddp-fp16", "ddp-powersgd", "hivemind", "ddp-bf16", "ddp-int8")
SAME_CODEC = ("ddp-bf16", "ddp-int8", "farflung-exact-bf16", "farflung-exact-int8")
"""Both sides with one codec: benchmarks/ddp_codecs.py compares them; not among those that are measured by default."""
USUAL = tuple(system for system in (*THEIRS, *OURS) if system not in SAME_CODEC)
LEFT_OUT = 4
"""Steps at the beginning that are no part of the median: connections, warm-up, PowerSGD's first uncompressed ones."""

JOB = """\
[run]
name = "wan"
steps = {steps}
seed = {seed}
[model]
family = "gpt2"
layers = {layers}
width = {width}
heads = {heads}
context = 128
[data]
text = ["{text}"]
validation = {validation}
[train]
batch = {batch}
microbatch = {microbatch}
learning_rate = 3e-4
decay = "none"
weight_decay = 0.01
betas = [0.9, 0.999]
eval_every = {eval_every}
[parallel]
stages = 1
pipelines = {nodes}
min_nodes = {nodes}
[updates]
mode = "{mode}"
overlap = {overlap}
codec = "{codec}"
dense_rounds = 0
[checkpoint]
every = 0
"""


def measure(made: Lab, system: str, options: Any, folder: Path) -> tuple[list[float], Counter[str]]:
    """Seconds of each step after the first few, and what a step of them took of the cores, by ROLES."""
    used: list[tuple[int, Counter[str]]] = []

    def look(step: int) -> None:
        if (step > LEFT_OUT and not used) or step >= options.steps:
            used.append((step, processor_seconds()))

    run = our_events if system in OURS else their_lines
    lines = run(made, system, options, folder, look=look)
    told = [line for line in lines if line.get("event", "step") == "step"]
    gaps = [seconds_a_step(earlier, later) for earlier, later in itertools.pairwise(told)][LEFT_OUT:]
    (began, before), (ended, after) = used[0], used[-1]
    return gaps, Counter({role: (after[role] - before[role]) / (ended - began) for role in after})


def seconds_a_step(earlier: dict[str, Any], later: dict[str, Any]) -> float:
    """hivemind's epochs may go on by more than one: who has fallen behind takes the state of another."""
    began, ended = (line.get("at") or line["time"] for line in (earlier, later))
    return float(ended - began) / (later["step"] - earlier["step"])


def our_events(
    made: Lab, system: str, options: Any, folder: Path, look: Callable[[int], None] = lambda step: None, **more: object
) -> list[Any]:
    """All events of a run of farflung; ``look`` hears of each step as it is done. ``more`` goes into the job: seed,
    validation (as TOML), eval_every."""
    mode, overlap, codec = OURS[system]
    job = folder / "job.toml"
    words: dict[str, object] = {"seed": 1, "validation": 0.05, "eval_every": 0, **more}
    job.write_text(
        JOB.format(
            steps=options.steps,
            layers=options.layers,
            width=options.width,
            heads=options.width // 64,
            text=options.text,
            batch=options.batch * options.nodes,
            microbatch=options.batch,
            nodes=options.nodes,
            mode=mode,
            overlap=overlap,
            codec=codec,
            **words,
        )
    )
    events: list[Any] = []

    def show(event: Any) -> None:
        events.append(event)
        if event["event"] == "warning":
            print(f"    {event['message']}", file=sys.stderr)
        if event["event"] == "step":
            look(event["step"])

    with early_offers(system != LATE):
        run_on_wan(made.name, str(job), show, state=str(folder / "state"))
    return events


@contextlib.contextmanager
def early_offers(wanted: bool) -> Iterator[None]:
    """A context whose nodes begin the rounds of gradient mode within the backward pass, or after it."""
    if not wanted:
        os.environ[SWITCH] = "0"
    try:
        yield
    finally:
        os.environ.pop(SWITCH, None)


ROLES = {
    "farflung.node.io.main": "protocol",
    "farflung.deploy.wan.relay": "emulator",
    "farflung coordinator": "coordinator",
    "farflung join": "training",
    "wan_worker": "training",
}


def processor_seconds() -> Counter[str]:
    """What all processes of a run have used of the machine's cores until now, by what they do (ROLES)."""
    found: Counter[str] = Counter()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            role = next((role for mark, role in ROLES.items() if mark in words), None)
            if role:
                user, system = (folder / "stat").read_text().rsplit(")", 1)[1].split()[11:13]
                found[role] += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return found


def their_lines(
    made: Lab,
    system: str,
    options: Any,
    folder: Path,
    *more: object,
    look: Callable[[int], None] = lambda step: None,
) -> list[Any]:
    """What rank 0 of another system said of its steps; see wan_worker.py, which also gets the words of ``more``."""
    python = options.hivemind_python if system == "hivemind" else sys.executable
    meet = str(folder / "meet") if system == "hivemind" else f"{made.topology.address(0)}:29500"
    with contextlib.ExitStack() as stack:
        workers = []
        for rank in range(options.nodes):
            words = [python, str(ROOT / "benchmarks" / "wan_worker.py"), system, "--rank", rank]
            words += ["--world", options.nodes, "--meet", meet, "--batch", options.batch, "--steps", options.steps]
            words += ["--layers", options.layers, "--width", options.width, "--text", options.text, *more]
            workers.append(stack.enter_context(inside(made, rank, [str(word) for word in words])))
        assert workers[0].stdout is not None
        lines: list[dict[str, Any]] = []
        for line in workers[0].stdout:
            lines.append(json.loads(line))
            look(lines[-1]["step"])
            if lines[-1]["step"] >= options.steps:
                return lines
    raise RuntimeError(f"{system} took {lines[-1]['step'] if lines else 0} of {options.steps} steps")


@contextlib.contextmanager
def inside(made: Lab, rank: int, words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process in a host of the WAN, and all that it started: ended at the end."""
    host = made.topology.hosts[rank].name
    command = [sys.executable, "-m", "farflung", "wan", "exec", made.name, host, "--", *words]
    more = {
        "FARFLUNG_BENCH_ADDRESS": made.topology.address(rank),
        "GLOO_SOCKET_IFNAME": netem.DEVICE,
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **more}, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def star(hosts: int, rtt_ms: float, rate: str = "100mbit") -> Lab:
    """Hosts with equal links between any two."""
    table = {"name": f"bench{os.getpid()}", "regions": {"bench": {"hosts": hosts}}, "tcp_memory": "64MiB"}
    table["defaults"] = {"delay_ms": rtt_ms / 2, "rate": rate, "queue_ms": max(100.0, rtt_ms)}
    return build.up(files.parse(table, table["name"], "wan"), None)


def steps(options: Any) -> None:
    made = star(options.nodes, options.rtt)
    rows: dict[tuple[float, str], list[dict[str, Any]]] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="farflung-wan-") as scratch:
            write_text(Path(scratch))
            options.text = Path(scratch) / "shakespeare" / "hamlet.txt"
            for repeat in range(options.repeats):
                for rate in options.rates:
                    made.change(Change(0, "set", "*->*", {"rate": rate * 1e6, "queue_ms": max(100.0, options.rtt)}))
                    for system in options.systems:
                        if (system.startswith("alone") and rate != options.rates[0]) or (
                            system == "hivemind" and not options.hivemind_python
                        ):
                            continue
                        folder = Path(scratch) / f"{system}-{rate:g}-{repeat}"
                        folder.mkdir()
                        before = made.stat()
                        gaps, used = measure(made, system, options, folder)
                        late = lab.late_between(before, made.stat())
                        _, why = lateness.verdict(late, options.rtt / 2) if late else (True, "in the kernel")
                        rows.setdefault((rate, system), []).append({"gaps_s": gaps, "used": used, "emulator": why})
                        print(
                            f"{rate:7g} Mbit/s  {system:15} {statistics.median(gaps):7.3f} s a step; of the cores "
                            + ", ".join(f"{role} {seconds:.2f}" for role, seconds in sorted(used.items()))
                            + f"  ({why})",
                            flush=True,
                        )
                        shutil.rmtree(folder)
                        save(options, rows)  # as it comes: a run may be broken off
    finally:
        build.down(made.name)
    tell(options)


def save(options: Any, rows: dict[tuple[float, str], list[dict[str, Any]]]) -> None:
    """Beside what was measured before with the same model; each row with the ``alone`` of its own run."""
    sizes = {"rtt_ms": options.rtt, "layers": options.layers, "width": options.width, "sequences_a_node": options.batch}
    alone = next((steps_of(runs) for (_, system), runs in rows.items() if system == "alone"), None)
    new = [
        {
            "rate_mbit": rate,
            "system": system,
            "median_s": steps_of(runs),
            "alone_s": alone,
            "gaps_s": [round(gap, 3) for run in runs for gap in run["gaps_s"]],
            "processor_s": {
                role: round(statistics.mean(run["used"][role] for run in runs), 3) for role in sorted(runs[0]["used"])
            },
            "emulator": [run["emulator"] for run in runs],
            "load_before": options.load,
        }
        for (rate, system), runs in rows.items()
    ]
    known = json.loads(options.results.read_text()) if options.results.exists() else {}
    title = f"{options.nodes} nodes"
    entry = known.get(title, {})
    kept = entry["rows"] if {name: entry.get(name) for name in sizes} == sizes else []
    kept = [row for row in kept if (row["rate_mbit"], row["system"]) not in rows]
    known[title] = {**sizes, "rows": sorted([*kept, *new], key=lambda row: (row["rate_mbit"], row["system"]))}
    options.results.write_text(json.dumps(known, indent=1) + "\n")


def steps_of(runs: Sequence[dict[str, Any]]) -> float:
    return statistics.median(gap for run in runs for gap in run["gaps_s"])


def tell(options: Any) -> None:
    """The table of what is known of so many nodes."""
    print(f"\n{options.results}")
    for row in json.loads(options.results.read_text())[f"{options.nodes} nodes"]["rows"]:
        share = f"{row['median_s'] / row['alone_s']:6.2f} x alone" if row["alone_s"] else ""
        print(f"{row['rate_mbit']:7g} Mbit/s  {row['system']:15} {row['median_s']:7.3f} s  {share}")


def draw(options: Any) -> None:
    """Multiples of the step with no exchange, for runs on different days have different ones."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    known = json.loads(RESULTS.read_text())
    figure, axes = pyplot.subplots(1, len(known), figsize=(6 * len(known), 4), squeeze=False)
    for axis, (title, entry) in zip(axes[0], known.items(), strict=True):
        rows = [row for row in entry["rows"] if row["alone_s"] and not row["system"].startswith("alone")]
        for system in dict.fromkeys(row["system"] for row in rows):
            points = [(row["rate_mbit"], row["median_s"] / row["alone_s"]) for row in rows if row["system"] == system]
            axis.plot(*zip(*points, strict=True), marker="o", label=system)
        axis.axhline(1.0, color="black", linestyle=":", label="no exchange")
        axis.set(
            xscale="log", yscale="log", xlabel="Mbit/s a link", ylabel="step time / that of no exchange", title=title
        )
        axis.legend()
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})
    print(PICTURE)


def leave_out_hivemind(options: Any) -> None:
    """It needs an environment of its own; without one it is not measured."""
    if "hivemind" in options.systems and not options.hivemind_python:
        options.systems.remove("hivemind")
        print("hivemind is left out: give --hivemind-python", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "draw"])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rates", type=lambda text: [float(one) for one in text.split(",")], default=[100.0])
    parser.add_argument("--rtt", type=float, default=50.0)
    parser.add_argument("--systems", type=lambda text: text.split(","), default=list(USUAL))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--batch", type=int, default=4, help="sequences of 128 tokens a node and step")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file that keeps one model's results")
    parser.add_argument("--hivemind-python", help="python of an environment with hivemind")
    options = parser.parse_args()
    if options.what == "steps" and options.steps < LEFT_OUT + 2:
        parser.error(f"--steps {options.steps}: the first {LEFT_OUT} are left out, so it takes {LEFT_OUT + 2} or more")
    leave_out_hivemind(options)
    options.load = os.getloadavg()[0]
    {"steps": steps, "draw": draw}[options.what](options)


if __name__ == "__main__":
    main()
