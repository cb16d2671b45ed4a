"""An event of a run: a mapping whose key ``event`` names its kind, as docs/reference.md lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]
