"""Git LFS pointers: the small text files that stand for large ones where Git did not fetch them."""

from __future__ import annotations

from pathlib import Path

START = b"version https://git-lfs.github.com/spec/"
HINT = "fetch the file itself: git lfs install, then git lfs pull, in the repository that the folder is of"


def is_pointer(start: bytes) -> bool:
    """Whether a file with these first bytes is a pointer."""
    return start.startswith(START[: len(start)]) if len(start) in range(8, len(START)) else start.startswith(START)


def pointer_at(path: Path) -> bool:
    """Whether there is a pointer at ``path``. OSError: it cannot be read."""
    with path.open("rb") as file:
        return is_pointer(file.read(len(START)))
