"""The reference that distributed training is compared with: one process, one model, torch's own optimiser."""

from __future__ import annotations

import torch
import transformers
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from farflung import compress
from farflung.job.data.facts import Facts
from farflung.job.data.sampling import Position, assign, sample_ids
from farflung.job.schema import Job
from farflung.node.models.definition import skeleton_of
from farflung.node.models.factory import model_of
from farflung.node.state.optimizers.learning_rates import learning_rate


def plain_model(job: Job, facts: Facts):
    """The whole model on the initial weights of the job's seed."""
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
    return model


class FrozenAdam(torch.optim.Optimizer):
    """Adam whose variance stays as it is after ``freeze`` steps, on one process."""

    def __init__(self, params, train, freeze: int) -> None:
        super().__init__(params, {"lr": 1.0})
        self.betas, self.eps, self.freeze, self.count = train.betas, train.eps, freeze, 0

    @torch.no_grad()
    def step(self):
        self.count += 1
        first, second = self.betas
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["m"] = first * state.get("m", 0.0) + (1 - first) * p.grad
            if self.count <= self.freeze:
                state["v"] = second * state.get("v", 0.0) + (1 - second) * p.grad**2
            m = torch.where(state["v"] > 0, state["m"], 0.0) / (1 - first**self.count)
            v = state["v"] / (1 - second ** min(self.count, self.freeze))
            p.sub_(self.param_groups[0]["lr"] * m / (v.sqrt() + self.eps))


def plain_optimizer(model, train, freeze: int = 0) -> torch.optim.Optimizer:
    """torch's own, as the job says."""
    if train.optimizer == "lamb":
        return compress.optimizers.Lamb(model.parameters(), 1.0, train.betas, train.eps, train.weight_decay)
    if train.optimizer == "adafactor":
        return transformers.Adafactor(model.parameters(), lr=1.0, scale_parameter=False, relative_step=False)
    if train.optimizer == "onebit_adam":
        return FrozenAdam(model.parameters(), train, freeze)
    if train.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1.0, momentum=train.momentum)
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": train.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=tuple(train.betas), eps=train.eps)


def plain_step(model, optimizer, train, rate: float, tokens, targets, bf16: bool = False) -> float:
    """One step of one model on these samples; their mean loss before it."""
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        logits = model(input_ids=tokens, use_cache=False).logits
    loss = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
    loss.backward()
    if train.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return float(loss.detach())


def plain_losses(job: Job, facts: Facts, data, steps: int, bf16: bool = False) -> list[float]:
    """Mean loss of each step of a plain loop over the same samples, from the same initial weights."""
    model, train = plain_model(job, facts), job.train
    optimizer = plain_optimizer(model, train, job.updates.dense_rounds)
    losses = []
    for step in range(1, steps + 1):
        positions = Position().positions(step, train.batch)
        tokens, targets = data.batch(sample_ids(positions, job.run.seed, facts.samples))
        losses.append(
            plain_step(model, optimizer, train, learning_rate(train, step, facts.steps), tokens, targets, bf16)
        )
    return losses


def plain_local_losses(
    job: Job, facts: Facts, data, steps: int, microbatches: tuple[int, ...], pieces=((0, None),)
) -> list[float]:
    """The same for local steps: a model and an optimiser for each pipeline, and every ``updates.every`` steps torch's
    SGD moves the common weights by the weighted mean of what the models went away from them.

    ``pieces``: ranges of the flat vector of all parameters that take turns, as the fragments of a round do.
    """
    train, outer = job.train, job.updates.outer_optimizer
    definition = model_of(job, facts)
    names = definition.parameter_names(0, len(definition.layers) - 1)
    models = [plain_model(job, facts) for _ in microbatches]
    optimizers = [plain_optimizer(model, train) for model in models]
    weights = [[dict(model.named_parameters())[name] for name in names] for model in models]
    common = parameters_to_vector(weights[0]).detach()
    parts = [torch.nn.Parameter(common[start:stop].clone()) for start, stop in pieces]
    movers = [torch.optim.SGD([p], lr=outer.rate, momentum=outer.momentum, nesterov=outer.nesterov) for p in parts]
    losses = []
    turn = 0
    for step in range(1, steps + 1):
        samples = sample_ids(Position().positions(step, train.batch), job.run.seed, facts.samples)
        total = 0.0
        for model, optimizer, share in zip(
            models, optimizers, assign(samples, microbatches, train.microbatch), strict=True
        ):
            tokens, targets = data.batch([samples[index] for index in share])
            rate = learning_rate(train, step, facts.steps)
            total += plain_step(model, optimizer, train, rate, tokens, targets) * len(share)
        losses.append(total / train.batch)
        due = step % (job.updates.every // len(pieces)) == 0
        for number in range(len(pieces) if step == steps else due):
            (start, stop), part = pieces[turn % len(pieces)], parts[turn % len(pieces)]
            with torch.no_grad():
                flat = [parameters_to_vector(own) for own in weights]
                mean = sum(one * (n / sum(microbatches)) for one, n in zip(flat, microbatches, strict=True))
                if due and number == 0:
                    part.grad = part - mean[start:stop]
                    movers[turn % len(pieces)].step()
                else:  # the run ends: what is left is averaged
                    part.copy_(mean[start:stop])
                for own, one in zip(weights, flat, strict=True):
                    one[start:stop] = part
                    vector_to_parameters(one, own)
            turn += 1
    return losses
