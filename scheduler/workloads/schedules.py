"""The order in which one node of a pipeline computes: a list of actions, or for 1F1B a rule that picks the next action.

The node follows an `Order`, and the simulator uses the same class. Receives block (a forward needs the activation of
the stage before, a backward the gradient of the stage after); sends never block compute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from ..errors import PlanError

SCHEDULES = ("gpipe", "1f1b", "interleaved")


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One forward ("F") or backward ("B") of one microbatch through one chunk of the node's layers.

    A node of a schedule that is not interleaved has only chunk 0. With the interleaved schedule, chunk c of position s
    in a pipeline of `stages` nodes is stage c * stages + s of the model.
    """

    kind: str
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        """ "F3", or "F3.1" for chunk 1."""
        return f"{self.kind}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


@lru_cache(maxsize=4096)
def actions(kind: str, stage: int, stages: int, microbatches: int, chunks: int = 1) -> tuple[Action, ...]:
    """The actions of the node at position `stage` of a pipeline of `stages` nodes, in order. With "1f1b" this is the
    order where every message arrives in time (see `Order`).

    `kind` is "gpipe" (all forwards, then all backwards; Huang et al. 2019), "1f1b" (one forward, one backward, after
    a warm-up of stages - stage - 1 forwards; Narayanan et al. 2019) or "interleaved" (1F1B with `chunks` chunks of
    layers a node; Narayanan et al. 2021). Every microbatch appears once forward and once backward for each chunk, and
    the backwards of a chunk are in ascending order of microbatch, so sums of gradients have one order.

    Raises PlanError for an unknown kind or impossible numbers.
    """
    if kind not in SCHEDULES:
        raise PlanError(f"unknown schedule {kind!r}: it is one of {', '.join(SCHEDULES)}")
    if not 0 <= stage < stages:
        raise PlanError(f"a pipeline of {stages} stages has no stage {stage}")
    if microbatches < 1:
        raise PlanError(f"a schedule needs at least 1 microbatch, not {microbatches}")
    if chunks != 1 and kind != "interleaved":
        raise PlanError(f"the schedule {kind!r} gives a node one chunk of layers, not {chunks}")
    if kind == "gpipe":
        forwards = [Action("F", m) for m in range(microbatches)]
        return tuple(forwards + [Action("B", m) for m in range(microbatches)])
    if kind == "1f1b" or chunks == 1:
        return _one_forward_one_backward(
            [Action("F", m) for m in range(microbatches)],
            [Action("B", m) for m in range(microbatches)],
            min(stages - stage - 1, microbatches),
        )
    return _interleaved(stage, stages, microbatches, chunks)


class Order:
    """Gives a node its next action in a step. All schedules except 1F1B are fixed: their list of `actions`.

    1F1B is a rule. On links that take as long as a stage computes, the fixed list of Narayanan et al. (2019) makes
    nodes wait: it has stages - stage microbatches in flight, too few for the round trip to the last stage. Here a node
    may hold `held` microbatches. It takes the next backward if the gradient has arrived, else the next forward if the
    activation has. Forwards and backwards are each in ascending order of microbatch, so sums of gradients have one
    order, in whatever order messages arrive. No choice of `held` can deadlock a pipeline, because every microbatch in
    flight comes back.

    held: most microbatches between their forward and their backward; 0: stages - stage, as in the fixed list.
    """

    def __init__(self, kind: str, stage: int, stages: int, microbatches: int, chunks: int = 1, held: int = 0) -> None:
        self._list = actions(kind, stage, stages, microbatches, chunks)
        self._held = (held or stages - stage) if kind == "1f1b" else 0
        self._forwards = self._backwards = 0

    @property
    def left(self) -> int:
        """Actions that are still to be taken."""
        return len(self._list) - self._forwards - self._backwards

    def next(self, there: Callable[[Action], bool]) -> Action | None:
        """Takes and returns the next action whose input has arrived, as `there` says; None while there is none."""
        for action in self._possible():
            if there(action):
                if action.kind == "F":
                    self._forwards += 1
                else:
                    self._backwards += 1
                return action
        return None

    def _possible(self) -> list[Action]:
        """The actions that may be next, the preferred one first."""
        if not self._held:
            taken = self._forwards + self._backwards
            return list(self._list[taken : taken + 1])
        found = []
        if self._backwards < self._forwards:
            found.append(Action("B", self._backwards))
        if self._forwards < len(self._list) // 2 and self._forwards - self._backwards < self._held:
            found.append(Action("F", self._forwards))
        return found


@lru_cache(maxsize=4096)
def in_flight(kind: str, stage: int, stages: int, microbatches: int, chunks: int = 1) -> int:
    """The most (microbatch, chunk) pairs whose activations a node holds at once, and for which it needs memory."""
    if chunks == 1 and kind in SCHEDULES and 0 <= stage < stages and microbatches > 0:
        return microbatches if kind == "gpipe" else min(stages - stage, microbatches)
    most = held = 0
    for action in actions(kind, stage, stages, microbatches, chunks):
        held += 1 if action.kind == "F" else -1
        most = max(most, held)
    return most


def _one_forward_one_backward(forwards: list[Action], backwards: list[Action], warm_up: int) -> tuple[Action, ...]:
    order = forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        order += [forward, backward]
    return tuple(order + backwards[len(forwards) - warm_up :])


def _interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Action, ...]:
    """Megatron's order, extended to counts that `stages` does not divide: the last group of microbatches is smaller."""
    forwards: list[Action] = []
    backwards: list[Action] = []
    for start in range(0, microbatches, stages):
        part = range(start, min(start + stages, microbatches))
        forwards += [Action("F", m, chunk) for chunk in range(chunks) for m in part]
        backwards += [Action("B", m, chunk) for chunk in reversed(range(chunks)) for m in part]
    warm_up = (stages - stage - 1) * 2 + (chunks - 1) * stages
    if microbatches % stages:
        # With a smaller last group the usual warm-up could deadlock; all forwards first can't.
        warm_up = len(forwards)
    return _one_forward_one_backward(forwards, backwards, min(warm_up, len(forwards)))
