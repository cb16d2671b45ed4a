"""A small pretrained folder, and `peft`'s own way of training adapters beside it in one process."""

from __future__ import annotations

from pathlib import Path

import peft
import torch
import transformers
from plain_loop import plain_optimizer, plain_step

from farflung.job.data.facts import Facts
from farflung.job.data.sampling import Position, sample_ids
from farflung.job.schema import Job
from farflung.node.models.factory import model_of
from farflung.node.state.optimizers.learning_rates import learning_rate

SHAPES = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "gpt_neox": {"intermediate_size": 64},
    **{name: {"intermediate_size": 48, "num_key_value_heads": 1} for name in ("llama", "mistral", "qwen2")},
}
WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32}


def save_base(folder: Path, family: str = "gpt2", vocabulary: int = 256, seed: int = 1) -> Path:
    """A model folder with random weights."""
    torch.manual_seed(seed)
    shape = SHAPES[family] if family == "gpt2" else {**WIDE, **SHAPES[family]}
    config = transformers.AutoConfig.for_model(
        family, vocab_size=vocabulary, bos_token_id=None, eos_token_id=None, initializer_range=0.15, **shape
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def plain_peft(job: Job, facts: Facts):
    """The model with `peft`'s adapters, at the values that the job's seed gives them."""
    lora = job.model.lora
    assert lora is not None
    base = transformers.AutoModelForCausalLM.from_pretrained(str(job.model.pretrained))
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        use_rslora=lora.rslora,
        use_dora=lora.dora,
        target_modules=lora.targets,
        fan_in_fan_out=base.config.model_type == "gpt2",
    )
    model = peft.get_peft_model(base, config).eval()  # eval: no dropout of the base's either
    definition = model_of(job, facts)
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    assert set(trained) == {f"base_model.model.{name}" for name in definition.shapes}
    with torch.no_grad():
        for name in definition.shapes:
            if "magnitude" not in name:
                trained[f"base_model.model.{name}"].copy_(definition.initial(name, job.run.seed))
    return model


def peft_losses(job: Job, facts: Facts, data, steps: int):
    """(mean loss of each step of a plain loop over the same samples, the trained model)."""
    model, train = plain_peft(job, facts), job.train
    optimizer = plain_optimizer(model, train)
    losses = []
    for step in range(1, steps + 1):
        ids = sample_ids(Position().positions(step, train.batch), job.run.seed, facts.samples)
        rate = learning_rate(train, step, facts.steps)
        losses.append(plain_step(model, optimizer, train, rate, *data.batch(ids)))
    return losses, model
