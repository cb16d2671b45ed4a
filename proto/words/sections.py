"""Names of a run's sections and of the files of a checkpoint, shared by nodes and the coordinator."""

from __future__ import annotations

TIED = "tied"
"""The section of an embedding that the first and the last stage share."""
_STAGE = "stage-"


def section_of(stage: int, piece: int | None = None) -> str:
    """The section of a stage's own parameters, or piece number ``piece`` of a stage that is cut into several."""
    return f"{_STAGE}{stage}" if piece is None else f"{_STAGE}{stage}.{piece}"


def stage_of(section: str) -> int:
    """The stage of a section; of ``TIED``, which two stages share, the first. ValueError: there is no such section."""
    if section == TIED:
        return 0
    if not section.startswith(_STAGE):
        raise ValueError(f"{section[:40]!r} is no section")
    return int(section.removeprefix(_STAGE).partition(".")[0])


def piece_of(section: str) -> int:
    """The number of a section among those of its stage; 0: the stage has one."""
    return int(section.partition(".")[2] or 0)


def stages_of(section: str, last: int) -> tuple[int, ...]:
    """The stages whose nodes share a section; ``last``: the number of the last stage."""
    return (0, last) if section == TIED else (stage_of(section),)


def stage_file(stage: int) -> str:
    """The file of a stage in a checkpoint."""
    return f"{_STAGE}{stage}.safetensors"
