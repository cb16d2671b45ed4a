"""Equal devices with unequal measurements: a difference of a factor of two counts only if it is seen twice. Pure.

A node measures its device once, when it joins, and a busy moment can make the result several times too slow. Nodes with
the same device name and number of cores are taken for equal: one that is below half of the others is planned with their
speed. The steps are the second measurement (``Speeds``): a node that is slow there too is planned with what it reaches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median_high
from typing import Any

BELIEVED = 2.0


class Equals:
    """``measured``: node -> Tflop/s of its device to plan with; 0 where it said none."""

    def __init__(self, devices: Mapping[str, Mapping[str, Any]]) -> None:
        self._of: dict[tuple[str, str, int], dict[str, float]] = {}
        self._kind: dict[str, tuple[str, str, int]] = {}
        self._usual: dict[tuple[str, str, int], float] = {}
        for name, device in devices.items():
            self.joined(name, device)

    def joined(self, name: str, device: Mapping[str, Any]) -> None:
        """A node has come, or has come again on another machine. ``device``: what it says of it, unchecked."""
        if (before := self._kind.pop(name, None)) is not None:
            self._of[before].pop(name)
            self._usual.pop(before, None)
        found = float(device.get("tflops") or 0.0)
        kind = (str(device.get("kind")), str(device.get("description")), int(device.get("cores") or 0))
        self._kind[name] = kind
        self._usual.pop(kind, None)
        self._of.setdefault(kind, {})[name] = found if math.isfinite(found) and found > 0 else 0.0

    def measured(self, name: str) -> float:
        """The better of two equals counts, the median of more: one claim alone raises no other node."""
        if name not in self._kind:
            return 0.0
        equals = self._of[self._kind[name]]
        if (own := equals[name]) == 0.0 or len(equals) == 1:
            return own
        if (usual := self._usual.get(self._kind[name])) is None:  # not anew for each of a thousand equals
            usual = self._usual[self._kind[name]] = median_high(one for one in equals.values() if one > 0)
        return usual if own * BELIEVED <= usual else own
