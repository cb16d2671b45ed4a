"""A node's part in its pipeline: it computes in the schedule's order and exchanges activations with its neighbours.

A send returns at once (the I/O process carries the message); a receive waits for the message of one step, microbatch
and stage, in whatever order messages arrive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...compress import CodecError
from ...compress.blobs.pieces import onto
from ...proto import data_pb2
from ...proto.messages import bodies
from ...proto.words.loss_scale import is_scale
from ...scheduler import Action, Order
from ..context import NodeContext
from ..device.out_of_memory import is_out_of_memory
from ..models.compiled import not_compiled
from ..models.dropout import Draw
from ..models.stage import Pass
from ..rounds.protocol.messages import Contribution
from ..state.loss_scale import LossScale
from .activations import MOST_ELEMENTS, Incoming
from .chunk import Chunk, ScheduleSlot
from .island_worker import autocast
from .neighbours import Mail, Neighbours, activation_header
from .spread_pass import SpreadPass
from .tally import Tally


class Batches(Protocol):
    """Where samples come from; see node/data/dataset.py."""

    def placed(self, ids: list[int]) -> tuple[Tensor, Tensor, Tensor | None]: ...


class Runner(Protocol):
    """Computes a node's share of a step or of an evaluation; see StageRunner."""

    def step(self, step: int, microbatches: Sequence[list[int]], scale: float) -> Tally: ...

    def evaluate(self, step: int, microbatches: Sequence[list[int]]) -> Sequence[Tally]: ...


