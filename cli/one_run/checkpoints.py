"""Where a command finds checkpoints: in a folder, or fetched from an address."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path


def checkpoints_of(place: str, step: int | None) -> AbstractContextManager[Path]:
    """A folder with checkpoints: the one that is named, or what is fetched from an address."""
    if "://" not in place:
        return nullcontext(Path(place))
    from ...coordinator.checkpoints.targets import fetched

    return fetched(place, step)
