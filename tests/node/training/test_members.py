"""The benchmarks' loop over members loses what the real trainers lose."""

from pathlib import Path
from typing import Any

import pytest

from farflung.benchmarks.members import Ended, Remedy, simulated
from farflung.benchmarks.quality import prepared, shape_of, train
from farflung.job.data.facts import Facts
from farflung.job.schema import Job
from farflung.node.data.dataset import Tokens

STEPS = 6
COCKTAIL = {"mode": "delta", "codec": "cocktail:random=0.3,top=0.4,bits=4", "overlap": 1}
DILOCO = {"mode": "delta", "every": 2, "fragments": 2, "overlap": 1, "outer": "nesterov:lr=0.7,momentum=0.5"}
SPARSELOCO = {"mode": "delta", "every": 2, "codec": "chunked_topk:k=128,bits=2,feedback=true", "outer": "sgd:lr=0.9"}
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cocktail": ({}, {**COCKTAIL, "dense_rounds": 2}),
    "diloco, llama": ({"family": "llama"}, DILOCO),
    "sparseloco": ({}, SPARSELOCO),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("members") / "text.txt"
    path.write_text("".join(f"{number} times {number} is {number * number}.\n" for number in range(600)))
    return path


def job_of(text: Path, updates: dict[str, Any], model: dict[str, Any]) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "members", "seed": 3, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 32, **model},
            "data": {"text": [str(text)], "tokenizer": "bytes", "validation": 0.1},
            "train": {
                "batch": 12,
                "microbatch": 4,
                "learning_rate": 5e-3,
                "warmup_steps": 3,
                "weight_decay": 0.1,
                "clip": 0.5,
                "eval_every": 3,
            },
            "parallel": {"stages": 1, "pipelines": 3},
            "updates": updates,
            "checkpoint": {"every": 0},
        }
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_members_in_a_loop_lose_what_trainers_lose(name: str, text: Path, tmp_path: Path) -> None:
    model, updates = SETTINGS[name]
    job = job_of(text, updates, model)
    facts, artifacts = prepared(job, tmp_path)
    real = train(job, facts, artifacts, shape_of(job))
    facts = Facts.model_validate({**facts.model_dump(), "steps": STEPS})
    ended = simulated(job, facts, Tokens(facts, lambda name, offset=0, length=None: artifacts[name][offset:][:length]))
    assert ended.evals == pytest.approx({int(step): loss for step, loss in real["evals"].items()}, rel=2e-5)
    assert 0 < 8 * real["update_bytes"] / 3 / ended.parameters / STEPS - ended.bits < 4  # headers and acknowledgements


def test_updates_of_full_rank_are_the_updates(text: Path, tmp_path: Path) -> None:
    def ended(codec: str, rank: int) -> Ended:
        job = job_of(text, {"mode": "delta", "codec": codec}, {})
        facts, artifacts = prepared(job, tmp_path / codec)
        facts = Facts.model_validate({**facts.model_dump(), "steps": STEPS})
        data = Tokens(facts, lambda name, offset=0, length=None: artifacts[name][offset:][:length])
        return simulated(job, facts, data, Remedy(low_rank=rank))

    dense, full, low = ended("none", 0), ended("int8", 1000), ended("int8", 1)
    assert full.evals[3] == pytest.approx(dense.evals[3], rel=1e-4)  # but for bf16's rounding
    assert full.unclosed == pytest.approx(dense.evals[STEPS], rel=2e-4)
    assert abs(low.evals[3] - dense.evals[3]) > 1e-3
    assert low.bits - low.closing < (full.bits - full.closing) / 4
