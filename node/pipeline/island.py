"""An island: several devices of one machine that are one node. Its processes communicate by torch.distributed.

The node's own trainer is its first process; a *hand* (island_worker.py) drives each other device. A microbatch is split
over them by samples. Every process has the node's stages, or with ``parallel.inside`` its pieces of their parameters
(sharding.py). The first process sends the weights before they are used, and receives the sums of the gradients. Rounds,
optimiser and checkpoints are then those of a node with one device, and other nodes see no difference.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...job.chosen import inside_of, with_chosen
from ...job.data.facts import Facts
from ...job.schema import Job
from ...proto.control_pb2 import Device
from ...proto.errors import FarflungError, RunFailed
from ...proto.process import python
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
from .inside.rank_sections import RankSections
from .island_worker import (
    ALONE_SECONDS,
    BACKEND,
    ERRORS,
    Words,
    described,
    form_group,
    hear,
    meeting_place,
    receive,
    remove,
    say,
)

if TYPE_CHECKING:
    from .sharding import ShardedStages

log = logging.getLogger("farflung.island")

GRACE_SECONDS = 20.0
"""Seconds from a hand's end to the end of the node's process, unless the trainer notices earlier: it may hang in a
collective that has lost a member."""


@dataclass
class _Hand:
    """The first process's record of a hand."""

    rank: int
    device: torch.device
    process: subprocess.Popen[bytes]
    connection: Connection


