"""Loss against bytes: what compressed updates and activations cost in quality.

    python -m benchmarks.quality updates              the demo's model under several update codecs, 3 seeds each
    python -m benchmarks.quality activations          fine-tuning under several activation codecs, 3 seeds each
    python -m benchmarks.quality examples             the jobs of examples/ that train on Shakespeare
    python -m benchmarks.quality picture              docs/quality.svg, the curves of the job files
    python -m benchmarks.quality table                the tables again, from the saved results
    python -m benchmarks.quality wire EVENTS          what a real run put on the wire: EVENTS is what
                                                      `farflung run examples/shakespeare.toml --nodes 4 --json` printed

Real trainers, rounds and codecs in one process (farflung.testing.loopback); bytes are payload and header of every
message, without gRPC's framing and acknowledgements, which `farflung run --json` counts too. Results are kept in
benchmarks/results/quality.json: a run that is there is not repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import tomllib
import torch

from farflung.coordinator.data.facts import prepare
from farflung.job.data.facts import Facts
from farflung.job.schema import Job
from farflung.node.data.dataset import Tokens
from farflung.node.models.definition import skeleton_of
from farflung.node.models.factory import model_of
from farflung.proto import data_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "quality.json"
JOB = HERE.parent / "examples" / "shakespeare.toml"
UPDATE_KINDS = (
    data_pb2.CONTRIBUTION,
    data_pb2.RESULT,
    data_pb2.RESULT_HELD,
    data_pb2.READY,
    data_pb2.COMMIT,
)
ACTIVATION_KINDS = (data_pb2.ACTIVATION, data_pb2.ACTIVATION_GRADIENT, data_pb2.NACK)
COCKTAIL = "cocktail:random=0.1,top=0.2,bits=4"

UPDATES: dict[str, dict[str, Any]] = {
    "gradient, none": {"mode": "gradient", "codec": "none", "overlap": 0, "dense_rounds": 0},
    "delta, none": {"mode": "delta", "codec": "none", "overlap": 1, "dense_rounds": 0},
    f"delta, {COCKTAIL}": {"mode": "delta", "codec": COCKTAIL, "overlap": 1, "dense_rounds": 20},
    "gradient, int8": {"mode": "gradient", "codec": "int8", "overlap": 0, "dense_rounds": 0},
    "delta, none, overlap 0": {"mode": "delta", "codec": "none", "overlap": 0, "dense_rounds": 0},
    f"delta, {COCKTAIL}, no dense rounds": {"mode": "delta", "codec": COCKTAIL, "overlap": 1, "dense_rounds": 0},
    f"delta, {COCKTAIL},values=log": {
        "mode": "delta",
        "codec": f"{COCKTAIL},values=log",
        "overlap": 1,
        "dense_rounds": 20,
    },
    "delta, cocktail:random=0.1,top=0.1,bits=4": {
        "mode": "delta",
        "codec": "cocktail:random=0.1,top=0.1,bits=4",
        "overlap": 1,
        "dense_rounds": 20,
    },
    "delta, cocktail:random=0.5,top=0.5,bits=4": {
        "mode": "delta",
        "codec": "cocktail:random=0.5,top=0.5,bits=4",
        "overlap": 1,
        "dense_rounds": 20,
    },
}
ACTIVATIONS: dict[str, dict[str, Any]] = {
    "none": {"forward": "none", "backward": "none"},
    "aqsgd:bits=4, back int8": {"forward": "aqsgd:bits=4", "backward": "int8"},
    "int2, back int8": {"forward": "int2", "backward": "int8"},
    "int4, back int8": {"forward": "int4", "backward": "int8"},
    "aqsgd:bits=2, back int8": {"forward": "aqsgd:bits=2", "backward": "int8"},
}


def job_of(seed: int, text: list[str], **tables: dict[str, Any]) -> Job:
    """The demo's job with other updates, activations or model."""
    content = tomllib.loads(JOB.read_text())
    content["run"]["seed"] = seed
    content["data"]["text"] = text
    content["train"]["eval_every"] = 50
    content["checkpoint"] = {"every": 0}
    content["parallel"] = {"schedule": "1f1b"}
    content["activations"] = {"forward": "none", "backward": "none"}
    for name, values in tables.items():
        content[name] = {**content.get(name, {}), **values} if name != "model" else values
    return Job.model_validate(content)


