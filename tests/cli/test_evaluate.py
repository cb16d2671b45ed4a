"""A run with real processes that evaluates on a set, finds that nothing gets better, and shows its owner's program."""

import contextlib
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farflung.coordinator.store.store import Store

PROGRAM = """
import json, sys
from safetensors import safe_open
with safe_open(sys.argv[1] + "/model.safetensors", "np") as file:
    count = len(list(file.keys()))
json.dump({"tensors": count}, open(sys.argv[2] + "/found.json", "w"))
"""

SET = '[[eval.sets]]\nname = "own"\ntext = "own.txt"'
"""Short: a run that ends early evaluates on it some dozens of times more."""


def test_a_run_ends_where_nothing_gets_better(
    job_file: Callable[..., Path], local_run: Callable[..., Any], tmp_path: Path
) -> None:
    """With next to no learning rate no loss is lower than the first. The program sees the last checkpoint."""
    program = json.dumps([sys.executable, "-c", PROGRAM, "{model}", "{folder}"])
    job = job_file(
        ("steps = 4", "steps = 100000"),
        ("validation = 0.1", "validation = 0.01"),
        ("eval_every = 0", "eval_every = 3\nlearning_rate = 1e-30"),
        (
            "[checkpoint]",
            f"[eval]\npatience = 2\ncommand = {program}\n{SET}\n[checkpoint]",
        ),
    )
    (job.parent / "own.txt").write_text("To be, or not to be, that is the question.\n" * 4)
    state = tmp_path / "state"
    done = local_run(job, "--nodes", "1", "--state", str(state), cwd=tmp_path)
    assert done.status == 0, done.stderr
    events = {
        kind: [one for one in done.events if one["event"] == kind] for kind in ("eval", "evaluated", "notice", "done")
    }
    assert any("in 2 evaluations the validation loss was never below" in one["message"] for one in events["notice"])
    steps = events["done"][0]["steps"]
    assert 9 < steps < 100000 and events["eval"][-1]["step"] == steps
    found = events["eval"][-1]["sets"]["own"]
    assert found["perplexity"] == math.exp(found["loss"]) and 0 <= found["accuracy"] <= 1
    assert events["evaluated"], done.events[-8:]
    (seen,) = events["evaluated"]
    assert seen["step"] == steps and seen["results"]["tensors"] > 20
    with contextlib.closing(Store(state)) as store:
        assert [row.name for row in store.evals.sets(steps)] == ["own"]
