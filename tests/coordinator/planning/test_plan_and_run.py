"""``farflung plan`` and a run count the same: the file's own workload, and that of the job and its profile."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from farflung.cli.jobs.codecs_of_a_job import check_codec
from farflung.cli.planning.plan import workload_asked
from farflung.coordinator.planning.planner import workload_of
from farflung.job.data.facts import Facts
from farflung.job.files import load_job
from farflung.job.forward import with_forward
from farflung.job.schema import Job
from farflung.node.models.profiling.cost import profile
from farflung.scheduler import Network, Workload, plan
from farflung.scheduler.workloads import jobs

EXAMPLES = Path(__file__).parents[3] / "examples"
NETWORK = Network.from_mapping(
    {
        "regions": ["here", "there"],
        "devices_per_region": {"here": 3, "there": 3},
        "latency_ms": [[1, 40], [40, 1]],
        "bandwidth_gbps": [[1, 0.05], [0.02, 1]],
    }
)


def workload_of_run(job: Job, vocabulary: int = 256) -> Workload:
    """What the coordinator plans with: the job as nodes get it, and the facts of its start."""
    found = profile(job, vocabulary)
    facts = Facts(
        samples=100, validation_samples=1, context=job.model.context or 0, vocabulary=vocabulary, token_dtype="uint8",
        steps=1, tokens_digest="", profile=found, artifacts={},
    )  # fmt: skip
    return workload_of(job, facts)


def toml(tables: dict) -> str:
    """Tables of numbers, words and lists of words: JSON's values are TOML's."""
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines)


def assert_same(one: Workload, other: Workload) -> None:
    assert replace(one, layers=other.layers) == other
    assert [replace(layer, flops=0.0) for layer in one.layers] == [replace(layer, flops=0.0) for layer in other.layers]
    assert [layer.flops for layer in one.layers] == pytest.approx([layer.flops for layer in other.layers])


def drawn(dice: random.Random) -> dict:
    """A job of any shape: every key that a plan looks at, or its default."""
    family = dice.choice(["gpt2", "llama", "gpt_neox"])
    heads, batch = dice.choice([2, 4, 8]), dice.choice([6, 7, 8, 12, 32])
    model = {"family": family, "layers": dice.randint(1, 5), "heads": heads, "width": 16 * heads, "context": 32}
    model |= dice.choice([{}, {"tie": True}, {"tie": False}, {"vocabulary": 300}])
    if family == "llama":
        model |= dice.choice([{}, {"kv_heads": heads // 2}])
    train = {
        "batch": batch,
        **dice.choice([{}, {"precision": "bf16"}, {"recompute": True}, {"recompute": "auto"}, {"offload": True}]),
    }
    sizes = ["auto", *(n for n in range(1, 7) if batch % n == 0)]
    train |= dice.choice([{}, {"microbatch": dice.choice(sizes)}])
    train |= dice.choice([{}, {"critical_batch": 500}])
    train |= dice.choice([{}, {"optimizer": "sgd"}, {"optimizer": "lamb"}, {"moments": "bf16"}])
    codec = dice.choice(["none", "int8", "cocktail", "topk", "randomk", "powersgd", "demo", "auto"])
    every = dice.choice([1, 4, 12, "auto"])
    delta = {"mode": "delta", "codec": codec, "every": every, "overlap": dice.choice(["auto", 0, 1])}
    delta |= dice.choice([{}, {"outer": "nesterov:lr=0.7"}, {"outer": "sgd:lr=0.7"}, {"outer": "sgd:momentum=0.5"}])
    delta |= dice.choice([{}, {"block": 1024}, {"fragments": 1 if every == "auto" else every}])
    gradient = {"mode": "gradient", "codec": dice.choice(["none", "int8", "bf16", "auto"])}
    updates = dice.choice([{}, gradient, delta, delta])
    activations = dice.choice([{}, {"forward": "int8", "backward": "int8"}, {"forward": "aqsgd:bits=4"}])
    activations |= dice.choice([{}, {"forward": "auto"}])
    parallel = dice.choice(
        [{}, {"stages": 2}, {"pipelines": 2}, {"schedule": "gpipe"}, {"schedule": "interleaved"}, {"schedule": "auto"}]
    )
    if train.get("microbatch") != "auto" and batch // train.get("microbatch", 4) < 2:
        parallel.pop("pipelines", None)
    tables = {"train": train, "updates": updates, "activations": activations, "parallel": parallel}
    given = {name: table for name, table in tables.items() if table}
    return {"run": {"epochs": 2}, "model": model, "data": {"text": ["none.txt"]}, **given}


def test_a_hundred_jobs_count_the_same(tmp_path: Path) -> None:
    dice = random.Random(20)
    for number in range(100):
        tables = drawn(dice)
        path = tmp_path / f"{number}.toml"
        path.write_text(toml(tables))
        planned = workload_asked(path)[0]
        job = load_job(path, check_codec, files=False)
        if job.activations.forward == "auto":
            job = with_forward(job, "aqsgd:bits=4")
            tables["activations"] |= {"forward": "aqsgd:bits=4", "by_link": True}
        ran = workload_of_run(job)
        assert_same(planned, ran)
        assert jobs.workload_of(tables) == planned, "a table's defaults are not those of the schema"
        if number % 20 == 0:
            same = replace(ran, layers=planned.layers)  # flops are equal up to rounding
            assert plan(NETWORK, planned, time_limit=60) == plan(NETWORK, same, time_limit=60)


WITHOUT_FOLDER = sorted(path.name for path in EXAMPLES.glob("*.toml") if path.stem not in ("digits", "finetune"))


@pytest.mark.parametrize("name", WITHOUT_FOLDER)
def test_an_example_counts_the_same(tmp_path: Path, name: str) -> None:
    shutil.copy(EXAMPLES / name, tmp_path / name)
    job = load_job(tmp_path / name, check_codec, files=False)
    planned = workload_asked(tmp_path / name)[0]
    assert_same(planned, workload_of_run(job))
    assert plan(NETWORK, planned, time_limit=1).layers == len(planned.layers)


def test_a_bf16_run_hands_on_bf16_and_its_updates_are_fp32(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(
        toml(
            {
                "run": {"steps": 1},
                "model": {"family": "gpt2", "layers": 1, "width": 16, "heads": 2, "context": 8},
                "data": {"text": ["none.txt"]},
                "train": {"precision": "bf16", "batch": 6},
            }
        )
    )
    planned = workload_asked(tmp_path / "job.toml")[0]
    assert planned.activation_bits == planned.gradient_bits == pytest.approx(16.0, rel=0.05)  # and a header
    assert planned.update_bits == 32.0
    assert planned.microbatch == 3 and planned.mode == "gradient"
    assert planned.layers[0].parameters == (256 + 8) * 16
