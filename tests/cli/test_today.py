"""A model of today from its folder to a folder: a coordinator and two nodes of one stage each, real processes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from plain_loop import plain_optimizer, plain_step
from small_models import Case, saved
from token_rows import Rows

from farflung.job.data.sampling import Position, sample_ids
from farflung.job.files import load_job
from farflung.node.generation.checkpoint import find_checkpoint
from farflung.node.generation.export import export
from farflung.node.state.optimizers.learning_rates import learning_rate

MODEL = 'family = "gpt2"\nlayers = 2\nwidth = 32\nheads = 2\ncontext = 32'
STEPS = 4
QWEN = {"vocab_size": 256, "head_dim": 16, "tie_word_embeddings": True}


def test_qwen_from_a_folder_to_a_folder(
    job_file: Callable[..., Path], local_run: Callable[..., Any], tmp_path: Path
) -> None:
    state, base = tmp_path / "state", tmp_path / "base"
    saved(Case("qwen3", QWEN, dtype=torch.bfloat16), base)
    table = f'pretrained = "{base}"\ncontext = 32\n[parallel]\nstages = 2'
    path = job_file((MODEL, table), ("eval_every = 0", "eval_every = 0\nlearning_rate = 0.02"))
    done = local_run(path, "--nodes", "2", "--state", str(state))
    assert done.status == 0, done.stderr
    losses = [event["loss"] for event in done.events if event["event"] == "step"]

    job, facts = load_job(path), find_checkpoint(state).facts
    model, data = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), Rows(state, facts)
    optimizer = plain_optimizer(model, job.train)
    wanted = []
    for step in range(1, STEPS + 1):
        batch = data.batch(sample_ids(Position().positions(step, job.train.batch), job.run.seed, facts.samples))
        wanted.append(plain_step(model, optimizer, job.train, learning_rate(job.train, step, STEPS), *batch))
    assert losses == pytest.approx(wanted, abs=1e-5)
    assert wanted[-1] < wanted[0] - 0.1

    folder = export(state, tmp_path / "tuned")
    tuned = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert tuned.dtype == torch.bfloat16 and type(tuned).__name__ == "Qwen3ForCausalLM"
    for name, value in model.named_parameters():
        torch.testing.assert_close(tuned.get_parameter(name).float(), value.detach(), rtol=2**-8, atol=1e-5)
