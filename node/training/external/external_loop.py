"""Connects a trainer with a user's own training loop; the two run in two threads of one process.

The trainer's thread handles views, rounds and reports, as on any node. Instead of computing its share of a step, it
publishes an ``Order`` and answers peers until the loop's thread has delivered the gradient. The loop computes with a
copy of the weights, so that a view change need not wait for it; the gradient of an order that was withdrawn meanwhile
is dropped, as other nodes abandon their step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

import torch

from ...device.clock import StepClock
from ...device.limits import Owner, Wish
from ...pipeline.tally import Tally
from ...state.sections.gradients import Gradients
from ...state.sections.section import Section
from ...state.stage_state import StageState
from .external_model import OwnModel, OwnOptimizer

log = logging.getLogger(__name__)

FIRST_SECONDS = 600.0
"""Seconds that a loop's first step may take, before its usual time is known: it may compile, or read data."""
_LOOK_SECONDS = 0.005
"""Seconds between two looks for the loop's gradient; half of it is added to a step on average."""


@dataclass(eq=False)
class Order:
    """A share of a step that the loop is to compute; ``tally`` is set when it has."""

    step: int
    samples: list[int]
    scale: float
    """The factor on the gradient of the share's mean loss."""
    sections: tuple[Section, ...]
    gradients: Gradients
    life: int = 0
    """The number of the trainer that wants it (`OwnLoop.life`)."""
    tally: Tally | None = None


class LoopOwner(Owner):
    """The loop's wishes as an owner's: to leave, or, after a long absence of the loop, to have no place meanwhile."""

    def __init__(self, offload_folder: Path | None = None) -> None:
        super().__init__(offload_folder=offload_folder)
        self.leaves = ""
        self._waits_since: float | None = None
        self._usual: deque[float] = deque(maxlen=20)

    def waits(self, now: float) -> None:
        """The trainer waits for the loop from now on."""
        self._waits_since = now

    def came(self, now: float) -> None:
        """The loop has returned to the trainer."""
        if self._waits_since is not None:
            self._usual.append(now - self._waits_since)
        self._waits_since = None

    def begin_again(self) -> None:
        """The trainer does not wait for the loop any more."""
        self._waits_since = None

    def wish(self) -> Wish | None:
        if self.leaves:
            return Wish(self.leaves, seconds=0.0)
        patience = max(30.0, 10 * median(self._usual)) if self._usual else FIRST_SECONDS
        if self._waits_since is not None and time.monotonic() - self._waits_since > patience:
            return Wish("waiting for its training loop, which has not come back", stays=True, seconds=0.0)
        return None


class LoopTrainer(Protocol):
    """The part of the trainer that the loop uses."""

    @property
    def state(self) -> StageState | None:
        """The state of the node's place; None: it has no place."""

    @property
    def step(self) -> int:
        """The last step that is finished here."""

    @property
    def clock(self) -> StepClock:
        """Counts where a step's time goes."""

    def pump(self, timeout: float = 0.0) -> None:
        """Handle all messages that have arrived; wait up to ``timeout`` seconds for the first."""


class OwnLoop:
    """The Runner of a node whose steps a user's loop computes."""

    def __init__(
        self, model: OwnModel, optimizer: torch.optim.Optimizer, *, offload_folder: Path | None = None
    ) -> None:
        self.model, self.optimizer = model, OwnOptimizer(model, optimizer)
        self.owner = LoopOwner(offload_folder)
        self.trainer: LoopTrainer | None = None
        self._changed = threading.Condition()
        self.life = 0
        """How often the trainer has been replaced."""
        self._order: Order | None = None
        self._taken: Order | None = None
        self._over = False
        self.error: BaseException | None = None

    # ---- the trainer's thread ------------------------------------------------------------------

    def step(self, step: int, microbatches: Sequence[list[int]], scale: float) -> Tally:
        """Wait for the loop's gradient of these samples. Raises ViewEnds; the gradient is then dropped."""
        trainer = self.trainer
        samples = [sample for microbatch in microbatches for sample in microbatch]
        assert trainer is not None and trainer.state is not None
        state = trainer.state
        sections = tuple(state.sections.values())
        order = Order(step, samples, scale * len(samples), sections, state.gradients, self.life)
        with self._changed:
            self._order = order
            self._changed.notify_all()
        self.owner.waits(time.monotonic())
        clock = trainer.clock
        began, codec, wire, waiting = time.perf_counter(), clock.codec, clock.wire, clock.waiting
        try:
            while order.tally is None:
                trainer.pump(_LOOK_SECONDS)
        finally:
            with self._changed:  # the loop may be copying the weights
                self._order = None
        # While this thread waited, the loop's thread computed.
        clock.wire, clock.waiting = wire, waiting
        clock.compute += time.perf_counter() - began - (clock.codec - codec)
        return order.tally

    def evaluate(self, step: int, microbatches: Sequence[list[int]]) -> Sequence[Tally]:
        """Empty tallies: with members' own data there are no validation samples."""
        return [Tally() for _ in microbatches]

    def begin_again(self) -> None:
        """The trainer has ended, and another will replace it. The loop waits for that one; the gradient of an order
        that it is computing will be dropped."""
        with self._changed:
            self.trainer, self.life = None, self.life + 1
        self.owner.begin_again()

    def end(self, error: BaseException | None) -> None:
        """The trainer is done: the loop stops waiting."""
        with self._changed:
            self._over, self.error = True, error
            self._changed.notify_all()

    # ---- the loop's thread ---------------------------------------------------------------------

    def take(self) -> Order | None:
        """Wait for the next order, and copy its weights; None when the run is over. Raises the error that ended the
        trainer."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._order not in (None, self._taken))
            if self.error is not None:
                raise self.error
            state = self.trainer.state if self.trainer is not None else None
            sections = () if state is None else tuple(state.sections.values())
            if self._order is None or self._over:
                if not sections:
                    log.warning(
                        "this node had no place when the run ended: its model has the weights of its last step here, "
                        "not the run's final ones; `farflung export` writes those"
                    )
                self._load(sections, reference=True)
                return None
            self._taken = self._order
            self._load(self._taken.sections, reference=False)
            return self._taken

    def give(self, loss: float | None) -> None:
        """Deliver the gradients of the order that was taken, and set them to None. If the order was withdrawn, they are
        dropped."""
        self.owner.came(time.monotonic())
        with self._changed, torch.no_grad():
            order = self._taken
            if order is not None and order is self._order:
                for name, parameter in self.model.parameters.items():
                    if parameter.grad is not None:
                        order.gradients.put(name, parameter.grad, order.scale)
                count = len(order.samples)
                tally = Tally(samples=count)
                if loss is not None:
                    tally.loss_sum, tally.tokens = loss * count, count
                order.tally = tally
            # Before the lock is released: afterwards the trainer's thread writes the sum to `grad`, and steps by it.
            for parameter in self.model.parameters.values():
                parameter.grad = None

    def _load(self, sections: Sequence[Section], reference: bool) -> None:
        with torch.no_grad():
            for section in sections:
                for name, values in section.layout.views(section.g if reference else section.x):
                    self.model.parameters[name].copy_(values)
