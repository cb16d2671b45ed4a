"""What a node trains with, whatever the view: its optimiser, data, devices, and what it keeps on its disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ...job.data.facts import Facts
from ...job.schema import Job
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
"""Updates of norm zero in a row that are a fault of the node's, not chance."""


class IdleUpdates:
    """Counts a node's updates of norm zero, and warns once."""

    def __init__(self) -> None:
        self._count, self._told = 0, False

    def offered(self, context: NodeContext, norm: float, learns: bool) -> None:
        """An update has this norm. ``learns``: it is of any parameters at all."""
        self._count = self._count + 1 if learns and not norm else 0
        if self._count == IDLE_UPDATES and not self._told:
            self._told = True
            why = "do its samples give a gradient, and is the learning rate above 0?"
            zero = f"its last {IDLE_UPDATES} updates had norm zero, so the run learns nothing from it: {why}"
            context.warn(context.name, zero)


@dataclass(frozen=True)
class Resources:
    """One node's. Only ``ends`` is another one when the job's codec of activations changes."""

    optimizer: Optimizer
    data: Callable[[], Dataset]
    """The samples; fetched when a stage first needs them, which stages in the middle never do."""
    owner: Owner
    waiting: Waiting
    tracing: Tracing
    ends: AqsgdEnds
    """What AQ-SGD keeps of this node's ends of links."""
    island: Island | None = None
    """Where the node has several devices; the context's device is the first of them."""
    own: OwnLoop | None = None
    """A person's training loop, which computes the steps and has an optimiser of its own (farflung.group)."""
    rests: Rests | None = None
    """Where what is learnt beside checkpoints is kept; None: nowhere."""
    idle: IdleUpdates = field(default_factory=IdleUpdates)

    def keeps_on(self, context: NodeContext) -> torch.device:
        """Where a node's sections lie: in main memory where the devices hold pieces for their passes alone."""
        in_pieces = self.island is not None and context.job.parallel.inside != "ddp"
        return torch.device("cpu") if in_pieces else context.device

    def memory_left(self) -> int:
        """Bytes of main memory that this node may still take."""
        return memory_left(self.owner)


def memory_left(owner: Owner) -> int:
    """Bytes of main memory that a node of this owner may still take."""
    available, limit = available_memory(), owner.limits.memory
    return min(available, limit) if limit else available


def aqsgd_ends(job: Job, facts: Facts, owner: Owner) -> AqsgdEnds:
    """What AQ-SGD may keep, in memory and on the disk beside the run's tokens."""
    disk, limit = int(job.activations.disk_gb * 1e9), owner.limits.disk
    if limit:
        disk = min(disk, max(0, limit - tokens_size(facts)))
    return AqsgdEnds(job.activations.forward, memory_left(owner) // 4, disk)
