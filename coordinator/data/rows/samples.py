"""Writes samples that are whole rows, each of which counts once, and holds some out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ....job.data.marks import MARKED
from ....job.schema import Job
from ....proto.errors import JobError
from ....proto.process.progress import Meter, Tell
from ..data import TokenFile, counts_path, split, write_rows
from ..files.sources import text_files

_BLOCK = 4096  # rows written at once


def write_samples(
    job: Job,
    samples: Callable[[Sequence[str]], Iterable[npt.NDArray[Any]]],
    context: int,
    folder: Path,
    tell: Tell,
    room: int,
) -> TokenFile:
    """Write FOLDER/<sha256> of the rows that ``samples`` makes of files by their names, uint32 [context + 1] each, and
    FOLDER/<sha256>.counts, which says that each row counts once. JobError: no row, or more than ``room`` bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    meter = Meter("tokenising", "tokens", tell)
    key = job.data.source()[0]
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".tokens-") as spool:

        def read(patterns: Sequence[str]) -> int:
            count = 0
            for row in samples([source.name for source in text_files(key, patterns)]):
                spool.write(row.astype("<u4").data)
                count += 1
                meter.add(context)
                if spool.tell() > room:
                    raise JobError(
                        f"data.{key}: more samples than the {room / 1e9:.3g} GB that may be kept here",
                        "raise data.cache_gb, make room, or write a smaller model.context",
                    )
            if not count:
                raise JobError(f"data.{key}: no row to learn in {', '.join(patterns)}", "look into the files")
            return count

        whole = read(job.data.source()[1])
        if job.data.held_out():
            held = np.arange(whole, whole + read(job.data.held_out()))
            kept = np.arange(whole)
        else:
            assert isinstance(job.data.validation, float)
            held, kept = split(whole, job.data.validation)
        spool.flush()
        rows = np.memmap(spool.name, "<u4", mode="r").reshape(-1, context + 1)
        order = np.concatenate([kept, held])
        path, digest = write_rows(folder, (rows[order[at : at + _BLOCK]] for at in range(0, len(order), _BLOCK)))
    counts_path(path).write_bytes(np.ones(len(order), "<u4").tobytes())
    return TokenFile(path, digest, MARKED, context, len(kept), len(held), packed=True, trained=len(kept))
