"""Between a trainer and a person's own training loop, which run in two threads of one process.

The trainer's thread does what it does on any node: views, rounds, reports. Where another node computes its share of a
step, this one puts an ``Order`` up and answers peers until the loop's thread has brought the gradient. The loop
computes with a copy of the weights, so that a view change need not wait for it; a gradient of an order that was
withdrawn meanwhile is dropped, as other nodes abandon their step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
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
"""For a loop's first step, while nobody knows how long one takes: it may compile, or read its data."""
_LOOK_SECONDS = 0.005
"""Between two looks for the loop's gradient: it adds half of that to a step."""


@dataclass(eq=False)
class Order:
    """A share of a step that the loop is to compute; ``tally`` is there once it has."""

    step: int
    samples: list[int]
    scale: float
    """What the gradient of the share's mean loss counts."""
    sections: tuple[Section, ...]
    gradients: Gradients
    life: int = 0
    """Of the trainer that wants it."""
    tally: Tally | None = None


class LoopOwner(Owner):
    """Wishes of the loop: it leaves, or has not come back for long and so should not hold up the others."""

    def __init__(self) -> None:
        super().__init__()
        self.leaves = ""
        self._waits_since: float | None = None
        self._usual: deque[float] = deque(maxlen=20)

    def waits(self, now: float) -> None:
        """The trainer waits for the loop from now on."""
        self._waits_since = now

    def came(self, now: float) -> None:
        """The loop is back."""
        if self._waits_since is not None:
            self._usual.append(now - self._waits_since)
        self._waits_since = None

    def begin_again(self) -> None:
        """Nobody waits for the loop."""
        self._waits_since = None

    def wish(self) -> Wish | None:
        if self.leaves:
            return Wish(self.leaves, seconds=0.0)
        patience = max(30.0, 10 * median(self._usual)) if self._usual else FIRST_SECONDS
        if self._waits_since is not None and time.monotonic() - self._waits_since > patience:
            return Wish("waiting for its training loop, which has not come back", stays=True, seconds=0.0)
        return None


class LoopTrainer(Protocol):
    """What the loop needs of the trainer beside it."""

    @property
    def state(self) -> StageState | None:
        """What the node holds of the model; None: it has no place."""

    @property
    def step(self) -> int:
        """The last step that is finished here."""

    @property
    def clock(self) -> StepClock:
        """Counts where a step's time goes."""

    def pump(self, timeout: float = 0.0) -> None:
        """Handle whatever has arrived, waiting up to so many seconds for the first of it."""


class OwnLoop:
    """The Runner of a node whose steps a person's loop computes."""

    def __init__(self, model: OwnModel, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, OwnOptimizer(model, optimizer)
        self.owner = LoopOwner()
        self.trainer: LoopTrainer | None = None
        self._changed = threading.Condition()
        self.life = 0
        """How often the trainer has begun again."""
        self._order: Order | None = None
        self._taken: Order | None = None
        self._over = False
        self.error: BaseException | None = None

    # ---- the trainer's thread ------------------------------------------------------------------

    def step(self, step: int, microbatches: Sequence[list[int]], scale: float) -> Tally:
        """Wait for the loop's gradient of these samples. Raises ViewEnds, after which it counts no more."""
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
            with self._changed:  # not while the loop copies the weights
                self._order = None
        # While this thread waited, the loop's has computed.
        clock.wire, clock.waiting = wire, waiting
        clock.compute += time.perf_counter() - began - (clock.codec - codec)
        return order.tally

    def evaluate(self, step: int, microbatches: Sequence[list[int]]) -> Sequence[Tally]:
        """The members' own data have no validation samples here."""
        return [Tally() for _ in microbatches]

    def begin_again(self) -> None:
        """The trainer has ended, and another takes its place: the loop waits for it, or computes for nobody."""
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
        """Wait for the next order, and take its weights; None when the run is over. Raises what ended the trainer."""
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
        """Hand over the gradients of the order that was taken, which are set to None; dropped if it is withdrawn."""
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
            # Before the lock is free: then the trainer's thread lays the sum there, and steps by it.
            for parameter in self.model.parameters.values():
                parameter.grad = None

    def _load(self, sections: Sequence[Section], reference: bool) -> None:
        with torch.no_grad():
            for section in sections:
                for name, values in section.layout.views(section.g if reference else section.x):
                    self.model.parameters[name].copy_(values)
