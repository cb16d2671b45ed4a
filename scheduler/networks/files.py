"""Reads JSON files that a person names; an error says at which line and column the file is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import PlanError


def load_json(path: Path) -> Any:
    """The content of a JSON file, or PlanError with the place of the mistake."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"can't read {path}: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(f"{path} is not JSON: {error}") from error
