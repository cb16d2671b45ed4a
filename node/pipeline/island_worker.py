"""A hand: one of an island's further processes. It computes its share of every microbatch and decides nothing.

island.py starts it as ``python -m farflung.node.pipeline.island_worker``, with one end of a socket pair. Orders arrive
on the socket, one JSON object each, and every order gets one answer; tensors travel by torch.distributed. The hand ends
when the other end of the socket is closed, for whatever reason.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...job.chosen import inside_of, with_chosen
from ...job.data.facts import Facts
from ...job.schema import Job
from ...scheduler import Plan
from ..device.probe import free_memory, matmul_rate
from ..models.definition import ModelDefinition
from ..models.dropout import Draw
from ..models.factory import model_of
from ..models.stage import Pass
from ..state.optimizers.make_optimizer import make_optimizer
from ..state.optimizers.optimizers import SGD, kept_moments
from ..state.sections.cut import sections_of_a_stage
from ..state.sections.room import Room
from ..state.sections.section import Section
from ..state.stage_state import StageState, layouts_of, residuals_of
from .inside import carry
from .inside.box import Box, Boxes
from .inside.meeting import form_group, remove
from .inside.rank_rounds import RankRounds
from .inside.rank_sections import RankSections
from .inside.words import Words, described, hear, kind_of, receive, say

if TYPE_CHECKING:
    from .sharding import ShardedStages

ALONE_SECONDS = 15.0
"""Seconds after which a rank ends whose part of a common pass failed, unless the first process sends an order."""
COLLECTIVE = frozenset({"group", "place", "base", "share", "forward", "backward", "sum"})
"""The orders in which ranks wait for one another; what a rank does for rounds (``encode`` and others) is its alone."""


class Hand:
    """Rank ``rank`` of ``ranks``. ``place``: the file by which the ranks find each other."""

    def __init__(self, device: torch.device, rank: int, ranks: int, place: str) -> None:
        self.device, self.rank, self.ranks, self.place = device, rank, ranks, place
        self._state: StageState | None = None
        self._shards: ShardedStages | None = None
        """Replaces the state if the job has ``parallel.inside``."""
        self._passes: dict[int, Pass] = {}

    def obey(self, words: Words) -> tuple[Words, Tensor | None]:
        """Carry out an order. Returns the answer, and a tensor to send after it (None: no tensor)."""
        orders: Mapping[str, Callable[[Words], tuple[Words, Tensor | None]]] = {
            "measure": self._measure,
            "group": self._group,
            "model": self._model,
            "place": self._place,
            "base": self._base,
            "share": self._share,
            "rounds": self._rounds,
            "encode": self._encode,
            "moves": self._moves,
            "put": self._put,
            "apply": self._apply,
            "contents": self._contents,
            "advance": lambda words: (self._of_rounds.advance(words), None),
            "decide": lambda words: (self._of_rounds.decide(words), None),
            "check": lambda words: (self._of_rounds.check(words), None),
            "square": lambda words: (self._of_rounds.square(words), None),
            "applied": self._applied,
            "prepare": self._prepare,
            "unscale": self._unscale,
            "alone": self._alone,
            "squares": self._squares,
            "step": self._step,
            "forward": self._forward,
            "backward": self._backward,
            "sum": self._sum,
            "void": self._void,
        }
        return orders[words["do"]](words)

    def _measure(self, words: Words) -> tuple[Words, None]:
        return {"tflops": matmul_rate(self.device, words["precision"]), "memory": free_memory(self.device)}, None

    def _group(self, words: Words) -> tuple[Words, None]:
        self._meshes = form_group(self.device, self.rank, self.ranks, self.place)
        return {}, None

    def _model(self, words: Words) -> tuple[Words, None]:
        """Take the job and make the model. Weights come from the first process, so only a folder's config is read."""
        job, facts = Job.model_validate_json(words["job"]), Facts.model_validate_json(words["facts"])
        config = words["config"].encode()
        self._definition: ModelDefinition = model_of(job, facts, lambda *_: config, words["allow_code"])
        # With "ddp" only x and its gradient are here: the first process has the reference and the moments, and takes
        # part in rounds.
        plain = job.updates.model_copy(update={"mode": "gradient", "outer": "average"})
        self._job, self._whole, self._allow_code = job.model_copy(update={"updates": plain}), job, words["allow_code"]
        return {}, None

    def _place(self, words: Words) -> tuple[Words, None]:
        torch.set_num_threads(words["threads"])
        plan, name = Plan.from_json(words["plan"]), words["name"]
        self._passes.clear()
        job = with_chosen(self._job, plan.chosen)
        if inside_of(job, plan.chosen) != "ddp":
            self._shards = self._state = None  # before the next take its memory
            from .sharding import ShardedStages

            self._shards = ShardedStages(self._definition, job, plan, name, self._meshes)
            if words["rooms"]:
                self._kept = self._sections(plan, name, words)
            return {"bytes": self._shards.bytes_held, "kept": self._kept.bytes_kept}, None
        self._shards = None
        # Where the first process has its weights in main memory, x and its gradient are there at each rank too.
        keeps_on, computes_on = (torch.device("cpu"), self.device) if words["apart"] else (self.device, None)
        state = self._state
        if (
            state is None
            or not state.same_place(self._definition, plan, name)
            or not state.is_on(keeps_on, False, job.train.offload_kind)
            or state.computes_on != computes_on
        ):
            state = self._state = None  # before the next takes its memory
            self._state = StageState(
                self._definition, job, plan, name, SGD(0.0, 0.0), keeps_on, computes_on=computes_on
            )
        self._held.obey(plan)
        return {}, None

    def _sections(self, plan: Plan, name: str, words: Words) -> RankSections:
        """The node's sections, in the rooms that the first process shares."""
        job, optimizer = self._whole, make_optimizer(self._whole, self._allow_code)
        kept, momentum = kept_moments(job, optimizer), bool(job.updates.outer_optimizer.momentum)
        *rooms, sent, told = zip(words["rooms"], words["files"], strict=True)
        self._boxes = Boxes(Box(*sent), Box(*told))
        gradient, cpu = job.updates.mode == "gradient", torch.device("cpu")
        layouts = layouts_of(self._definition, plan, plan.stages_of(name), sections_of_a_stage(job)).values()
        sections = [
            Section(layout, gradient, kept, cpu, momentum, Room(*room), residuals=residuals_of(job))
            for layout, room in zip(layouts, rooms, strict=True)
        ]
        return RankSections(sections, optimizer, self.rank, self.ranks)

    def _rounds(self, words: Words) -> tuple[Words, None]:
        """A view's rounds: from now on ``encode`` and ``apply`` are of these."""
        self._of_rounds = RankRounds(self._kept, self._boxes, words)
        return {}, None

    def _encode(self, words: Words) -> tuple[Words, None]:
        return self._of_rounds.encode(words), None

    def _moves(self, words: Words) -> tuple[Words, None]:
        self._of_rounds.moves(words["name"], words["offered"])
        return {}, None

    def _applied(self, words: Words) -> tuple[Words, None]:
        self._of_rounds.applied(words["name"])
        return {}, None

    def _put(self, words: Words) -> tuple[Words, None]:
        self._of_rounds.put(words)
        return {}, None

    def _contents(self, words: Words) -> tuple[Words, None]:
        return self._of_rounds.contents(words["rounds"], words["block"]), None

    def _alone(self, words: Words) -> tuple[Words, None]:
        self._of_rounds.apply_alone(words["numbers"])
        return {}, None

    def _apply(self, words: Words) -> tuple[Words, None]:
        self._of_rounds.apply(words)
        return {}, None

    def _squares(self, words: Words) -> tuple[Words, None]:
        return {"squares": self._kept.squares(words["names"], words["alone"])}, None

    def _prepare(self, words: Words) -> tuple[Words, None]:
        self._kept.prepare(words["count"], words["shares"])
        return {}, None

    def _unscale(self, words: Words) -> tuple[Words, None]:
        self._kept.unscale(words["factor"])
        return {}, None

    def _step(self, words: Words) -> tuple[Words, None]:
        self._kept.step(words["count"], words["rate"], words["factor"])
        return {}, None

    def _base(self, words: Words) -> tuple[Words, None]:
        """Take the frozen weights of the first process."""
        for _, values in self._held.frozen():
            carry.broadcast(values.detach())
        return {}, None

    def _share(self, words: Words) -> tuple[Words, None]:
        """Take the weights of the first process, bit for bit, and drop all passes."""
        self._passes.clear()
        if self._shards is not None:
            self._shards.take(self._kept.all, words["reference"])
            return {}, None
        for section in self._held.sections.values():
            carry.broadcast(section.x)
        self._held.fresh()
        self._held.gradients.begin()
        return {}, None

    def _forward(self, words: Words) -> tuple[Words, Tensor | None]:
        inputs, *targets = (receive(one, self.device) for one in words["tensors"])
        places = targets.pop() if words["places"] else None
        model = (self._shards or self._held).models[words["stage"]]
        model.train(words["train"])
        if (draw := words["draw"]) is not None:
            model.draw = Draw(draw["seed"], draw["step"], tuple(draw["samples"]))
        with torch.set_grad_enabled(words["train"]), autocast(self._job.train.precision, self.device):
            made = Pass(model, inputs, targets[0] if targets else inputs, places)
        if words["train"]:
            self._passes[words["number"]] = made
        if words["silent"]:
            return {}, None
        output = made.output.detach().contiguous()
        return {"tensor": described(output), "correct": int(made.correct)}, output

    def _backward(self, words: Words) -> tuple[Words, Tensor | None]:
        gradient = self._passes.pop(words["number"]).backward(receive(words["tensors"][0], self.device), words["scale"])
        if gradient is None or words["silent"]:
            return {}, None
        gradient = gradient.contiguous()
        return {"tensor": described(gradient)}, gradient

    def _sum(self, words: Words) -> tuple[Words, None]:
        if self._shards is not None:
            self._shards.put(self._kept.all)
            return {}, None
        self._held.gradients.end()
        for section in self._held.sections.values():
            carry.reduce(section.grad)
        return {}, None

    def _void(self, words: Words) -> tuple[Words, None]:
        """All ranks have failed in the same pass: drop all passes."""
        self._passes.clear()
        return {}, None

    @property
    def is_sharded(self) -> bool:
        """Whether all ranks must join every pass."""
        return self._shards is not None

    @property
    def _held(self) -> StageState:
        assert self._state is not None
        return self._state


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context in which the model's forward pass runs."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.float16 if precision == "fp16" else torch.bfloat16)