def train(job: Job, facts: Facts, artifacts: dict[str, bytes], plan: Plan, device: str = "cpu") -> dict[str, Any]:
    """A run in this process: losses by step, evaluations, bytes."""

    def fetch(name: str, offset: int = 0, length: int | None = None) -> bytes:
        return artifacts[name][offset : None if length is None else offset + length]

    started = time.monotonic()
    hub = Hub(job, facts.model_copy(update={"steps": job.steps(facts.samples)}), artifacts)
    data = Tokens(facts, fetch)
    for name in plan.nodes:
        hub.start(name, data, device=device)
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    if hub.errors or any(len(contents) != 1 for contents in outcome.fingerprints.values()):
        raise RuntimeError(f"the run went wrong: {hub.errors or outcome.fingerprints}")
    steps = max(outcome.losses)
    return {
        "evals": {str(step): round(loss, 5) for step, loss in outcome.evals.items()},
        "loss": outcome.evals[steps],
        "steps": steps,
        "seconds": round(time.monotonic() - started, 1),
        "update_bytes": sum(hub.bytes.get(kind, 0) for kind in UPDATE_KINDS),
        "activation_bytes": sum(hub.bytes.get(kind, 0) for kind in ACTIVATION_KINDS),
        "parameters": sum(
            section.layout.numel for section in hub.trainers[plan.pipelines[0][0]].state.sections.values()
        ),
    }


def prepared(job: Job, folder: Path) -> tuple[Facts, dict[str, bytes]]:
    """Facts of a job and the bytes of its artifacts."""
    made = asyncio.run(prepare(job, folder))
    return made.facts, {name: Path(path).read_bytes() for name, path in made.files.items()}


def updates(seeds: int, only: str) -> None:
    """The demo's model as two pipelines of one stage: the rounds see the same tensors as in the demo."""
    from farflung.examples.shakespeare import write_text

    plan = Plan(pipelines=(("a",), ("b",)), stages=((0, 3),), microbatches=(2, 2))
    with tempfile.TemporaryDirectory() as folder:
        text = [str(path) for path in write_text(Path(folder))]
        for seed in range(1, seeds + 1):
            for name, values in UPDATES.items():
                if only in name and not known("updates", name, seed):
                    job = job_of(seed, text, updates=values)
                    facts, artifacts = prepared(job, Path(folder) / "state")
                    keep("updates", name, seed, train(job, facts, artifacts, plan))


def activations(seeds: int, only: str) -> None:
    """Two stages fine-tune, for three epochs on one play, a model that was trained on two others."""
    from farflung.examples.shakespeare import write_text

    both = Plan(pipelines=(("a", "b"),), stages=((0, 1), (2, 3)), microbatches=(4,))
    gradient = {"mode": "gradient", "codec": "none", "overlap": 0, "dense_rounds": 0}
    with tempfile.TemporaryDirectory() as folder:
        text = [str(path) for path in write_text(Path(folder))]
        base = job_of(1, text[:2], updates=gradient)
        pretrained = Path(folder) / "pretrained"
        facts, artifacts = prepared(base, Path(folder) / "state")
        pretrain(base, facts, artifacts, pretrained)
        for seed in range(1, seeds + 1):
            for name, values in ACTIVATIONS.items():
                if only not in name or known("activations", name, seed):
                    continue
                job = job_of(
                    seed, text[2:], updates=gradient, activations=values, model={"pretrained": str(pretrained)}
                )
                job = job.model_copy(
                    update={
                        "run": job.run.model_copy(update={"epochs": 3}),
                        "train": job.train.model_copy(update={"learning_rate": 1e-3, "warmup_steps": 10}),
                    }
                )
                tuned, files = prepared(job, Path(folder) / "tuned")
                keep("activations", name, seed, train(job, tuned, files, both))


