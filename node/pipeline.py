"""A node's part in its pipeline: the schedule's actions, executed; activations in, activations out.

Sends return at once (the I/O process carries them), receives wait for the message of exactly this step and
microbatch, whatever order things arrive in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..proto import data_pb2
from ..scheduler import actions
from .activations import Incoming, Outgoing
from .round_messages import Contribution
from .stage import StageModel
from .step_clock import StepClock

Take = Callable[[int, int, int], tuple[data_pb2.Header, npt.NDArray[np.uint8]]]
"""``take(kind, step, microbatch)`` waits for that message and returns it."""
Send = Callable[[str, data_pb2.Header, Sequence[bytes]], None]


class Batches(Protocol):
    """Where samples come from; see node/dataset.py."""

    def batch(self, ids: list[int]) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class Place:
    """Where this node stands in its pipeline."""

    stage: int
    stages: int
    before: str | None
    after: str | None
    schedule: str


@dataclass
class Tally:
    """What a step or an evaluation added up on this node."""

    loss_sum: float = 0.0
    tokens: int = 0
    samples: int = 0
    correct: int = 0
    activation_elements: int = 0
    """Elements sent to neighbours, both ways."""


class StageRunner:
    """Runs one stage of one pipeline for one view."""

    def __init__(
        self,
        model: StageModel,
        place: Place,
        data: Callable[[], Batches],
        take: Take,
        pump: Callable[[], None],
        send: Send,
        outgoing: Outgoing,
        incoming: Incoming,
        device: torch.device,
        precision: str,
        clock: StepClock,
    ) -> None:
        self.model, self.place, self.data = model, place, data
        self.take, self.pump, self.send = take, pump, send
        self.outgoing, self.incoming = outgoing, incoming
        self.device, self.precision, self.clock = device, precision, clock

    def step(self, step: int, microbatches: Sequence[list[int]], scale: float) -> Tally:
        """Forward and backward of every microbatch (lists of sample ids); gradients of ``scale`` times the loss sum
        are added to the parameters' gradients."""
        tally = Tally()
        self.model.train()
        held: dict[int, tuple[Tensor, Tensor]] = {}
        place = self.place
        for action in actions(place.schedule, place.stage, place.stages, len(microbatches)):
            samples = microbatches[action.microbatch]
            if action.kind == "F":
                held[action.microbatch] = self._forward(step, action.microbatch, samples, tally, scale)
            else:
                self._backward(step, action.microbatch, *held.pop(action.microbatch), tally)
            self.pump()  # rounds of the step before go on while this one computes
        return tally

    def evaluate(self, step: int, microbatches: Sequence[list[int]]) -> Tally:
        """Loss of validation microbatches with the weights that the module has now."""
        tally = Tally()
        self.model.eval()
        with torch.no_grad():
            for number, samples in enumerate(microbatches):
                inputs, targets = self._inputs(data_pb2.EVALUATION, step, number, samples)
                output = self._compute(inputs)
                if self.model.is_last:
                    self._score(output, targets, tally)
                else:
                    encoded = self.outgoing.plain(output)
                    self._send(self.place.after, data_pb2.EVALUATION, step, number, encoded, output)
        self.model.train()
        return tally

    # ---- forward ---------------------------------------------------------------------------

    def _forward(
        self, step: int, microbatch: int, samples: list[int], tally: Tally, scale: float
    ) -> tuple[Tensor, Tensor]:
        """(the input that wants a gradient, the output to go backward from)."""
        inputs, targets = self._inputs(data_pb2.ACTIVATION, step, microbatch, samples)
        if not self.model.is_first:
            inputs.requires_grad_(True)
        output = self._compute(inputs)
        if self.model.is_last:
            return inputs, self._score(output, targets, tally) * scale
        with self.clock.coding():
            encoded = self.outgoing.forward(step, microbatch, samples, output.detach())
        tally.activation_elements += output.numel()
        self._send(self.place.after, data_pb2.ACTIVATION, step, microbatch, encoded, output)
        return inputs, output

    def _inputs(self, kind: data_pb2.Kind, step: int, microbatch: int, samples: list[int]) -> tuple[Tensor, Tensor]:
        if self.model.is_first or self.model.is_last:
            tokens, targets = self.data().batch(samples)
            targets = targets.to(self.device)
        else:
            tokens = targets = torch.empty(0)
        if self.model.is_first:
            return tokens.to(self.device), targets
        header, payload = self.take(kind, step, microbatch)
        if kind == data_pb2.EVALUATION:
            return self.incoming.plain(header, payload).to(self.device), targets
        hidden = self._hidden(header, payload)
        while hidden is None:  # entries that this end lacks: it has asked for them whole
            header, payload = self.take(kind, step, microbatch)
            hidden = self._hidden(header, payload)
        return hidden.to(self.device), targets

    def _hidden(self, header: data_pb2.Header, payload: npt.NDArray[np.uint8]) -> Tensor | None:
        with self.clock.coding():
            return self.incoming.forward(header, payload)

    def _compute(self, inputs: Tensor) -> Tensor:
        with self.clock.computing(), self._autocast():
            output: Tensor = self.model(inputs)
        return output

    def _score(self, output: Tensor, targets: Tensor, tally: Tally) -> Tensor:
        with self.clock.computing():
            with self._autocast():
                loss = self.model.loss_sum(output, targets)
            tally.loss_sum += float(loss.detach())
        tally.tokens += self.model.target_count(targets)
        tally.samples += len(targets)
        tally.correct += self.model.correct(output.detach(), targets)
        return loss

    # ---- backward --------------------------------------------------------------------------

    def _backward(self, step: int, microbatch: int, inputs: Tensor, output: Tensor, tally: Tally) -> None:
        gradient = None
        if not self.model.is_last:
            header, payload = self.take(data_pb2.ACTIVATION_GRADIENT, step, microbatch)
            with self.clock.coding():
                gradient = self.incoming.backward(header, payload).to(self.device, output.dtype)
            self.outgoing.commit(step, microbatch)  # the receiver has used what was sent
        with self.clock.computing():
            torch.autograd.backward([output], None if gradient is None else [gradient])
        if self.model.is_first:
            return
        if inputs.grad is None:
            raise RuntimeError(f"stage {self.place.stage} made no gradient of its input")
        with self.clock.coding():
            encoded = self.outgoing.backward(step, microbatch, inputs.grad)
        tally.activation_elements += inputs.numel()
        self._send(self.place.before, data_pb2.ACTIVATION_GRADIENT, step, microbatch, encoded, inputs)
        self.incoming.commit(step, microbatch)

    # ---- small things ----------------------------------------------------------------------

    def _send(
        self, to: str | None, kind: data_pb2.Kind, step: int, microbatch: int, encoded: Contribution, values: Tensor
    ) -> None:
        if to is None:
            raise RuntimeError("the pipeline ends here")
        header = data_pb2.Header(kind=kind, step=step, microbatch=microbatch, sizes=encoded.sizes)
        if not encoded.sizes:
            header.shape.extend(values.shape)
        self.send(to, header, encoded.payload)

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()
