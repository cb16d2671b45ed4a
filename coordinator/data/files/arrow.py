"""Arrow files, as ``Dataset.save_to_disk`` of the library `datasets` writes them: in Arrow's stream or file format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from ....proto.errors import JobError

_FILE, _STREAM = b"ARROW1", b"\xff\xff\xff\xff"


def is_arrow(start: bytes) -> bool:
    """Whether a file with these first bytes is an Arrow file."""
    return start.startswith((_FILE, _STREAM))


def batches(name: str, file: BinaryIO, key: str) -> Iterator[Any]:
    """The record batches of a file, one in memory at a time; ``key``: of ``[data]``, for messages.

    Raises:
        JobError: pyarrow is not installed, or the file is truncated or no Arrow file.
    """
    try:
        from pyarrow import ArrowException, ipc
    except ImportError:
        raise JobError(f"data.{key}: arrow needs the package pyarrow", "pip install 'farflung[parquet]'") from None
    start = file.read(len(_FILE))
    file.seek(0)
    try:
        if start.startswith(_FILE):
            reader = ipc.open_file(file)
            yield from map(reader.get_batch, range(reader.num_record_batches))
        else:
            yield from ipc.open_stream(file)
    except (ArrowException, OSError) as error:
        raise JobError(
            f"{name}: not a whole file of arrow: {error}", "save the dataset again with save_to_disk"
        ) from None
