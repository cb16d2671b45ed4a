"""The state that a node holds for its place in a view: its stages' modules, whose parameters are views of sections."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path

import torch
from torch import Tensor

from ...job.chosen import RECOMPUTE_KEY
from ...job.schema import Job, Updates
from ...proto.words.sections import TIED, piece_of, section_of, stage_of
from ...scheduler import Plan
from ...scheduler.workloads.offload import MOMENTS, MOVABLE, PARAMETERS
from ...scheduler.workloads.workload import settled_pattern
from ..ipc.arena import release_freed_memory
from ..models.compiled import compile_layers
from ..models.definition import ModelDefinition
from ..models.lora import base_name
from ..models.stage import StageModel
from ..rounds.protocol.messages import Part, RoundPlan
from .buckets import buckets, place_in
from .device_weights import DeviceWeights
from .loss_scale import LossScale, first_scale
from .optimizers.optimizers import Optimizer, kept_moments
from .sections.cut import SECTIONS, even, sections_of_a_stage
from .sections.gradients import Gradients
from .sections.residuals import Residuals
from .sections.section import Layout, Section

BASE = "base:"
"""Prefix of the names under which frozen parameters are served."""
REFERENCE = ("", "optimizer.outer.")
"""Prefixes of the vectors that are the group's reference, in the order of ``Section.reference``."""
_TURN = 5
"""Sections 0, 1, 2, ... of a stage are turned by 0, 5/8, 2/8, ... of their length: the first few are spread too."""