class StageRunner:
    """Runs the stages of one node for one view."""

    def __init__(
        self,
        chunks: Sequence[Chunk],
        slot: ScheduleSlot,
        data: Callable[[], Batches],
        neighbours: Neighbours,
        context: NodeContext,
        *,
        loss_scale: Callable[[], LossScale | None] = lambda: None,
    ) -> None:
        """``loss_scale()``: fp16's, with which the last stage computes; None in another precision."""
        self._chunks, self._slot, self._data, self._neighbours = chunks, slot, data, neighbours
        self._samples: dict[int, tuple[int, ...]] = {}
        """Stage -> the shape of one sample's incoming activation, known after the first that could be computed."""
        self.in_flight = slot.in_flight
        """How many microbatches may be in flight."""
        self._loss_scale = loss_scale
        self._device, self._clock, self._pump = context.device, context.clock, context.pump
        self._precision, self._seed = context.job.train.precision, context.job.run.seed
        self._drops = context.definition.drops
        self._packed = context.facts.packed or context.facts.sets_packed
        """Samples have several documents, and every stage has to know where they begin."""
        self._needs_tokens = context.definition.needs_tokens
        self._left: dict[int, int] = {}
        """Stage -> how many of its microbatches have no backward pass yet in this step."""
        self.last_backward: Callable[[Chunk], AbstractContextManager[None]] = lambda chunk: nullcontext()
        """A context for the last backward pass of a stage in a step: each gradient is complete when the pass reaches
        it."""

    def step(self, step: int, microbatches: Sequence[list[int]], scale: float) -> Tally:
        """Forward and backward pass of every microbatch (a list of sample ids). The gradients of ``scale`` times the
        loss sum are added to the parameters' gradients; in fp16 they are multiplied by the tally's ``loss_scale``."""
        tally = Tally()
        if (own := self._loss_scale()) is not None:
            tally.loss_scale = own.scale if self._chunks[-1].model.is_last else 0.0  # others are told
        for chunk in self._chunks:
            chunk.model.train()
        held: dict[Action, Pass | SpreadPass] = {}
        slot = self._slot
        count, chunks = len(microbatches), len(self._chunks)
        self._left = {chunk.stage: count for chunk in self._chunks}
        order = Order(slot.schedule, slot.position, slot.positions, count, chunks, self.in_flight)
        while order.left:
            action = self._next(order, step)
            chunk, microbatch = self._chunks[action.chunk], action.microbatch
            forward = Action("F", microbatch, action.chunk)
            if action == forward:
                held[action] = self._forward(chunk, step, microbatch, microbatches[microbatch], tally)
            else:
                self._backward(chunk, step, microbatch, held.pop(forward), tally, scale)
            self._pump(0.0)  # rounds of the step before continue while this step computes
        self._settle(tally)
        return tally

    def evaluate(self, step: int, microbatches: Sequence[list[int]]) -> Sequence[Tally]:
        """The loss of each microbatch with the modules' present weights."""
        tallies = [Tally() for _ in microbatches]
        with torch.no_grad():
            for chunk in self._chunks:
                chunk.model.eval()
                for number, samples in enumerate(microbatches):
                    batch = self._inputs(chunk, data_pb2.EVALUATION, step, number, samples, tallies[number])
                    output = self._compute(chunk, *batch, tallies[number]).output
                    if not chunk.model.is_last:
                        encoded = chunk.outgoing.plain(output)
                        self._send(chunk, data_pb2.EVALUATION, step, number, encoded, output)
                chunk.model.train()
        for tally in tallies:
            self._settle(tally)
        return tallies

    def _settle(self, tally: Tally) -> None:
        if self._chunks[-1].model.is_last:
            with self._clock.computing("loss"):
                tally.settle()

    def _next(self, order: Order, step: int) -> Action:
        """The next action whose input has arrived; waits until there is one."""

        def there(action: Action) -> bool:
            model, forward = self._chunks[action.chunk].model, action.kind == "F"
            if model.is_first if forward else model.is_last:
                return True
            kind = data_pb2.ACTIVATION if forward else data_pb2.ACTIVATION_GRADIENT
            if self._neighbours.has(kind, step, action.microbatch, model.first if forward else model.last + 1):
                return True
            missing.append((bodies.kind_name(kind), action.microbatch))
            near = self._chunks[action.chunk].before if forward else self._chunks[action.chunk].after
            senders.update([near] if near is not None else [])
            return False

        missing: list[tuple[str, int]] = []
        senders: set[str] = set()
        action = order.next(there)
        if action is None:
            what, microbatch = missing[0]
            with self._clock.span(f"wait for {what}", microbatch), self._neighbours.waits(lambda: senders):
                while action is None:
                    self._pump(0.2)
                    action = order.next(there)
        return action

    # ---- forward ---------------------------------------------------------------------------

    def _forward(self, chunk: Chunk, step: int, microbatch: int, samples: list[int], tally: Tally) -> Pass | SpreadPass:
        inputs = self._inputs(chunk, data_pb2.ACTIVATION, step, microbatch, samples, tally)
        if self._drops:
            chunk.model.draw = Draw(self._seed, step, tuple(samples))
        made = self._compute(chunk, *inputs, tally)
        if not chunk.model.is_last:
            output = made.output
            with self._clock.coding("encode activation", microbatch):
                encoded = chunk.outgoing.forward(step, microbatch, samples, output.detach())
            tally.activation_elements += output.numel()
            self._send(chunk, data_pb2.ACTIVATION, step, microbatch, encoded, output)
        return made

    def _inputs(
        self, chunk: Chunk, kind: data_pb2.Kind, step: int, microbatch: int, samples: list[int], tally: Tally
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """(inputs, targets, places) of a microbatch, as far as this stage needs them."""
        places = None
        if chunk.model.is_first or chunk.model.is_last or self._packed or self._needs_tokens:
            tokens, targets, places = self._data().placed(samples)
            places = None if places is None else onto(places, self._device)
        else:
            tokens = targets = torch.empty(0)
        if self._needs_tokens and not chunk.model.is_first:
            chunk.model.tokens = onto(tokens, self._device)
        if chunk.model.is_last:
            tally.tokens += chunk.model.target_count(targets)  # on the CPU: no wait for the device
            tally.samples += len(targets)
            targets = onto(targets, self._device)
        if chunk.model.is_first:
            return onto(tokens, self._device), targets, places
        read = chunk.incoming.plain if kind == data_pb2.EVALUATION else chunk.incoming.forward
        wanted = (len(samples), self._samples.get(chunk.stage))
        hidden = None
        while hidden is None:  # repeat if this end lacked samples: it has asked for them
            mail = self._neighbours.take(kind, step, microbatch, chunk.model.first)
            hidden = self._received(chunk.before, chunk.incoming, read, mail, wanted)
        return onto(hidden, self._device), targets, places

    def _received(
        self,
        sender: str | None,
        incoming: Incoming,
        read: Callable[[data_pb2.Activation, npt.NDArray[np.uint8]], Tensor | None],
        mail: Mail,
        wanted: tuple[int, tuple[int, ...] | None],
    ) -> Tensor | None:
        """The tensor that a neighbour sent; a message that is not valid ends the view. None: samples are missing (see
        `Incoming.forward`). ``wanted``: (number of samples, shape of each; None: not known)."""
        (kind, sent, payload), (samples, sample) = mail, wanted
        incoming.limit = MOST_ELEMENTS if sample is None else samples * math.prod(sample)
        try:
            if not sent.sizes:
                _check_shape(tuple(sent.shape), *wanted)
            with self._clock.coding("decode", sent.microbatch):
                values = read(sent, payload)
            if values is not None:
                _check_shape(tuple(values.shape), *wanted)
            return values
        except CodecError as problem:
            what = f"{bodies.kind_name(kind)} of step {sent.step}"
            self._neighbours.spoiled(sender or "", f"{what}: {problem}")

    def _compute(
        self, chunk: Chunk, inputs: Tensor, targets: Tensor, places: Tensor | None, tally: Tally
    ) -> Pass | SpreadPass:
        try:
            with self._clock.computing("forward", chunk.stage), autocast(self._precision, self._device):
                made = chunk.begin(inputs, targets, places)
        except (RuntimeError, IndexError) as problem:
            if failure := not_compiled(problem):
                raise failure from problem
            known = chunk.model.is_first or chunk.stage in self._samples
            if known or is_out_of_memory(problem):
                if (own := chunk.model.own_failure(problem)) is not None:
                    raise own from problem
                raise
            self._neighbours.spoiled(chunk.before or "", f"an activation of shape {tuple(inputs.shape)}: {problem}")
        if not chunk.model.is_first:
            self._samples[chunk.stage] = tuple(inputs.shape[1:])
        if chunk.model.is_last:
            tally.add(made.output, made.correct)
        return made

    # ---- backward --------------------------------------------------------------------------

    def _backward(
        self, chunk: Chunk, step: int, microbatch: int, made: Pass | SpreadPass, tally: Tally, scale: float
    ) -> None:
        output = made.output
        if chunk.model.is_last:
            gradient = torch.full_like(output, scale * tally.loss_scale)
        else:
            border = chunk.model.last + 1
            mail = self._neighbours.take(data_pb2.ACTIVATION_GRADIENT, step, microbatch, border)
            wanted = (len(output), tuple(output.shape[1:]))
            read = chunk.incoming.backward
            received = self._received(chunk.after, chunk.incoming, read, mail, wanted)
            assert received is not None
            self._learn_scale(chunk, mail, tally)
            gradient = onto(received, self._device).to(output.dtype)
            chunk.outgoing.commit(step, microbatch)  # the receiver has used the activation
        self._left[chunk.stage] -= 1
        with (
            nullcontext() if self._left[chunk.stage] else self.last_backward(chunk),
            self._clock.computing("backward", chunk.stage),
        ):
            back = made.backward(gradient, scale * tally.loss_scale)
        if chunk.model.is_first:
            return
        if back is None:
            raise RuntimeError(f"stage {chunk.stage} made no gradient of its input")
        with self._clock.coding("encode gradient", microbatch):
            encoded = chunk.outgoing.backward(step, microbatch, back)
        tally.activation_elements += back.numel()
        scale = tally.loss_scale if self._precision == "fp16" else 0.0
        self._send(chunk, data_pb2.ACTIVATION_GRADIENT, step, microbatch, encoded, back, loss_scale=scale)
        chunk.incoming.commit(step, microbatch)

    def _learn_scale(self, chunk: Chunk, mail: Mail, tally: Tally) -> None:
        """fp16: the scale of a received gradient, which is the same in all gradients of a step."""
        if self._precision != "fp16":
            return
        scale = mail[1].loss_scale
        if not is_scale(scale) or tally.loss_scale not in (0.0, scale):
            self._neighbours.spoiled(chunk.after or "", f"a gradient of step {mail[1].step} with loss scale {scale:g}")
        tally.loss_scale = scale

    # ---- small things ----------------------------------------------------------------------

    def _send(
        self,
        chunk: Chunk,
        kind: data_pb2.Kind,
        step: int,
        microbatch: int,
        encoded: Contribution,
        values: Tensor,
        *,
        loss_scale: float = 0.0,
    ) -> None:
        back = kind == data_pb2.ACTIVATION_GRADIENT
        to = chunk.before if back else chunk.after
        if to is None:
            raise RuntimeError("the pipeline ends here")
        layer = chunk.model.first if back else chunk.model.last + 1
        header = activation_header(kind, step, microbatch, layer, encoded, values.shape, loss_scale=loss_scale)
        self._neighbours.send(to, header, encoded.payload)


def _check_shape(shape: tuple[int, ...], samples: int, sample: tuple[int, ...] | None) -> None:
    """CodecError for a shape other than ``(samples, *sample)``; if ``sample`` is None, for another number of samples or
    more than MOST_ELEMENTS elements."""
    if not shape or shape[0] != samples or sample not in (None, shape[1:]) or math.prod(shape) > MOST_ELEMENTS:
        wanted = "x".join(map(str, (samples, *(sample if sample is not None else ("...",)))))
        raise CodecError(f"shape {shape} where {wanted} belongs")
