"""Equal devices with unequal measurements: a difference of a factor of two counts only if it is seen twice. Pure.

A node measures its device once, when it joins, and a busy moment can make the result several times too slow. Nodes with
the same device name and number of cores are taken for equal: a node that measured less than half of the others' speed
is planned with theirs. The steps are the second measurement (``Speeds``): a node that is slow in them too is planned
with the speed that it reaches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median_high
from typing import Any

BELIEVED = 2.0


class Equals:
    """``measured``: node -> Tflop/s of its device for plans; 0 where the node reported none."""

    def __init__(self, devices: Mapping[str, Mapping[str, Any]]) -> None:
        self._of: dict[tuple[str, str, int], dict[str, float]] = {}
        self._kind: dict[str, tuple[str, str, int]] = {}
        self._usual: dict[tuple[str, str, int], float] = {}
        for name, device in devices.items():
            self.joined(name, device)

    def joined(self, name: str, device: Mapping[str, Any]) -> None:
        """A node has joined, maybe again and on another machine. ``device``: its description of its device,
        unchecked."""
        if (before := self._kind.pop(name, None)) is not None:
            self._of[before].pop(name)
            self._usual.pop(before, None)
        found = float(device.get("tflops") or 0.0)
        kind = (str(device.get("kind")), str(device.get("description")), int(device.get("cores") or 0))
        self._kind[name] = kind
        self._usual.pop(kind, None)
        self._of.setdefault(kind, {})[name] = found if math.isfinite(found) and found > 0 else 0.0

    def measured(self, name: str) -> float:
        """Of two equal devices the better one's speed counts, of more the median: a single claim raises no other node's
        speed."""
        if name not in self._kind:
            return 0.0
        equals = self._of[self._kind[name]]
        if (own := equals[name]) == 0.0 or len(equals) == 1:
            return own
        if (usual := self._usual.get(self._kind[name])) is None:  # computed once for a thousand equals
            usual = self._usual[self._kind[name]] = median_high(one for one in equals.values() if one > 0)
        return usual if own * BELIEVED <= usual else own
