"""What codecs cost in loss, where it was measured: the table losses.json, which ``python -m benchmarks.codec_losses``
writes from results of runs. No number stands in the code; advice and plans' sentences read the table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

Key = tuple[str, int, str]
"""(mode, steps between rounds, codec)."""


@dataclass(frozen=True)
class Loss:
    """Validation loss in per cent above one optimiser on the whole batch: the mean over ``seeds`` and half its 95 %
    interval (None: of one seed); of a model of so many parameters after so many steps, by a command. ``tuned``: whether
    its learning rate was chosen for it; else it is that of its neighbours."""

    percent: float
    interval: float | None
    seeds: int
    parameters: int
    steps: int
    command: str
    tuned: bool = True

    @property
    def baseline(self) -> bool:
        """Whether this is what the others are compared with."""
        return self.interval == 0.0

    @property
    def words(self) -> str:
        """The cost alone, as in a table."""
        if self.baseline:
            return "none: the others are compared with it"
        return f"{self.percent:+.2g} %" + (" (one seed)" if self.interval is None else f" ± {self.interval:.1g} %")

    @property
    def source(self) -> str:
        """Where the cost is from."""
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        rate = "" if self.tuned else ", learning rate not tuned"
        return f"{self.parameters:,} parameters, {self.steps:,} steps, {seeds}{rate}: {self.command}"


@lru_cache(maxsize=1)
def measured() -> dict[Key, Loss]:
    """The table."""
    rows = json.loads((files(__package__) / "losses.json").read_text())
    return {(row.pop("mode"), row.pop("every"), row.pop("codec")): Loss(**row) for row in rows}


def loss_of(mode: str, every: int, codec: str) -> Loss | None:
    """The cost of a codec in this mode with rounds every so many steps; None where it was not measured."""
    return measured().get((mode, every, codec))