def pretrain(job: Job, facts: Facts, artifacts: dict[str, bytes], folder: Path) -> None:
    """Two epochs of plain training; the folder that transformers saves."""

    def fetch(name: str, offset: int = 0, length: int | None = None) -> bytes:
        return artifacts[name][offset : None if length is None else offset + length]

    job = job.model_copy(update={"run": job.run.model_copy(update={"epochs": 2})})
    hub = Hub(job, facts.model_copy(update={"steps": job.steps(facts.samples)}), artifacts)
    hub.start("a", Tokens(facts, fetch))
    hub.begin(Plan(pipelines=(("a",),), stages=((0, 3),), microbatches=(4,)), ["a"], checkpoint=0)
    hub.finish(["a"])
    definition = model_of(job, facts)
    model = skeleton_of(definition.config).to_empty(device="cpu")
    model.tie_weights()
    found = {name: values for name, prefix, values in hub.trainers["a"].state.tensors() if not prefix}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(found[name])
    model.save_pretrained(folder)


def examples(only: str) -> None:
    """Each job file as it is, with as many nodes as it asks for; and one optimiser that sees whole batches."""
    from farflung.examples.shakespeare import write_text

    with tempfile.TemporaryDirectory() as folder:
        text = [str(path) for path in write_text(Path(folder))]
        for path in [None, *sorted(JOB.parent.glob("*.toml"))]:
            name = path.stem if path else "one optimiser"
            content = tomllib.loads((path or JOB.with_name("diloco.toml")).read_text())
            if content["data"].get("text") != ["shakespeare/*.txt"] or only not in name or known("examples", name, 1):
                continue
            content["data"]["text"] = text
            content["checkpoint"] = {"every": 0}
            if path is None:
                content |= {"updates": {}, "activations": {}, "parallel": {"stages": 1, "pipelines": 1}}
            job = Job.model_validate(content)
            facts, artifacts = prepared(job, Path(folder) / "state")
            keep("examples", name, 1, train(job, facts, artifacts, shape_of(job)))


