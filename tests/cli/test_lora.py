"""Adapters from a job to a folder: two real node processes against peft in this one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from plain_lora import peft_losses, save_base
from safetensors.torch import load_file
from token_rows import Rows

from farflung.__main__ import app
from farflung.cli.common import execute
from farflung.job.files import load_job
from farflung.node.generation.checkpoint import find_checkpoint
from farflung.node.generation.export import export
from farflung.node.models.factory import model_of

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft reads it

MODEL = 'family = "gpt2"\nlayers = 2\nwidth = 32\nheads = 2\ncontext = 32'
STEPS = 4


def test_from_a_model_folder_to_an_adapter_folder(
    job_file: Callable[..., Path], local_run: Callable[..., Any], tmp_path: Path
) -> None:
    base, state = save_base(tmp_path / "base"), tmp_path / "state"
    table = f'pretrained = "{base}"\ncontext = 32\n[model.lora]\nrank = 4\nalpha = 8\n'
    path = job_file((MODEL, table), ("eval_every = 0", "eval_every = 0\nlearning_rate = 0.02"))
    done = local_run(path, "--nodes", "2", "--state", str(state))
    assert done.status == 0, done.stderr
    steps = [event for event in done.events if event["event"] == "step"]
    losses = [event["loss"] for event in steps]

    job, facts = load_job(path), find_checkpoint(state).facts
    wanted, trained = peft_losses(job, facts, Rows(state, facts), STEPS)
    assert losses == pytest.approx(wanted, abs=1e-5)
    assert losses[-1] < losses[0] - 0.02
    adapters = 4 * sum(torch.Size(shape).numel() for shape in model_of(job, facts).shapes.values())
    for event in steps:  # two nodes, as pipelines or as stages
        assert event["bytes_updates"] <= 2 * adapters + 6000

    folder = export(state, tmp_path / "adapter")
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {one.name for one in folder.iterdir()}
    assert len(load_file(folder / "adapter_model.safetensors")) == 4
    loaded = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base), folder).eval()
    ids = torch.arange(32)[None]
    with torch.no_grad():
        logits = loaded(input_ids=ids).logits
        torch.testing.assert_close(logits, trained(input_ids=ids).logits, rtol=0, atol=1e-4)
        assert execute(app, ["export", str(state), str(tmp_path / "merged"), "--merge"]) == 0
        whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
        torch.testing.assert_close(whole(input_ids=ids).logits, logits, rtol=0, atol=1e-5)
        direct = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()  # transformers asks peft itself
        torch.testing.assert_close(direct(input_ids=ids).logits, logits, rtol=0, atol=1e-5)
