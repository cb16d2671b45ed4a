"""A mixture of data: every source is tokenised by itself, and one file holds the samples of all, source by source.

The order of samples (`sampling.Mixture`), not the file, decides how often a source is drawn, so no sample is stored
twice whatever the weights are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...job.data.marks import FIRST, MARKED, TRAINED, trained_in
from ...job.data.sampling import Mixture
from ...job.data.tokenizer import Tokenizer
from ...job.schema import Job
from ...proto.errors import JobError
from ...proto.process.progress import Tell
from .corpus.index import SUFFIX
from .data import TokenFile, counts_path, write_rows
from .making import maker_of

_BLOCK = 4096  # rows in a block


def tokenise_mix(job: Job, tokenizer: Tokenizer, context: int, folder: Path, tell: Tell, room: int) -> TokenFile:
    """Read every source of ``data.mix``, write FOLDER/<sha256> of all rows. JobError: what is wrong with a source."""
    parts: list[TokenFile] = []
    for number, alone in enumerate(job.data.parts(), 1):
        make = maker_of(alone)
        part = make(job.model_copy(update={"data": alone}), tokenizer, context, folder, tell, room)
        if part.path.suffix == SUFFIX:
            raise JobError(
                f"data.mix: with source {number} the tokens are more than the {room / 1e9:.3g} GB that may be kept",
                "raise data.cache_gb, or make room: a mixture is kept whole",
            )
        room -= part.path.stat().st_size
        parts.append(part)
    joined = join(parts, context, folder)
    mixture = Mixture.of([part.samples for part in parts], [one.weight for one in job.data.mix or ()])
    _tell_shares(job, mixture, tell)
    return replace(joined, mix=mixture.parts)


def join(parts: Sequence[TokenFile], context: int, folder: Path) -> TokenFile:
    """The rows of all parts in one file, FOLDER/<sha256>, training samples first; the parts' own files are deleted."""
    marked = any(part.dtype == MARKED for part in parts)
    counts: list[npt.NDArray[np.uint32]] = []

    def rows() -> Iterator[npt.NDArray[Any]]:
        for held in (False, True):
            for part in parts:
                for block in _rows(part, held):
                    found = _marked(block) if marked and part.dtype != MARKED else block
                    if marked:
                        counts.append(trained_in(found))
                    yield found

    path, digest = write_rows(folder, rows())
    samples, held = sum(part.samples for part in parts), sum(part.validation_samples for part in parts)
    trained = 0
    if marked:
        counted = np.concatenate(counts)
        counts_path(path).write_bytes(counted.astype("<u4").tobytes())
        trained = int(counted[:samples].sum())
    for part in parts:
        if part.path != path:
            for one in (part.path, counts_path(part.path)):
                with contextlib.suppress(FileNotFoundError):
                    one.unlink()
    dtype, packed = (MARKED, any(part.packed for part in parts)) if marked else (parts[0].dtype, False)
    return TokenFile(path, digest, dtype, context, samples, held, packed=packed, trained=trained)


def _rows(part: TokenFile, held: bool) -> Iterator[npt.NDArray[Any]]:
    """The rows of a file: the held-out ones if ``held``, else the others."""
    kind = "<u4" if part.dtype == MARKED else np.dtype(part.dtype).newbyteorder("<")
    count = part.samples + part.validation_samples
    whole = np.memmap(part.path, kind, mode="r", shape=(count, part.context + 1))
    found = whole[part.samples :] if held else whole[: part.samples]
    for at in range(0, len(found), _BLOCK):
        yield found[at : at + _BLOCK]


def _marked(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Plain rows as marked rows: each is one document, and all its tokens train."""
    found = rows.astype(np.uint32) | TRAINED
    found[:, 0] = rows[:, 0].astype(np.uint32) | FIRST
    return found


def _tell_shares(job: Job, mixture: Mixture, tell: Tell) -> None:
    import time

    def said(samples: int, share: float) -> str:
        return f"{share:.3g} of {samples:,} samples"

    shares = [said(samples, draws / mixture.block) for samples, draws in mixture.parts]
    names = [", ".join(alone.source()[1]) for alone in job.data.parts()]
    each = "; ".join(f"{name}: {share}" for name, share in zip(names, shares, strict=True))
    tell({"event": "notice", "time": time.time(), "message": f"data.mix: {each}"})
