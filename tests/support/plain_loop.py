"""The reference that distributed training is compared with: one process, one model, torch's own optimiser."""

from __future__ import annotations

import torch
from torch.nn import functional

from farflung.node.models import model_of, skeleton_of
from farflung.node.optimizers import learning_rate
from farflung.proto.job import Facts, Job
from farflung.proto.sampling import Position, sample_ids


def plain_losses(job: Job, facts: Facts, data, steps: int, bf16: bool = False) -> list[float]:
    """Mean loss of each step of a plain loop over the same samples, from the same initial weights."""
    definition = model_of(job, facts)
    model = skeleton_of(definition.config).to_empty(device="cpu")
    model.tie_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(definition.initial(name, job.run.seed))
    for module in model.modules():  # buffers (rotary tables) are not built on the meta device
        if hasattr(module, "inv_freq"):
            made = type(module)(config=definition.config)
            module.inv_freq = made.inv_freq
            if hasattr(module, "original_inv_freq"):
                module.original_inv_freq = made.inv_freq
    model.train()
    train = job.train
    if train.optimizer == "adamw":
        decayed = [p for p in model.parameters() if p.ndim >= 2]
        others = [p for p in model.parameters() if p.ndim < 2]
        groups = [{"params": decayed, "weight_decay": train.weight_decay}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, betas=tuple(train.betas), eps=train.eps)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=train.momentum)
    losses = []
    for step in range(1, steps + 1):
        positions = Position().positions(step, train.batch)
        tokens, targets = data.batch(sample_ids(positions, job.run.seed, facts.samples))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            logits = model(input_ids=tokens, use_cache=False).logits
        loss = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        if train.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(train, step, facts.steps)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
