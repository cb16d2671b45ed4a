"""Effects of the membership machine that could not be performed: each is tried again, until it is done or out of date.

One failed write must not cost the orders that come after it: whoever waits for one of those would wait for ever.
At most MOST wait: where a database takes nothing for hours, sentences for people make room first, then what is oldest.
"""

from __future__ import annotations

from ...membership import signals as s
from ...membership.state import FLUSHING, PREPARING, TRAINING, State

AGAIN_S = 1.0
MOST = 1000
"""Effects that wait: as many as a view change of a thousand nodes has."""


class Undone:
    """``add`` what failed; ``due`` is what to try now. An effect that fails again is added again."""

    def __init__(self) -> None:
        self._waiting: list[s.Effect] = []
        self._again = 0.0
        self.dropped = 0
        """How many there was no room for."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, effect: s.Effect, now: float) -> None:
        """This effect failed just now."""
        if effect in self._waiting:
            self._waiting.remove(effect)
        self._waiting.append(effect)
        self._again = now + AGAIN_S
        if len(self._waiting) > MOST:
            words = (at for at, one in enumerate(self._waiting) if isinstance(one, s.Say))
            del self._waiting[next(words, 0)]
            self.dropped += 1

    def due(self, state: State, now: float) -> list[s.Effect]:
        """In the order in which they failed, without those that mean nothing any more."""
        if not self._waiting or now < self._again:
            return []
        waiting, self._waiting = self._waiting, []
        return [effect for effect in waiting if is_current(effect, state)]


def is_current(effect: s.Effect, state: State) -> bool:
    """Whether an order for a view is still wanted; other effects always are."""
    if isinstance(effect, s.SendFlush):
        return state.phase == FLUSHING and effect.view == state.number
    if isinstance(effect, s.SendView):
        return state.phase == PREPARING and state.pinned is not None and effect.view.number == state.pinned.number
    if isinstance(effect, s.SendStart):
        return state.phase == TRAINING and state.view is not None and effect.view == state.view.number
    return True
