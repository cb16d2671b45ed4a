"""What members that lie within the limits can do to a run, and what robust averages make of it.

    python -m benchmarks.robust [--steps N] [--output FILE]
    python -m benchmarks.robust table                 the table again, from the saved results

Eight members in one process train a small GPT-2 on Shakespeare in ``delta`` mode with codec int8, all-to-all: a local
AdamW step each, then a round through the real exchange (node/rounds/arithmetic/exchange.py). None, one or two of them
lie about their x - g: with its sign turned, as noise of the same norm, or ten or a hundred times as long. The loss is
that of g on held-out text.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from farflung.coordinator.data.facts import prepare
from farflung.job.data.facts import Facts
from farflung.job.schema import Job
from farflung.job.tables.robust import parse_robust
from farflung.node.data.dataset import Tokens
from farflung.node.models.definition import skeleton_of
from farflung.node.models.factory import model_of
from farflung.node.rounds.arithmetic.exchange import Exchange
from farflung.node.rounds.protocol.messages import Decide, Part, RoundPlan
from farflung.node.state.optimizers.make_optimizer import make_optimizer
from farflung.node.state.sections.moments import Kept
from farflung.node.state.sections.section import Layout, Section

RESULTS = Path(__file__).resolve().parent / "results" / "robust.json"
NAMES = tuple("abcdefgh")
SAMPLES = 4
"""Of each member in each step."""
AVERAGES = ("none", "clip", "centered")
ATTACKS = ("sign flip", "noise", "x10", "x100")
JOB: dict[str, Any] = {
    "model": {"family": "gpt2", "layers": 2, "width": 32, "heads": 4, "context": 32, "vocabulary": 256, "tie": False},
    "train": {"learning_rate": 8e-3, "betas": (0.9, 0.99)},
    "updates": {"mode": "delta"},
}


def lie(kind: str, values: Tensor, chance: torch.Generator) -> Tensor:
    """What an attacker sends instead of its x - g, fp32 [n]."""
    if kind == "sign flip":
        return -values
    if kind == "noise":
        noise = torch.randn(values.shape, generator=chance)
        return noise * (values.norm() / noise.norm())
    return values * float(kind.removeprefix("x"))


class Group:
    """Eight members of one section, each with its own x and moments, and one module that they take turns in."""

    def __init__(self, job: Job, facts: Facts, data: Tokens, average: str) -> None:
        self.data, self.job = data, job
        definition = model_of(job, facts)
        self.model = skeleton_of(definition.config).to_empty(device="cpu")
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(definition.initial(name, 1))
        initial = parameters_to_vector(self.model.parameters()).detach()
        self.optimizer = make_optimizer(job)
        plan = RoundPlan("stage-0", NAMES, (1.0,) * 8, (Part(0, "a", 0, initial.numel()),), "all_to_all")
        self.exchanges = []
        for name in NAMES:
            layout = Layout.of("stage-0", {"weights": (initial.numel(),)})
            section = Section(layout, False, Kept(self.optimizer.moments), torch.device("cpu"))
            section.g.copy_(initial)
            section.x.copy_(initial)
            section.restart_chain(1, 0)
            exchange = Exchange(section, plan, name, "int8", seed=7, robust=parse_robust(average))
            self.exchanges.append(exchange)

    def loss(self, vector: Tensor, ids: range | list[int]) -> Tensor:
        vector_to_parameters(vector, self.model.parameters())
        tokens, targets = self.data.batch(ids)
        logits = self.model(input_ids=tokens, use_cache=False).logits
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def local_step(self, section: Section, step: int, ids: list[int]) -> None:
        loss = self.loss(section.x, ids)
        gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        section.grad.copy_(parameters_to_vector(gradients))
        section.grad.mul_(min(1.0, 1.0 / float(section.grad.norm())))
        self.optimizer.step(section, step, self.job.train.learning_rate)

    def round(self, number: int) -> None:
        sent = {(0, index): exchange.contributions(number)[0] for index, exchange in enumerate(self.exchanges)}
        result, _ = self.exchanges[0].decide(number, Decide(0, tuple((i, one) for (_, i), one in sent.items())))
        for exchange in self.exchanges:
            exchange.apply_delta(exchange.updates(number, {0: result}, sent), (result,))
            exchange.section.round = number


def train(job: Job, facts: Facts, data: Tokens, average: str, attack: str, liars: int, steps: int) -> float:
    """Held-out loss after the last step; infinity where numbers blew up."""
    group, chance = Group(job, facts, data, average), torch.Generator().manual_seed(5)
    for step in range(1, steps + 1):
        order = torch.randint(facts.samples, (8 * SAMPLES,), generator=chance).tolist()
        for index, exchange in enumerate(group.exchanges):
            section = exchange.section
            if index >= 8 - liars:
                section.x.copy_(section.g)  # it has no use for what was not counted
            group.local_step(section, step, order[index * SAMPLES : (index + 1) * SAMPLES])
            if index >= 8 - liars:
                section.x.copy_(section.g + lie(attack, section.x - section.g, chance))
        group.round(step)
    with torch.no_grad():
        held_out = range(facts.samples, facts.samples + min(64, facts.validation_samples))
        loss = float(group.loss(group.exchanges[0].section.g, held_out))
    return loss if math.isfinite(loss) else math.inf


def measure(steps: int) -> dict[str, Any]:
    from farflung.examples.shakespeare import write_text

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        text = [str(path) for path in write_text(Path(folder))]
        job = Job.model_validate({**JOB, "run": {"steps": steps}, "data": {"text": text}})
        made = asyncio.run(prepare(job, Path(folder)))
        tokens = made.files["data/tokens"].read_bytes()
        data = Tokens(made.facts, lambda name, offset, length: tokens[offset : offset + length])
        for liars in (0, 1, 2):
            for attack in ATTACKS if liars else ("",):
                losses = {one: train(job, made.facts, data, one, attack, liars, steps) for one in AVERAGES}
                rows.append({"liars": liars, "attack": attack, **losses})
                print(rows[-1], file=sys.stderr)
    return {"members": 8, "steps": steps, "codec": "int8", "rows": rows}


def table(result: dict[str, Any]) -> str:
    lines = [
        f"| {result['members']} members, {result['steps']} steps | {' | '.join(AVERAGES)} |",
        "| --- |" + " --- |" * 3,
    ]
    for row in result["rows"]:
        who = f"{row['liars']} liar{'s' * (row['liars'] > 1)}: {row['attack']}" if row["liars"] else "nobody lies"
        lines.append(f"| {who} | " + " | ".join(f"{row[one]:.2f}" for one in AVERAGES) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("measure", "table"), default="measure")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--output", type=Path, default=RESULTS)
    wanted = parser.parse_args()
    if wanted.what == "measure":
        wanted.output.write_text(json.dumps(measure(wanted.steps), indent=1) + "\n", encoding="utf-8")
    print(table(json.loads(wanted.output.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