def shape_of(job: Job) -> Plan:
    """The plan that the job's own numbers of stages and pipelines say, equal parts each."""
    stages, pipelines, layers = int(job.parallel.stages), int(job.parallel.pipelines), (job.model.layers or 0) + 2
    edges = [layers * stage // stages for stage in range(stages + 1)]
    return Plan(
        pipelines=tuple(tuple(f"n{row}{stage}" for stage in range(stages)) for row in range(pipelines)),
        stages=tuple((first, last - 1) for first, last in itertools.pairwise(edges)),
        microbatches=(job.train.microbatches // pipelines,) * pipelines,
        schedule=job.parallel.schedule,
    )


def picture(out: Path) -> None:
    """Validation loss of every job file, against steps and, at the end, against what it sent."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, (steps, sent) = pyplot.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    for name, runs in load().get("examples", {}).items():
        run = runs["1"]
        losses = list(run["evals"].values())
        (line,) = steps.plot([int(step) for step in run["evals"]], losses, label=name, linewidth=1.2)
        if run["update_bytes"]:
            sent.plot([run["update_bytes"] / run["steps"]], losses[-1:], "o", color=line.get_color())
        else:
            sent.axhline(losses[-1], color=line.get_color(), linewidth=0.8, linestyle=":")
    steps.set(xlabel="step", ylabel="validation loss, nats per byte", ylim=(1.8, 3.3))
    steps.legend(fontsize=8)
    sent.set(xlabel="update bytes a step, all nodes", xscale="log")
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


def known(kind: str, name: str, seed: int) -> bool:
    return str(seed) in load().get(kind, {}).get(name, {})


def load() -> dict[str, dict[str, dict[str, Any]]]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def keep(kind: str, name: str, seed: int, result: dict[str, Any]) -> None:
    results = load()
    results.setdefault(kind, {}).setdefault(name, {})[str(seed)] = result
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(f"{kind:12}{name:56}seed {seed}: loss {result['loss']:.4f} in {result['seconds']:.0f} s", flush=True)


def table(kind: str, baseline: str) -> None:
    """Settings with mean loss over seeds, its distance to the baseline, and bytes against fp16."""
    results = load().get(kind, {})
    if not results:
        return
    print(
        f"\n| {kind} | seeds | validation loss | spread | against {baseline} | bytes a step | times fewer than fp16 |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    reference = statistics.mean(run["loss"] for run in results[baseline].values())
    for name, runs in results.items():
        losses = [run["loss"] for run in runs.values()]
        first = next(iter(runs.values()))
        mean = statistics.mean(losses)
        spread = max(losses) - min(losses)
        if kind == "updates":
            size = first["update_bytes"] / first["steps"]
            dense = 2 * 2 * first["parameters"] / 2 * 2  # 2(n-1)/n * 2 bytes a parameter a node, n = 2 nodes
        else:
            size = first["activation_bytes"] / first["steps"]
            dense = 2 * 2 * 32 * 128 * 64  # forward and backward, 2 bytes, batch x context x width
        print(
            f"| {name} | {len(losses)} | {mean:.4f} | {spread:.4f} | {100 * (mean / reference - 1):+.2f} % "
            f"| {size:,.0f} | {dense / size:.1f} |"
        )


def table_of_examples() -> None:
    """Each job file's last loss, its distance to one optimiser, and the bytes that it sent for updates."""
    results = load().get("examples", {})
    if not results:
        return
    print("\n| job file | validation loss | against one optimiser | update bytes a step | times fewer than fp16 |")
    print("| --- | --- | --- | --- | --- |")
    alone = results["one optimiser"]["1"]
    for name, runs in results.items():
        run = runs["1"]
        if run["steps"] != alone["steps"]:
            continue  # of another size: its curve is in the picture
        size = run["update_bytes"] / run["steps"]
        dense = 2 * 2 * run["parameters"]  # of ring all-reduce in fp16 between two nodes, as in the table above
        fewer = f"{dense / size:.1f}" if size else ""
        print(
            f"| {name} | {run['loss']:.4f} | {100 * (run['loss'] / alone['loss'] - 1):+.1f} % | {size:,.0f} | {fewer} |"
        )


def wire(events: Path) -> None:
    """Update bytes of a real run, everything that was written to gRPC counted, against ring all-reduce in fp16."""
    steps = [event for line in events.read_text().splitlines() if (event := json.loads(line))["event"] == "step"]
    # Rounds without a codec are those that cost more than fp16: fp32 and its headers.
    compressed = [step for step in steps if step["bytes_updates"] < step["bytes_dense_updates"]]
    for name, part in (("compressed rounds", compressed), ("whole run, dense rounds included", steps)):
        sent = sum(step["bytes_updates"] for step in part)
        ring = sum(step["bytes_dense_updates"] for step in part)
        print(f"{name}: {len(part)} steps, {sent / len(part):,.0f} bytes a step, fp16 / bytes {ring / sent:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["updates", "activations", "examples", "picture", "table", "wire"])
    parser.add_argument("events", nargs="?", type=Path, help="for wire: the file with the run's events")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="settings whose name has this in it")
    arguments = parser.parse_args()
    if arguments.what == "wire":
        if arguments.events is None:
            parser.error("wire needs the file with the run's events")
        wire(arguments.events)
        return
    if arguments.what == "picture":
        picture(HERE.parent / "docs" / "quality.svg")
        return
    torch.set_num_threads(1)
    if arguments.what == "examples":
        examples(arguments.only)
    if arguments.what == "updates":
        updates(arguments.seeds, arguments.only)
    elif arguments.what == "activations":
        activations(arguments.seeds, arguments.only)
    table("updates", "gradient, none")
    table("activations", "none")
    table_of_examples()


if __name__ == "__main__":
    main()
