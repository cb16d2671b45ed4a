"""Warns when a checkpoint is overdue while the run trains, and names the nodes whose files are missing.

No node is put out for it: uploads have the lowest priority on links that training may fill. But a run without
checkpoints would lose everything with its coordinator or its last node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable


def late_in_all(steps: Iterable[int], lacking: Callable[[int], Collection[str]]) -> tuple[str, ...]:
    """The nodes that have sent no file for any of these steps. ``lacking(step)``: the nodes that have sent none for
    this step."""
    found = [set(lacking(step)) for step in steps]
    return tuple(sorted(set.intersection(*found))) if found else ()


class Late:
    """Call ``at`` periodically. It returns its sentence once for each period in which no checkpoint becomes
    complete."""

    def __init__(self) -> None:
        self._newest = -1
        self._since: float | None = None
        self._told = False

    def at(
        self,
        newest: int,
        due: int,
        lacking: Callable[[], Collection[str]],
        longest_s: Callable[[Collection[str]], float],
        now: float,
    ) -> str:
        """The warning to give now, or "". ``newest``: the step of the newest complete checkpoint; ``due``: the newest
        finished step at which a checkpoint is due. ``lacking``: the nodes whose files are missing. ``longest_s``:
        seconds that these nodes may take for their uploads."""
        if due <= newest or newest != self._newest:
            self._newest, self._since, self._told = newest, now if due > newest else None, False
            return ""
        if self._since is None:
            self._since = now
        if self._told:
            return ""
        names = lacking()
        if not names or now - self._since <= longest_s(names):
            return ""
        self._told = True
        who, parts = " and ".join(sorted(names)), "parts have" if len(names) > 1 else "part has"
        return (
            f"no checkpoint has become complete for {(now - self._since) / 60:.0f} min, "
            f"the newest is of step {newest}: "
            f"the {parts} not come from {who}; `farflung coordinator drain` gives another node its place"
        )
