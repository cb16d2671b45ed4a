"""Names of a run's sections and of the files of a checkpoint, shared by nodes and the coordinator."""

from __future__ import annotations

TIED = "tied"
"""The section of an embedding that the first and the last stage share."""
_STAGE = "stage-"


def section_of(stage: int) -> str:
    """The section of a stage's own parameters."""
    return f"{_STAGE}{stage}"


def stage_of(section: str) -> int:
    """The stage of a section; of ``TIED``, which two stages share, the first. ValueError: there is no such section."""
    if section == TIED:
        return 0
    if not section.startswith(_STAGE):
        raise ValueError(f"{section[:40]!r} is no section")
    return int(section.removeprefix(_STAGE))


def stage_file(stage: int) -> str:
    """The file of a stage in a checkpoint."""
    return f"{_STAGE}{stage}.safetensors"
