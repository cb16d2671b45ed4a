"""numba's cache of compiled loops, with a hash of the source of all loops: a loop into which another one is inlined
must be compiled again when that one changes. numba itself checks only the file of the loop."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile

LOOPS = Path(__file__).parent / "loops"


@lru_cache(maxsize=8)
def text_of(folder: Path) -> bytes:
    """A hash of the files of a folder, and of all our loops' files, which may be inlined."""
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
