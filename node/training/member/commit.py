"""The commit point of a step: one member hears from all that they are ready, then tells all to go on.

In ``gradient`` mode the members are all training nodes of the view, and a node is ready when it holds the step's
results. In ``delta`` mode they are one pipeline's nodes, and a node is ready when its gradient is complete. In both,
the exchange also computes the global gradient norm, to which every member contributes its own part once.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field


@dataclass
class Commit:
    """The commit point on one node. At the committer it collects who is ready; everywhere it keeps the last commit."""

    members: tuple[str, ...]
    me: str
    step: int = 0
    """The last step committed."""
    norm: float = 0.0
    """The global gradient norm of ``step``; not finite if any member's gradient was not."""
    _squares: dict[int, dict[str, float]] = field(default_factory=dict)

    @property
    def committer(self) -> str:
        return self.members[0]

    @property
    def others(self) -> Sequence[str]:
        return [name for name in self.members if name != self.me]

    def lacking(self, step: int) -> Collection[str]:
        """The nodes for which this node waits until ``step`` is committed."""
        if self.committer != self.me:
            return (self.committer,)
        return [name for name in self.members if name not in self._squares.get(step, {})]

    def ready(self, name: str, step: int, square: float) -> bool:
        """``name`` is ready for ``step``; ``square``: its part of the squared norm. True: the step is committed now."""
        if name not in self.members or not self.step < step <= self.step + 2:
            return False
        squares = self._squares.setdefault(step, {})
        squares[name] = square
        if len(squares) < len(self.members):
            return False
        # Summed in member order, so that the norm does not depend on the order of arrival.
        total = sum(squares[member] for member in self.members)
        self.committed(step, math.sqrt(total) if 0 <= total < math.inf else math.nan)
        return True

    def committed(self, step: int, norm: float) -> None:
        """The committer says that a step is committed."""
        if step > self.step:
            self.step, self.norm = step, norm
            self._squares = {later: values for later, values in self._squares.items() if later > step}
