"""What a node trains with, independent of the view: its optimiser, data, devices, and files on its disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ...job.chosen import inside_of
from ...job.data.facts import Facts
from ...job.schema import Job
from ...scheduler import Plan
from ...scheduler.workloads.offload import APART
from ..context import NodeContext
from ..data.dataset import Dataset, tokens_size
from ..device.limits import Owner
from ..device.memory import available_memory
from ..device.tracing import Tracing
from ..pipeline.activations import AqsgdEnds
from ..pipeline.island import Island
from ..state.files.rests import Rests
from ..state.optimizers.optimizers import Optimizer
from .external.external_loop import OwnLoop
from .waiting import Waiting

IDLE_UPDATES = 5
"""So many updates of norm zero in a row are a fault of the node, not chance."""


class IdleUpdates:
    """Counts a node's updates of norm zero, and warns once."""

    def __init__(self) -> None:
        self._count, self._told = 0, False

    def offered(self, context: NodeContext, norm: float, learns: bool) -> None:
        """Count an update by its norm. ``learns``: whether it has any parameters at all."""
        self._count = self._count + 1 if learns and not norm else 0
        if self._count == IDLE_UPDATES and not self._told:
            self._told = True
            why = "do its samples give a gradient, and is the learning rate above 0?"
            zero = f"its last {IDLE_UPDATES} updates had norm zero, so the run learns nothing from it: {why}"
            context.warn(context.name, zero)


@dataclass(frozen=True)
class Resources:
    """The resources of one node. Only ``ends`` is replaced, when the job's codec of activations changes."""

    optimizer: Optimizer
    data: Callable[[], Dataset]
    """Returns the samples; fetches them when a stage first needs them (stages in the middle never do)."""
    owner: Owner
    waiting: Waiting
    tracing: Tracing
    ends: AqsgdEnds
    """The AQ-SGD state of this node's ends of links."""
    island: Island | None = None
    """Set if the node has several devices; the context's device is the first of them."""
    own: OwnLoop | None = None
    """A user's training loop, which computes the steps and has an optimiser of its own (farflung.group)."""
    rests: Rests | None = None
    """The rests that this node keeps beside checkpoints; None: it keeps none."""
    idle: IdleUpdates = field(default_factory=IdleUpdates)

    def keeps_on(self, context: NodeContext, plan: Plan) -> torch.device:
        """The device of a node's sections: the CPU if an island's devices hold pieces of the parameters, or if the
        optimiser's step is made in main memory."""
        apart = self.in_pieces(context, plan) or self.computes_on(context) is not None
        return torch.device("cpu") if apart else context.device

    def computes_on(self, context: NodeContext) -> torch.device | None:
        """The device of a node's models if its sections lie in main memory beside it; None: they lie together."""
        apart = context.job.train.offload_kind in APART and context.device.type != "cpu"
        return context.device if apart else None

    def in_pieces(self, context: NodeContext, plan: Plan) -> bool:
        """Whether an island's devices hold pieces of the parameters, and its ranks the sections."""
        return self.island is not None and inside_of(context.job, plan.chosen) != "ddp"

    @property
    def ranks(self) -> Island | None:
        """The island whose ranks hold the sections of this node's place; None: this process alone does."""
        return self.island if self.island is not None and self.island.shards is not None else None

    def memory_left(self) -> int:
        """Bytes of main memory that this node may still take."""
        return memory_left(self.owner)


def memory_left(owner: Owner) -> int:
    """Bytes of main memory that a node of this owner may still take."""
    available, limit = available_memory(), owner.limits.memory
    return min(available, limit) if limit else available


def aqsgd_ends(job: Job, facts: Facts, owner: Owner) -> AqsgdEnds:
    """The AQ-SGD ends of a node, with the memory and disk (beside the run's tokens) that they may use."""
    disk, limit = int(job.activations.disk_gb * 1e9), owner.limits.disk
    if limit:
        disk = min(disk, max(0, limit - tokens_size(facts)))
    return AqsgdEnds(job.activations.forward, memory_left(owner) // 4, disk)