def serve(connection: Connection, hand: Hand) -> None:
    """Carry out orders until the process ends."""
    orders: queue.Queue[Words] = queue.Queue()

    def listen() -> None:
        """Runs in a thread: the main thread may hang in a collective when the first process dies."""
        try:
            while True:
                orders.put(hear(connection))
        except (EOFError, OSError):
            remove(hand.place)  # in case the first process did not
            os._exit(0)

    threading.Thread(target=listen, name="orders", daemon=True).start()
    patience: threading.Timer | None = None
    while True:
        tensor = None
        words = orders.get()
        if patience is not None:
            patience.cancel()
        try:
            answer, tensor = hand.obey(words)
        except Exception as problem:  # the first process decides what follows
            answer = {"error": f"{type(problem).__name__}: {problem}", "kind": kind_of(problem)}
            # Others may wait for this rank in a collective: only its end wakes them.
            if hand.is_sharded and words["do"] in COLLECTIVE:
                patience = threading.Timer(ALONE_SECONDS, _end_alone, (answer["error"],))
                patience.daemon = True
                patience.start()
        say(connection, answer)
        if tensor is not None:
            carry.send(tensor, 0)


def _end_alone(why: str) -> None:
    """End this process: its part of a pass failed, and the first process has sent no order since."""
    sys.stderr.write(f"a process of this node's island ends, because its part of a pass failed: {why}\n")
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    # Only the first process handles a signal to the group: it says goodbye, and this process ends when it does.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    pipe, device, rank, ranks, place = sys.argv[1:]
    serve(Connection(int(pipe)), Hand(torch.device(device), int(rank), int(ranks), place))


if __name__ == "__main__":
    main()
