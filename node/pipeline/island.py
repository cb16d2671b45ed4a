"""An island: several devices of one machine that are one node. Its processes communicate by torch.distributed.

The node's own trainer is its first process; a *hand* (island_worker.py) drives each other device. A microbatch is split
over them by samples. Every process has the node's stages, or with ``parallel.inside`` its pieces of their parameters
(sharding.py). The first process sends the weights before they are used, and receives the sums of the gradients. Rounds,
optimiser and checkpoints are then those of a node with one device, and other nodes see no difference.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from ...job.chosen import inside_of, with_chosen
from ...job.data.facts import Facts
from ...job.schema import Job
from ...proto.control_pb2 import Device
from ...proto.errors import FarflungError, RunFailed
from ...scheduler import Plan
from ..device.memory import available_memory
from ..device.probe import find_device, measure_device, usable_cores
from ..models.definition import ModelDefinition
from ..models.factory import model_of
from ..models.weights.fetch import Fetch
from ..models.weights.pretrained import CONFIG, PREFIX
from ..state.optimizers.make_optimizer import make_optimizer
from ..state.sections.room import Room
from ..state.sections.section import Section
from .inside import carry
from .inside.box import Box, Boxes
from .inside.hands import Hands
from .inside.meeting import devices_of, form_group
from .inside.rank_sections import RankSections
from .inside.words import say
from .island_worker import ALONE_SECONDS

if TYPE_CHECKING:
    from .sharding import ShardedStages


class Island(Hands):
    """The processes of a node, started at once and ended by ``close``; a context manager.

    Every call may raise RunFailed when a hand has ended: the node then ends too.

    Raises:
        FarflungError: there are not as many devices of that kind here.
    """

    def __init__(self, wish: str, ranks: int) -> None:
        super().__init__(devices_of(find_device(wish), ranks))
        self._passes = 0
        self.rows = ranks
        """Over so many groups of ranks the samples are divided; the ranks of one compute the same ones."""
        self.shards: ShardedStages | None = None
        """The first process's pieces; None if every process has the whole stages."""
        self.spoiled = False
        """A pass has failed before its end: some layers may be gathered, and gradients summed in part."""
        self.bytes_held: list[int] = []
        """Bytes of each rank's pieces of the parameters."""
        self.bytes_kept: list[int] = []
        """Bytes of the sections' vectors that each rank keeps."""
        self.kept: RankSections
        """The sections that the first process keeps, if the parameters are in pieces."""
        self.boxes: dict[int, Boxes] = {}
        """The boxes between the first process and each hand, if the parameters are in pieces."""
        self._renew: Callable[[], None] = lambda: None
        """Makes new pieces after a pass that failed."""
        # The processes connect over the loopback interface, which no other machine reaches.
        loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
        threads = {}
        if self.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, usable_cores() // ranks))
            threads["OMP_NUM_THREADS"] = str(torch.get_num_threads())
        for rank in range(1, ranks):
            self._start(rank, {**os.environ, **threads})

    # ---- the parts of a node's life --------------------------------------------------------

    def measure(self, precision: str = "fp32") -> Device:
        """The island as one device: the sum of its devices' rates, measured at the same time, and the memory of one of
        them, because each holds the node's stages. Waits until all hands have started."""
        self._tell("measure", precision=precision)
        device = measure_device(str(self.device), precision)
        found = self._answers()
        self._tell("group")
        with self._together():
            self._meshes = form_group(self.device, 0, self.ranks, self._place)
        self._answers()
        device.tflops += sum(one["tflops"] for one in found)
        device.memory_bytes = min(device.memory_bytes, *(one["memory"] for one in found))
        if self.device.type == "cpu":
            device.memory_bytes //= self.ranks
        device.devices, device.main_bytes = self.ranks, available_memory()
        device.description = f"island of {self.ranks}: {device.description}"
        return device

    def take_up(self, job: Job, facts: Facts, fetch: Fetch, allow_code: Sequence[str]) -> None:
        """Tell the hands the job and the model. FarflungError: the model cannot train on an island."""
        if job.model.subspace is not None:
            raise FarflungError(
                "model.subspace does not run on several devices of one node yet",
                hint="join with each device as a node of its own: --device cuda:0, --device cuda:1, ...",
            )
        self._definition, self.rows = None, self.ranks
        if job.parallel.inside != "ddp":
            self._definition = model_of(job, facts, fetch, allow_code)
        if job.parallel.inside not in ("ddp", "auto"):
            assert self._definition is not None
            from .sharding import check_inside  # torch.distributed.tensor takes a second to load

            self.rows = check_inside(self._definition, job.parallel.inside, self.ranks, self.device.type).rows
        self.shards = None
        self._job, self._allow_code = job, allow_code
        config = fetch(PREFIX + CONFIG).decode() if job.model.pretrained is not None else ""
        words = {"job": job.model_dump_json(), "facts": facts.model_dump_json(), "config": config}
        self.tell("model", **words, allow_code=list(allow_code))

    def place(
        self,
        plan: Plan,
        name: str,
        frozen: Sequence[Tensor] = (),
        sections: Sequence[Section] = (),
        *,
        apart: bool = False,
    ) -> None:
        """Build the stages that the plan gives the node ``name`` on all hands, with these ``frozen`` weights.
        ``sections``: those of the node, in shared memory, if the ranks hold pieces of the parameters. ``apart``: what
        the step changes lies in main memory beside the devices, here and so at the hands."""
        job = with_chosen(self._job, plan.chosen)
        if self._definition is not None and inside_of(job, plan.chosen) != "ddp":
            self._place_shards(self._definition, job, plan, name, sections)
            self._renew = partial(self._place_shards, self._definition, job, plan, name, ())
            return
        self.shards = None
        self._tell_place(plan, name, apart=apart)
        self._answers()
        if frozen:
            self._tell("base")
            with self._together():
                for values in frozen:
                    carry.broadcast(values.detach())
            self._answers()

    def _tell_place(self, plan: Plan, name: str, rooms: Sequence[Room] = (), *, apart: bool = False) -> None:
        """``rooms``: of the node's sections, if they are others than before."""
        told = {"plan": plan.to_json(), "name": name, "threads": torch.get_num_threads(), "apart": apart}
        for hand in self._hands:
            self._settle(hand.rank)
            if rooms:
                # No message needs more than all memory, and pages that nobody writes take none.
                size = self.boxes[hand.rank].sent.size if hand.rank in self.boxes else available_memory()
                self.boxes[hand.rank] = Boxes(Box(size), Box(size))
            shared = [*rooms, *(self.boxes[hand.rank] if rooms else ())]
            with self._together():
                words = {"do": "place", "tensors": [], "rooms": [one.size for one in shared], **told}
                say(hand.connection, words, [one.file for one in shared])

    def _place_shards(
        self, definition: ModelDefinition, job: Job, plan: Plan, name: str, sections: Sequence[Section]
    ) -> None:
        self._tell_place(plan, name, [section.room for section in sections if section.room is not None])
        self.shards, self.spoiled = None, False  # before the next take its memory
        try:
            from .sharding import ShardedStages

            self.shards = ShardedStages(definition, job, plan, name, self._meshes)
            if sections:
                optimizer = make_optimizer(self._job, self._allow_code)
                self.kept = RankSections(sections, optimizer, 0, self.ranks)
        finally:
            answers = self._answers()
        self.bytes_held = [self.shards.bytes_held, *(answer["bytes"] for answer in answers)]
        self.bytes_kept = [self.kept.bytes_kept, *(answer["kept"] for answer in answers)]

    def share(self, sections: Iterable[Section], reference: bool = False) -> None:
        """Call it before a step or an evaluation: the hands compute with these sections' x, or with their g
        (``reference``). Their gradients are reset."""
        if self.shards is not None and self.spoiled:
            self._renew()
        self._tell("share", reference=reference)
        with self._together():
            if self.shards is not None:
                self.shards.take(self.kept.all, reference)
                sections = ()
            for section in sections:
                carry.broadcast(section.g if reference else section.x)
        self._answers()

    def sum(self, sections: Iterable[Section]) -> None:
        """Call it after the last backward pass: add the hands' gradients to those of ``sections``. If the parameters
        are in pieces, each rank overwrites its part with the sums over all ranks."""
        self._tell("sum")
        with self._together():
            if self.shards is not None:
                self.shards.put(self.kept.all)
                sections = ()
            for section in sections:
                carry.reduce(section.grad)
        self._answers()

    def prepare(self, count: int, shares: Mapping[str, float]) -> None:
        """Gradient mode: each rank makes of the gradients that it keeps what the group sums; see `Optimizer.offer`."""
        self._tell("prepare", count=count, shares=dict(shares))
        try:
            self.kept.prepare(count, shares)
        finally:
            self._answers()

    def unscale(self, factor: float) -> None:
        """Each rank multiplies the gradients that it keeps by ``factor``."""
        self._tell("unscale", factor=factor)
        try:
            self.kept.unscale(factor)
        finally:
            self._answers()

    def squares(self, names: Collection[str], alone: Collection[str] = ()) -> dict[str, float]:
        """As `squares_of`; each rank computes those of the sections that it keeps."""
        self._tell("squares", names=list(names), alone=list(alone))
        found: dict[str, float] = {}
        try:
            found |= self.kept.squares(names, alone)
        finally:
            answers = self._answers()
        for answer in answers:
            found |= answer["squares"]
        return {name: found[name] for name in names}

    def step(self, count: int, rate: float, factor: float) -> None:
        """Each rank takes an optimiser step in the sections that it keeps; see `step_all`."""
        self._tell("step", count=count, rate=rate, factor=factor)
        try:
            self.kept.step(count, rate, factor)
        finally:
            self._answers()

    def hurry(self, ranks: Iterable[int], problem: Exception) -> None:
        """A pass of all ranks has failed on the first. RunFailed unless it soon fails on ``ranks`` too, because a rank
        that waits in a collective for the first cannot be recovered."""
        for rank in ranks:
            if not self._hands[rank - 1].connection.poll(ALONE_SECONDS):
                raise RunFailed(
                    f"a pass failed on one device of this node's island alone: {problem}",
                    "is one of them short of memory? `farflung join` again",
                ) from problem

    def void(self) -> None:
        """A pass of all ranks has failed on all of them: drop all passes; new pieces are made before the next step."""
        self.spoiled = True
        self.tell("void")

    def close(self) -> None:
        """End the hands. May be called again."""
        if self._end() and dist.is_initialized():
            dist.destroy_process_group()

    def __enter__(self) -> Island:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