class StageState:
    """A node's stages (one, or several where the schedule is interleaved) and their sections.

    The modules' parameters are views into the sections' vectors.

    There is one section for each stage, or several where islands may hold the stage in pieces (cut.py); if a tied
    embedding lies on two stages, there is another section with that parameter alone, which the nodes of the first and
    the last stage share.
    """

    def __init__(
        self,
        definition: ModelDefinition,
        job: Job,
        plan: Plan,
        node: str,
        optimizer: Optimizer,
        device: torch.device,
        *,
        shared: bool = False,
        folder: Path | None = None,
        computes_on: torch.device | None = None,
    ) -> None:
        """``shared``: the sections lie in memory that the processes of an island share; ``device`` is then the CPU.
        ``folder``: where this node keeps moments that are offloaded, now or later; None: in main memory.
        ``computes_on``: the device of the models, where it is another than the sections', which is then the CPU; None:
        the parameters are views of the sections."""
        self.stages = plan.stages_of(node)
        self.models: tuple[StageModel, ...] = tuple(
            definition.build(*plan.stages[stage], computes_on or device) for stage in self.stages
        )
        for model in self.models if job.train.compile else ():
            compile_layers(model)
        for values in self._parameters().values():
            values.data = values.new_empty(0)  # free their memory before the vectors are allocated
        release_freed_memory()
        self.layers = tuple(layer for stage in self.stages for layer in plan.layers_in(stage))
        self.gradient = job.updates.mode == "gradient"
        self.moments_travel = self.gradient or not job.updates.secure
        """Whether other nodes may get the moments. In delta mode they come from this node's data alone, so with
        ``updates.secure`` they may not."""
        self.lacking: frozenset[str] = frozenset()
        """Parameters taken up from peers in this view; without agreed rounds the peers' weights have moved on since."""
        self.optimizer_steps = 0
        """Delta mode: the number of local steps in these moments."""
        self.loss_scale: LossScale | None = first_scale(job)
        """fp16: the state of the loss scale; None in another precision."""
        self.bases: dict[int, int] = {}
        """The digest of the frozen weights of each layer that has some."""
        self._cut = sections_of_a_stage(job)
        self.sections: dict[str, Section] = {}
        kept, momentum = kept_moments(job, optimizer, folder), bool(job.updates.outer_optimizer.momentum)
        for name, layout in layouts_of(definition, plan, self.stages, self._cut).items():
            room = Section.room_of(layout, kept) if shared else None
            pinned = computes_on is not None and computes_on.type == "cuda"
            self.sections[name] = Section(
                layout, self.gradient, kept, device, momentum, room, pinned=pinned, residuals=residuals_of(job)
            )
        self.computes_on, self.offload = computes_on, job.train.offload_kind
        self._apart: DeviceWeights | None = None
        if computes_on is not None:
            blocks = [list(model.inner) for model in self.models]
            passing = blocks if job.train.offload_kind == PARAMETERS else ()
            self._apart = DeviceWeights(self._parameters(), computes_on, passing)
        self.use_local()
        places = {name: values for one in self.sections.values() for name, values in one.layout.views(one.grad)}
        self.gradients = Gradients(self._parameters(), places, self._apart is not None)

    def taken(self, step: int) -> int:
        """Gradient mode: the number of optimiser steps up to ``step``, all of the run's but those that fp16's loss
        scale has dropped before; at least 1, whatever a holder has said of these."""
        return max(1, step - (self.loss_scale.dropped if self.loss_scale is not None else 0))

    def obey(self, plan: Plan) -> None:
        """Take over the plan's choice whether to recompute activations, if the job leaves it to the plan."""
        again = plan.chosen.get(RECOMPUTE_KEY)
        if again is not None:
            for model in self.models:
                model.recompute = bool(again)

    def move_moments(self, kind: str) -> None:
        """Let the moments lie where ``train.offload`` = ``kind`` ("none", "moments") has them, with all their bits.
        Where memory for them is lacking this raises (an allocator's error, or FarflungError of a folder), and they lie
        where they lay."""
        if kind == self.offload:
            return
        found = [(section, section.moments_in(kind == MOMENTS)) for section in self.sections.values()]
        with torch.no_grad():
            for section, moments in found:
                section.keep(moments)
        self.offload = kind

    # ---- which weights the module computes with --------------------------------------------

    def use_local(self) -> None:
        """Point the modules' parameters to x."""
        self._use(lambda section: section.x)

    def use_reference(self) -> None:
        """Point the modules' parameters to g, for evaluation."""
        self._use(lambda section: section.g)

    def use(self, weights: Tensor) -> None:
        """Point the modules' parameters to ``weights``, fp32 [numel]. Only for a state with one section."""
        self._use(lambda section: weights)

    def fresh(self) -> None:
        """Call it before a step: weights that lie in main memory go to the device as they are now."""
        if self._apart is not None:
            self.use_local()

    def _use(self, weights: Callable[[Section], Tensor]) -> None:
        if self._apart is not None:
            self._apart.take({name: one for s in self.sections.values() for name, one in s.layout.views(weights(s))})
            return
        parameters = self._parameters()
        for section in self.sections.values():
            for name, values in section.layout.views(weights(section)):
                parameters[name].data = values

    def _parameters(self) -> dict[str, Tensor]:
        """The parameters that train, by name."""
        found = (item for model in self.models for item in model.named_parameters())
        return {name: values for name, values in found if values.requires_grad}

    def frozen(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters that never change, by the module's names."""
        for model in self.models:
            yield from ((name, values) for name, values in model.named_parameters() if not values.requires_grad)

    def base(self) -> Iterator[tuple[str, Tensor]]:
        """The frozen parameters, by their names in the model folder."""
        return ((base_name(name), values) for name, values in self.frozen())

    @property
    def is_last(self) -> bool:
        """Whether the model's last layer is here, and so the loss."""
        return self.models[-1].is_last

    def adopt(self) -> None:
        """Start like a joiner: x := g, and in delta mode moments of zero."""
        for section in self.sections.values():
            section.adopt()
            if not self.gradient:
                for moment in section.moments.values():
                    moment.zero_()
        if not self.gradient:
            self.optimizer_steps = 0

    # ---- tensors by name -------------------------------------------------------------------

    def vectors(self, section: Section) -> dict[str, Tensor]:
        """Prefix -> vector, of the vectors that joiners and checkpoints get: the reference, and (if they may travel)
        the optimiser's moments."""
        reference = dict(zip(REFERENCE, section.reference, strict=False))
        moments = section.moments if self.moments_travel else {}
        return {**reference, **{f"optimizer.{name}.": vector for name, vector in moments.items()}}

    def tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """(parameter, prefix, view) of every vector of ``vectors``, of all sections."""
        for section in self.sections.values():
            yield from self.tensors_in(section)

    def tensors_in(self, section: Section) -> Iterator[tuple[str, str, Tensor]]:
        """(parameter, prefix, view) of every vector of ``vectors``."""
        for prefix, vector in self.vectors(section).items():
            layout = section.layout if prefix in REFERENCE else section.of_moments
            for name, values in layout.views(vector):
                yield name, prefix, values

    def named(self) -> dict[str, dict[str, Tensor]]:
        """parameter -> prefix -> view."""
        found: dict[str, dict[str, Tensor]] = {}
        for name, prefix, values in self.tensors():
            found.setdefault(name, {})[prefix] = values
        return found

    def is_on(self, device: torch.device, shared: bool, offload: str) -> bool:
        """Whether the sections lie on a device of this type, in shared memory or not, and offloaded in this way up to
        where the moments lie (`move_moments`): this follows from the plan's ``parallel.inside`` and
        ``train.offload``."""
        if offload != self.offload and not {offload, self.offload} <= MOVABLE:
            return False
        found = {(section.x.device.type, section.room is not None) for section in self.sections.values()}
        return found <= {(device.type, shared)}

    def same_place(self, definition: ModelDefinition, plan: Plan, node: str) -> bool:
        """Whether the plan gives this node exactly the layers and sections that it holds."""
        if node not in plan.nodes:
            return False
        stages = plan.stages_of(node)
        wanted = section_parameters(definition, plan, stages, self._cut)
        ranges = [(model.first, model.last) for model in self.models]
        return ranges == [plan.stages[stage] for stage in stages] and {
            name: section.layout.names for name, section in self.sections.items()
        } == {name: tuple(parameters) for name, parameters in wanted.items()}


def residuals_of(job: Job) -> Residuals:
    """How the job wants residuals to be kept."""
    return Residuals(torch.bfloat16 if job.updates.residual == "bf16" else torch.float32, job.run.seed)


def base_of(states: Sequence[StageState]) -> dict[str, dict[str, Tensor]]:
    """The frozen parameters of these states, as `StateServer` serves them to peers."""
    return {BASE + name: {"": values} for state in reversed(states) for name, values in state.base()}


def section_parameters(
    definition: ModelDefinition, plan: Plan, stages: Sequence[int], cut: int = 1
) -> dict[str, list[str]]:
    """The parameters of each section of a node that holds these stages, each cut into ``cut`` sections."""
    last = len(plan.stages) - 1
    shared = definition.tied_trained if last else None
    sections: dict[str, list[str]] = {}
    for stage in stages:
        names = definition.parameter_names(*plan.stages[stage])
        own = [name for name in names if name != shared]
        if cut == 1:
            sections[section_of(stage)] = own
        else:
            sizes = [math.prod(definition.shapes[name]) for name in own]
            for number, heap in enumerate(even(sizes, cut)):
                sections[section_of(stage, number)] = [own[index] for index in heap]
        if shared and stage in (0, last):
            sections[TIED] = [shared]
    return {name: parameters for name, parameters in sections.items() if parameters}


def layouts_of(definition: ModelDefinition, plan: Plan, stages: Sequence[int], cut: int) -> dict[str, Layout]:
    """The layout of each section of a node that holds these stages; see `section_parameters`."""
    found = section_parameters(definition, plan, stages, cut)
    return {name: Layout.of(name, {one: definition.shapes[one] for one in names}) for name, names in found.items()}


def codec_of(plan: Plan, section: str) -> str | None:
    """The codec that the plan chose for a section's rounds; None: the job's is used. A tied section uses the codec of
    the first of its two stages."""
    return plan.update_codec(stage_of(section))


def round_plan(
    plan: Plan,
    layout: Layout,
    updates: Updates,
    phases: int = 0,
    followed: bool = False,
    closes_after: float = math.inf,
) -> RoundPlan:
    """Members, weights, pattern and parts of a section's rounds in a view.

    The pattern ``auto`` means two levels if the plan has regions, else the result of ``settled_pattern``. ``phases``:
    the number of phases of a codec whose encodings are summed, else 0. With such a codec the pattern is "phases",
    whatever the job says, and parts consist of whole parameters.
    """
    section = layout.section
    members, weights = member_weights(plan, section)
    if phases:
        pattern, units = "phases", list(pairwise(layout.offsets))
    else:
        units = layout.blocks(updates.block)
        pattern = updates.pattern if updates.agreed else "auto"  # modes without agreed rounds: for their plain averages
    regions = [[name for name in members if name in region] for region in plan.regions]
    far = len([region for region in regions if region]) > 1 and max(map(len, regions)) > 1
    if pattern == "auto":
        pattern = "two_level" if far and not updates.robust_average else settled_pattern(pattern, len(members))

    def owner(middle: int, numel: int) -> str:
        if pattern == "all_to_all":
            return members[0]
        if section == TIED:
            return members[middle * len(members) // numel]
        # A stage's sections begin at different members, so that each publishes its part although sections are short.
        turned = numel * (_TURN * piece_of(section) % SECTIONS) // SECTIONS
        return plan.publisher(stage_of(section), (middle + turned) % numel, numel)

    # Each part of a sum in phases has a common scale or basis, and each of a robust average its own factors: these
    # stay as few as there are publishers.
    early = updates.mode == "gradient" and not phases and not updates.robust_average
    publishers = 1 if pattern == "all_to_all" else len(members)
    parts: list[Part] = []
    for fragment in range(updates.fragments):
        # A unit belongs to the fragment whose range contains its middle, and within that to the publisher likewise.
        edges = [layout.numel * turn // updates.fragments for turn in (fragment, fragment + 1)]
        run = [unit for unit in units if edges[0] <= sum(unit) // 2 < edges[1]]
        for number, bucket in enumerate(buckets(run, publishers) if early else [run] if run else []):
            begin, length = bucket[0][0], bucket[-1][1] - bucket[0][0]
            owners = [owner(place_in(unit, number) - begin, length) for unit in bucket]
            for publisher, group in groupby(zip(owners, bucket, strict=True), itemgetter(0)):
                mine = [unit for _, unit in group]
                for phase in range(max(1, phases)):
                    two = pattern == "two_level" and far
                    takers = takers_of(members, regions, publisher, len(parts)) if two else ()
                    parts.append(Part(len(parts), publisher, mine[0][0], mine[-1][1], fragment, phase, takers))
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
        updates.secure,
        followed,
        closes_after,
    )


def member_weights(plan: Plan, section: str) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """(the nodes that share a section, the weight of each)."""
    if section == TIED:
        return (*plan.group(0), *plan.group(len(plan.stages) - 1)), plan.shares * 2
    return plan.group(stage_of(section)), plan.shares


def share_of(plan: Plan, section: str, name: str) -> float:
    """A member's weight in a section, as a fraction: the fractions of all members add up to 1."""
    members, weights = member_weights(plan, section)
    return weights[members.index(name)] / math.fsum(weights)


def takers_of(members: Sequence[str], regions: Sequence[Sequence[str]], publisher: str, turn: int) -> tuple[str, ...]:
    """For each member its taker: in the publisher's region the publisher, elsewhere the region's members in turn.

    A member that is alone in its region sends its contribution to the publisher directly.
    """
    takers = dict.fromkeys(members, publisher)
    for region in regions:
        if len(region) > 1 and publisher not in region:
            takers.update(dict.fromkeys(region, region[turn % len(region)]))
    return tuple(takers[name] for name in members)
