"""Which block's weights come next, where a device has those of a block only while it computes. Pure.

Blocks of a stage are computed upwards in a forward pass and downwards in a backward pass that computes them again. So
what comes next follows from the last two; where it can't be known nothing is begun. A wrong guess costs a transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Block = tuple[int, int]
"""(the stage's index among the node's, the block's index in it)."""


@dataclass(frozen=True)
class Arrival:
    """What to do when a block is about to be computed."""

    here: bool
    """Its weights were sent for before."""
    drop: Block | None
    """A block whose weights were sent for in vain."""
    begin: Block | None
    """The block whose weights are to be sent for now."""


class Ahead:
    """``blocks``: how many each of the node's stages has."""

    def __init__(self, blocks: Sequence[int]) -> None:
        self._blocks = tuple(blocks)
        self._last: Block | None = None
        self.coming: Block | None = None
        """The block whose weights were sent for and not used yet."""

    def arrives(self, block: Block) -> Arrival:
        """A block is about to be computed."""
        here, before = self.coming == block, self.coming
        self.coming = self._after(block)
        self._last = block
        return Arrival(here, None if here else before, self.coming)

    def forget(self) -> None:
        """The weights are others from now on: what was sent for is not to be used. The next pass may be any."""
        self._last = self.coming = None

    def _after(self, block: Block) -> Block | None:
        stage, at = block
        end = self._blocks[stage] - 1
        if at not in (0, end):
            way = at - self._last[1] if self._last is not None and self._last[0] == stage else 0
            return (stage, at + way) if way in (1, -1) else None
        came_from_inside = self._last is not None and self._last == (stage, 1 if at == 0 else end - 1)
        if came_from_inside or end == 0:
            return None  # a pass ends here
        return stage, 1 if at == 0 else end - 1
