"""Everything that a node holds for its place in a view: the stage's module on top of its sections' flat vectors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from operator import itemgetter

import torch
from torch import Tensor

from ..proto.job import Job, Updates
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


def round_plan(plan: Plan, layout: Layout, updates: Updates, phases: int = 0) -> RoundPlan:
    """Members, weights, pattern and parts of a section's rounds in a view.

    ``auto`` takes all-to-all for two members, where it costs the same bytes as publishers and needs no second
    encoding, and publishers above, where all-to-all costs (members / 2) times their bytes. ``phases``: of a codec whose
    encodings are summed; it takes that pattern whatever the job says, and its parts are made of whole parameters.
    """
    section = layout.section
    if section == TIED:
        members = (*plan.group(0), *plan.group(len(plan.stages) - 1))
        weights = plan.shares * 2
    else:
        members = plan.group(int(section.removeprefix("stage-")))
        weights = plan.shares
    if phases:
        pattern, units = "phases", list(pairwise(layout.offsets))
    else:
        units = layout.blocks(updates.block)
        pattern = updates.pattern
    if pattern == "auto":
        pattern = "all_to_all" if len(members) <= 2 else "publishers"

    def owner(middle: int, numel: int) -> str:
        if pattern == "all_to_all":
            return members[0]
        if section == TIED:
            return members[middle * len(members) // numel]
        return plan.publisher(int(section.removeprefix("stage-")), middle, numel)

    parts: list[Part] = []
    for fragment in range(updates.fragments):
        # A unit belongs to the fragment, and inside it to the publisher, in whose range its middle lies.
        edges = [layout.numel * turn // updates.fragments for turn in (fragment, fragment + 1)]
        run = [unit for unit in units if edges[0] <= sum(unit) // 2 < edges[1]]
        begin, length = (run[0][0], run[-1][1] - run[0][0]) if run else (0, 0)
        owners = [owner(sum(unit) // 2 - begin, length) for unit in run]
        for publisher, group in groupby(zip(owners, run, strict=True), itemgetter(0)):
            mine = [unit for _, unit in group]
            for phase in range(max(1, phases)):
                parts.append(Part(len(parts), publisher, mine[0][0], mine[-1][1], fragment, phase))
    return RoundPlan(
        section,
        members,
        weights,
        tuple(parts),
        pattern,
        updates.mode == "gradient",
        updates.fragments,
        max(1, phases),
        updates.dense_rounds,
    )


def _decay_mask(section: Section) -> Tensor:
    """1 for matrices, 0 for biases and norms, which are not decayed."""
    mask = torch.zeros_like(section.g)
    for _, values in section.layout.views(mask):
        if values.ndim >= 2:
            values.fill_(1.0)
    return mask
