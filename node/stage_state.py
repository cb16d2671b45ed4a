"""Everything that a node holds for its place in a view: the stage's module on top of its sections' flat vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from ..proto.job import Job
from ..scheduler import Plan
from .models import ModelDefinition
from .optimizers import Optimizer
from .round_messages import Part, RoundPlan
from .sections import Layout, Section
from .stage import StageModel

TIED = "tied"
REFERENCE = ("", "optimizer.outer.")
"""Prefixes of the vectors that are the group's reference, in the order of ``Section.reference``."""


class StageState:
    """A stage's module and its sections. The module's parameters are views into the sections' vectors.

    A section is what one group shares: the stage itself, and, where the embedding is tied and lies on two stages,
    one section of the first and last stage's nodes with that one parameter.
    """

    def __init__(
        self, definition: ModelDefinition, job: Job, plan: Plan, node: str, optimizer: Optimizer, device: torch.device
    ) -> None:
        self.index = plan.stage_of(node)
        first, last = plan.stages[self.index]
        self.model: StageModel = definition.build(first, last, device)
        self.layers = range(first, last + 1)
        self.gradient = job.updates.mode == "gradient"
        self.optimizer_steps = 0
        """Delta mode: local steps that these moments have seen."""
        self.sections: dict[str, Section] = {}
        for name, parameters in section_parameters(definition, plan, self.index).items():
            layout = Layout.of(name, {parameter: definition.shapes[parameter] for parameter in parameters})
            momentum = bool(job.updates.outer_optimizer.momentum)
            self.sections[name] = Section(layout, self.gradient, optimizer.moments, device, momentum)
        self.decay = {name: _decay_mask(section) for name, section in self.sections.items()}
        self.use_local()

    # ---- which weights the module computes with --------------------------------------------

    def use_local(self) -> None:
        """Compute with x and accumulate gradients into the sections' gradient vectors."""
        parameters = dict(self.model.named_parameters())
        for section in self.sections.values():
            for name, values in section.layout.views(section.x):
                parameters[name].data = values
            for name, values in section.layout.views(section.grad):
                parameters[name].grad = values

    def use_reference(self) -> None:
        """Compute with g, for evaluation."""
        parameters = dict(self.model.named_parameters())
        for section in self.sections.values():
            for name, values in section.layout.views(section.g):
                parameters[name].data = values

    def zero_gradients(self) -> None:
        for section in self.sections.values():
            section.grad.zero_()

    # ---- tensors by name -------------------------------------------------------------------

    def vectors(self, section: Section) -> dict[str, Tensor]:
        """What travels to a joiner and into a checkpoint: the reference, and with it the optimiser's moments."""
        reference = dict(zip(REFERENCE, section.reference, strict=False))
        return {**reference, **{f"optimizer.{name}.": vector for name, vector in section.moments.items()}}

    def tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """(parameter, prefix, view) of every vector of ``vectors``."""
        for section in self.sections.values():
            for prefix, vector in self.vectors(section).items():
                for name, values in section.layout.views(vector):
                    yield name, prefix, values

    def named(self) -> dict[str, dict[str, Tensor]]:
        """parameter -> prefix -> view."""
        found: dict[str, dict[str, Tensor]] = {}
        for name, prefix, values in self.tensors():
            found.setdefault(name, {})[prefix] = values
        return found

    def same_place(self, definition: ModelDefinition, plan: Plan, node: str) -> bool:
        """Whether the plan gives this node the very layers and sections that it holds."""
        if node not in plan.nodes:
            return False
        index = plan.stage_of(node)
        first, last = plan.stages[index]
        wanted = section_parameters(definition, plan, index)
        return (self.layers.start, self.layers.stop - 1) == (first, last) and {
            name: section.layout.names for name, section in self.sections.items()
        } == {name: tuple(parameters) for name, parameters in wanted.items()}


def section_parameters(definition: ModelDefinition, plan: Plan, stage: int) -> dict[str, list[str]]:
    """The parameters of each section of a stage's nodes."""
    first, last = plan.stages[stage]
    names = definition.parameter_names(first, last)
    stages = len(plan.stages)
    sections = {f"stage-{stage}": names}
    if definition.tied and stages > 1 and stage in (0, stages - 1):
        sections = {f"stage-{stage}": [name for name in names if name != definition.tied], TIED: [definition.tied]}
    return {name: parameters for name, parameters in sections.items() if parameters}


def round_plan(
    plan: Plan, section: str, numel: int, block: int, pattern: str, gradient: bool, fragments: int = 1
) -> RoundPlan:
    """Members, weights, pattern and parts of a section's rounds in a view.

    ``auto`` takes all-to-all for two members, where it costs the same bytes as publishers and needs no second
    encoding, and publishers above, where all-to-all costs (members / 2) times their bytes.
    """
    if section == TIED:
        members = (*plan.group(0), *plan.group(len(plan.stages) - 1))
        weights = plan.shares * 2
    else:
        members = plan.group(int(section.removeprefix("stage-")))
        weights = plan.shares
    if pattern == "auto":
        pattern = "all_to_all" if len(members) <= 2 else "publishers"
    parts: list[Part] = []
    blocks = -(-numel // block)
    for fragment in range(fragments):
        run = range(fragment * blocks // fragments, (fragment + 1) * blocks // fragments)
        if pattern == "all_to_all":
            owners = [members[0]] * len(run)
        elif section == TIED:
            owners = [members[number * len(members) // len(run)] for number in range(len(run))]
        else:
            stage = int(section.removeprefix("stage-"))
            owners = [plan.publisher(stage, number, len(run)) for number in range(len(run))]
        parts += _parts(len(parts), fragment, run.start * block, owners, block, numel)
    return RoundPlan(section, members, weights, tuple(parts), pattern, gradient, fragments)


def _parts(first: int, fragment: int, start: int, owners: Sequence[str], block: int, numel: int) -> list[Part]:
    """Contiguous runs of a fragment's blocks, one run for each publisher that has any."""
    parts: list[Part] = []
    for owner, run in groupby(owners):
        stop = min(start + block * len(list(run)), numel)
        parts.append(Part(first + len(parts), owner, start, stop, fragment))
        start = stop
    return parts


def _decay_mask(section: Section) -> Tensor:
    """1 for matrices, 0 for biases and norms, which are not decayed."""
    mask = torch.zeros_like(section.g)
    for _, values in section.layout.views(mask):
        if values.ndim >= 2:
            values.fill_(1.0)
    return mask