class Island:
    """The processes of a node, started at once and ended by ``close``; a context manager.

    Every call may raise RunFailed when a hand has ended: the node then ends too.

    Raises:
        FarflungError: there are not as many devices of that kind here.
    """

    def __init__(self, wish: str, ranks: int) -> None:
        self.devices = devices_of(find_device(wish), ranks)
        self.ranks = ranks
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._lost = ""
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
        self._asked: set[int] = set()
        self._kept_answers: dict[int, Words] = {}
        self._renew: Callable[[], None] = lambda: None
        """Makes new pieces after a pass that failed."""
        self._place, self._file = meeting_place()
        """The path and the descriptor of the file by which the ranks find each other."""
        self._hands: list[_Hand] = []
        # The processes connect over the loopback interface, which no other machine reaches.
        loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
        threads = {}
        if self.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, usable_cores() // ranks))
            threads["OMP_NUM_THREADS"] = str(torch.get_num_threads())
        for rank in range(1, ranks):
            self._start(rank, {**os.environ, **threads})

    @property
    def device(self) -> torch.device:
        """The first process's device."""
        return self.devices[0]

    def _start(self, rank: int, environment: dict[str, str]) -> None:
        ours, theirs = Pipe()
        words = [theirs.fileno(), self.devices[rank], rank, self.ranks, self._place]
        # A session of its own: the terminal's Ctrl-C reaches only the first process.
        process = subprocess.Popen(
            python.module("farflung.node.pipeline.island_worker", *map(str, words)),
            pass_fds=[theirs.fileno(), self._file],
            stdin=subprocess.DEVNULL,
            stdout=2,  # stdout is for events; output of imported modules goes to stderr
            env=environment,
            start_new_session=True,
        )
        theirs.close()
        hand = _Hand(rank, self.devices[rank], process, ours)
        self._hands.append(hand)
        threading.Thread(target=self._watch, args=(hand,), name=f"hand-{rank}", daemon=True).start()

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
        if job.train.offload_kind in ("optimizer", "parameters"):
            raise FarflungError(
                f'train.offload = "{job.train.offload_kind}" does not run on several devices of one node',
                "join with each device as a node of its own (--device cuda:0, --device cuda:1, ...), or train with "
                'offload = "moments"',
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

    def place(self, plan: Plan, name: str, frozen: Sequence[Tensor] = (), sections: Sequence[Section] = ()) -> None:
        """Build the stages that the plan gives the node ``name`` on all hands, with these ``frozen`` weights.
        ``sections``: those of the node, in shared memory, if the ranks hold pieces of the parameters."""
        job = with_chosen(self._job, plan.chosen)
        if self._definition is not None and inside_of(job, plan.chosen) != "ddp":
            self._place_shards(self._definition, job, plan, name, sections)
            self._renew = partial(self._place_shards, self._definition, job, plan, name, ())
            return
        self.shards = None
        self._tell_place(plan, name)
        self._answers()
        if frozen:
            self._tell("base")
            with self._together():
                for values in frozen:
                    carry.broadcast(values.detach())
            self._answers()

    def _tell_place(self, plan: Plan, name: str, rooms: Sequence[Room] = ()) -> None:
        """``rooms``: of the node's sections, if they are others than before."""
        told = {"plan": plan.to_json(), "name": name, "threads": torch.get_num_threads()}
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

    def check(self) -> None:
        """RunFailed when a hand has ended."""
        if self._lost:
            raise self._failed()

    def close(self) -> None:
        """End the hands. May be called again."""
        if self._closing.is_set():
            return
        self._closing.set()
        for hand in self._hands:
            hand.connection.close()
        for hand in self._hands:
            try:
                hand.process.wait(5.0)
            except subprocess.TimeoutExpired:
                hand.process.kill()
                hand.process.wait()
        remove(self._place)  # its descriptor stays open, see `meeting_place`
        if dist.is_initialized():
            dist.destroy_process_group()

    def __enter__(self) -> Island:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- orders and answers ----------------------------------------------------------------

    def _tell(self, do: str, **words: Any) -> None:
        for hand in self._hands:
            self.order(hand.rank, do, **words)

    def _answers(self) -> list[Words]:
        return self.answers(range(1, self.ranks))

    def tell(self, do: str, **words: Any) -> None:
        """Send all hands an order, and wait until they have obeyed."""
        self._tell(do, **words)
        self._answers()

    def ask(self, rank: int, do: str, **words: Any) -> None:
        """Send a hand an order whose answer is read by ``answer_of``."""
        self.order(rank, do, **words)
        self._asked.add(rank)

    def answer_of(self, rank: int) -> Words:
        """The answer to the last ``ask``. Raises what `answers` does."""
        return self.answers_of([rank])[rank]

    def answers_of(self, ranks: Iterable[int]) -> dict[int, Words]:
        """The answer of each of these ranks to its last ``ask``. When all have answered, raises what `answers` does."""
        ranks = list(ranks)
        for rank in ranks:
            self._settle(rank)
        found = {rank: self._kept_answers.pop(rank) for rank in ranks}
        self._complain(found.values())
        return found

    def _settle(self, rank: int) -> None:
        """Before another order: read an answer that is still to come."""
        if rank in self._asked:
            self._asked.discard(rank)
            (self._kept_answers[rank],) = self._hear([rank])

    def order(self, rank: int, do: str, *tensors: Tensor, **words: Any) -> None:
        """Send a hand an order and its tensors."""
        self._settle(rank)
        with self._together():
            say(self._hands[rank - 1].connection, {"do": do, "tensors": [described(one) for one in tensors], **words})
            for one in tensors:
                carry.send(one, rank)

    def answers(self, ranks: Iterable[int]) -> list[Words]:
        """The answers of the hands ``ranks``; an answer's tensor is its ``value``.

        Raises:
            RuntimeError: some of them failed; OutOfMemoryError if a device's memory was too small, CodecError if what
                it was to encode was not finite.
        """
        found = self._hear(ranks)
        self._complain(found)
        return found

    def _hear(self, ranks: Iterable[int]) -> list[Words]:
        found = []
        with self._together():
            for rank in ranks:
                words = hear(self._hands[rank - 1].connection)
                if "tensor" in words:
                    words["value"] = receive(words["tensor"], self.device, rank)
                found.append({"rank": rank, **words})
        return found

    def _complain(self, answers: Iterable[Words]) -> None:
        """Raise the errors in ``answers``, all in one: of the first kind in `ERRORS` that is among them."""
        failed = [words for words in answers if "error" in words]
        for kind, raised in ERRORS.items():
            if any(words["kind"] == kind for words in failed):
                said = (f"on {self.devices[one['rank']]} of the island: {one['error']}" for one in failed)
                raise raised("; ".join(said))

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Turn errors of communication in this context into RunFailed: a hand has ended."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except (OSError, EOFError, RuntimeError) as problem:
            self._ended.wait(GRACE_SECONDS / 4)  # a connection ends before the process that held it
            raise self._failed(f"a process of this node's island does not answer: {problem}") from problem

    def _failed(self, otherwise: str = "") -> RunFailed:
        return RunFailed(self._lost or otherwise, "see its last lines above; `farflung join` again")

    def _watch(self, hand: _Hand) -> None:
        status = hand.process.wait()
        if self._closing.is_set():
            return
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
        self._lost = f"process {hand.rank} of this node's island ({hand.device}) {how}, so the node ends"
        self._ended.set()
        if not self._closing.wait(GRACE_SECONDS):
            log.critical(self._lost)
            remove(self._place)
            os._exit(RunFailed.status)


def devices_of(first: torch.device, count: int) -> list[torch.device]:
    """The devices of an island: the CPU ``count`` times, or ``count`` CUDA devices from ``first`` on; with gloo, which
    NCCL would refuse, one CUDA device ``count`` times."""
    if first.type == "cpu" or os.environ.get(BACKEND) == "gloo":
        return [first] * count
    if first.type != "cuda":
        raise FarflungError(f"an island of {first.type} devices is not possible", "use --device cuda:N or cpu")
    there, last = torch.cuda.device_count(), first.index + count - 1
    if last >= there:
        raise FarflungError(
            f"an island of {count} from {first} on needs cuda:{last}, and torch sees {there} CUDA devices here",
            f"use --island {there - first.index}" if there > first.index + 1 else "leave --island out",
        )
    return [torch.device("cuda", first.index + number) for number in range(count)]


def shared_card(devices: Sequence[torch.device]) -> str:
    """What the person at the node is told if all of an island's processes have one card; else empty."""
    if devices[0].type == "cpu" or len(set(devices)) > 1:
        return ""
    why = f"all {len(devices)} processes of this node's island compute on {devices[0]}, because {BACKEND} is gloo"
    return f"{why}: unset it, and each has a card of its own"
