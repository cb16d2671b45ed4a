"""The retry queue for effects that failed: each is retried until it succeeds or is out of date.

One failed write must not stop the orders after it, because nodes would wait for these for ever. At most MOST effects
wait: where a database can't be written for hours, messages for people are dropped first, then the oldest effects.
"""

from __future__ import annotations

from ...membership import signals as s
from ...membership.state import FLUSHING, PREPARING, TRAINING, State

AGAIN_S = 1.0
MOST = 1000
"""The most effects in the queue: those of a view change of a thousand nodes."""


class Undone:
    """``add`` queues an effect that failed; ``due`` returns those to try now. An effect that fails again is added
    again."""

    def __init__(self) -> None:
        self._waiting: list[s.Effect] = []
        self._again = 0.0
        self.dropped = 0
        """Effects that were dropped because the queue was full."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, effect: s.Effect, now: float) -> None:
        """Queue an effect that has just failed."""
        if effect in self._waiting:
            self._waiting.remove(effect)
        self._waiting.append(effect)
        self._again = now + AGAIN_S
        if len(self._waiting) > MOST:
            words = (at for at, one in enumerate(self._waiting) if isinstance(one, s.Say))
            del self._waiting[next(words, 0)]
            self.dropped += 1

    def due(self, state: State, now: float) -> list[s.Effect]:
        """The effects to retry now, in the order of their failures, without those that are out of date."""
        if not self._waiting or now < self._again:
            return []
        waiting, self._waiting = self._waiting, []
        return [effect for effect in waiting if is_current(effect, state)]


def is_current(effect: s.Effect, state: State) -> bool:
    """Whether an effect still matters: an order for a past view does not."""
    if isinstance(effect, s.SendFlush):
        return state.phase == FLUSHING and effect.view == state.number
    if isinstance(effect, s.SendView):
        return state.phase == PREPARING and state.pinned is not None and effect.view.number == state.pinned.number
    if isinstance(effect, s.SendStart):
        return state.phase == TRAINING and state.view is not None and effect.view == state.view.number
    return True
