"""numba's cache of compiled loops, kept for the text of all loops: one that has another's code inlined is compiled anew
when that other changes. numba by itself looks only at the file that a loop is in."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile

LOOPS = Path(__file__).parent / "loops"


@lru_cache(maxsize=8)
def text_of(folder: Path) -> bytes:
    """A hash of the files of a folder and of those of all loops of ours, which it may have inlined."""
    found = hashlib.sha256()
    for file in sorted({*folder.glob("*.py"), *LOOPS.rglob("*.py")}):
        found.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return found.digest()


class Kept(FunctionCache):  # type: ignore[misc,unused-ignore]
    """The cache of one loop."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        text = text_of(Path(function.__code__.co_filename).parent)
        self._cache_file = IndexDataCacheFile(
            cache_path=self._cache_path, filename_base=self._impl.filename_base, source_stamp=text
        )
