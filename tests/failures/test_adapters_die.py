"""Adapters for classes and for preferences, in two stages: one is killed and comes back, the run ends."""

import json

import peft
import pytest
import torch
import transformers
from farm import Process
from plain_lora import save_base
from safetensors.torch import load_file
from small_classifiers import NAMES, saved

from farflung.node.generation.export import export

pytestmark = [
    pytest.mark.timeout(1200),  # what is waited for is a state
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),  # peft reads it
]

TASKS = {
    "classification": (
        "AutoModelForSequenceClassification",
        {"classes": NAMES, "labelled": ["rows.jsonl"]},
        lambda number: {"text": f"{number} {NAMES[number % 3]}", "label": number % 3},
    ),
    "dpo": (
        "AutoModelForCausalLM",
        {"preferences": ["rows.jsonl"]},
        lambda number: {"prompt": f"{number}:", "chosen": " yes", "rejected": " no"},
    ),
}


def order(run, command, *words):
    """A command to the coordinator, which does it."""
    process = Process(run, command, ["coordinator", command, "state", *words])
    run.wait(lambda: not process.alive, command)
    assert process.status == 0, process.lines()


@pytest.mark.parametrize("task", TASKS)
def test_a_killed_stage_comes_back_and_the_run_ends(farm, task):
    auto, data, row = TASKS[task]
    run = farm(
        run={"name": task}, parallel={"stages": 2},
        train={"task": task, "batch": 8, "microbatch": 4, "learning_rate": 0.01}, data=data,
    )  # fmt: skip
    base = run.folder / "base"
    if task == "dpo":
        save_base(base, "llama", 256)
    else:
        saved("bert", base, vocab_size=256)
    (run.folder / "rows.jsonl").write_text("".join(json.dumps(row(number)) + "\n" for number in range(40)))
    del run.job["data"]["build"]
    run.job["model"] = {"pretrained": str(base), "context": 12}
    run.write_job(**{"model.lora": {"rank": 2}})
    run.coordinator()
    nodes = run.nodes("ab")
    run.trains("a", "b")
    run.wait(lambda: run.events("checkpoint"), "a checkpoint")
    nodes["b"].kill()
    run.wait(lambda: run.events("left", node="b"), "b is missed")
    run.node("b")
    run.trains("a", "b")
    order(run, "pause")  # so that the run is not past its new end before it hears of it
    run.wait(lambda: run.status()["phase"] == "waiting" and run.status()["paused"], "all wait")
    last = run.step() + 20
    order(run, "set", f"run.steps={last}")
    order(run, "resume")
    [done] = run.wait(lambda: run.events("done"), "the run ends")
    assert done["steps"] == last

    folder = export(run.state, run.folder / "out")
    written = load_file(folder / "adapter_model.safetensors")
    assert all(values.any() for values in written.values()), "each matrix has trained"
    plain = getattr(transformers, auto).from_pretrained(base).eval()
    ids = torch.arange(10)[None]
    with torch.no_grad():
        before = plain(input_ids=ids).logits
        tuned = peft.PeftModel.from_pretrained(plain, folder).eval()
        after = tuned(input_ids=ids).logits
        assert (after - before).abs().max() > 1e-3
        merged = export(run.state, run.folder / "merged", merge=True)
        whole = getattr(transformers, auto).from_pretrained(merged).eval()
        torch.testing.assert_close(whole(input_ids=ids).logits, after, rtol=0, atol=1e-5)
