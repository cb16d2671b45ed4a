"""Training data by sample id: token windows that the coordinator made, or a person's own tensors.

Training samples have the ids 0 .. samples - 1, validation samples the ids after them. A sample is the same on every
node and in every view.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...job.data.facts import Facts
from ...job.data.labelled import LAYOUT, kinds_of, texts_of
from ...job.data.marks import MARKED, places_of, targets_of, tokens_of
from ...job.schema import Job
from ...proto.errors import FarflungError
from ...proto.process.files import file_digest
from ...proto.words.border import below
from ..device.disk_cache import Held, make_room
from ..models.builds import build_data
from ..models.weights.fetch import Fetch

TOKENS = "data/tokens"
COUNTS = "data/counts"
PIECE = 16 * 2**20  # bytes asked for at once
DTYPES: dict[str, np.dtype[Any]] = {
    "uint8": np.dtype("u1"),
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
    MARKED: np.dtype("<u4"),
}


class Dataset(ABC):
    """Samples by id."""

    samples: int
    validation_samples: int
    apart = True
    """Whether another thread may make batches of training samples while this one makes others."""

    @abstractmethod
    def batch(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(inputs, targets) of the samples ``ids``, in that order, on the CPU.

        Of token windows: both int64 [b, context]. Of a ``build``: as the function gave them, rows ``ids``.
        """

    def placed(self, ids: Sequence[int]) -> tuple[Tensor, Tensor, Tensor | None]:
        """``batch`` with a third tensor, int64 [b, context]: each token's index in its document where a sample has
        several documents (which must not attend to each other), each token's kind where samples are texts with a class
        (`job.data.labelled.kinds_of`), else None."""
        return (*self.batch(ids), None)

    def trained(self, ids: Sequence[int]) -> int | None:
        """How many targets of these samples count in the loss. None: all of them."""
        return None

    def ahead(self, ids: Sequence[int]) -> None:
        """Announce samples that will be asked for soon, so that missing ones are fetched during other computation."""
        return None

    def announce(self, batches: Sequence[Sequence[int]]) -> None:
        """Announce the arguments of the next calls of ``placed``, so that they may be made ahead (loader.py)."""
        return None


class TokenRows(Dataset):
    """Rows of ``context + 1`` tokens, plain or with the marks of job/data/marks.py, as the facts say."""

    def __init__(self, facts: Facts, fetch: Fetch) -> None:
        self.samples = facts.samples
        self.validation_samples = facts.validation_samples
        self.context = facts.context
        self._marked, self._packed = facts.token_dtype == MARKED, facts.packed
        self._labelled = facts.layout == LAYOUT
        self._counts = _counts(facts, fetch) if self._marked else None

    @abstractmethod
    def rows(self, ids: Sequence[int]) -> npt.NDArray[Any]:
        """The rows of these samples as they are stored, [b, context + 1]."""

    def batch(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.placed(ids)[:2]

    def placed(self, ids: Sequence[int]) -> tuple[Tensor, Tensor, Tensor | None]:
        rows = self.rows(ids)
        if not self._marked:
            tokens = torch.from_numpy(rows.astype(np.int64))
            return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), None
        if self._labelled:
            texts, kinds = torch.from_numpy(texts_of(rows)), torch.from_numpy(kinds_of(rows))
            return texts, torch.from_numpy(targets_of(rows)), kinds
        places = torch.from_numpy(places_of(rows)) if self._packed else None
        return torch.from_numpy(tokens_of(rows[:, :-1])), torch.from_numpy(targets_of(rows)), places

    def trained(self, ids: Sequence[int]) -> int | None:
        return None if self._counts is None else int(self._counts[np.asarray(ids, np.int64)].sum())


class Tokens(TokenRows):
    """Windows of ``context + 1`` tokens: the artifact "data/tokens", a matrix with one window a row.

    It is fetched once and kept under ``cache`` by its digest; nodes of one machine may share the folder. Without
    ``cache`` it is held in memory. Raises FarflungError when the bytes are not those that the facts name.
    """

    def __init__(self, facts: Facts, fetch: Fetch, cache: Path | None = None) -> None:
        dtype = dtype_of(facts)
        super().__init__(facts, fetch)
        shape = (self.samples + self.validation_samples, self.context + 1)
        size = shape[0] * shape[1] * dtype.itemsize
        if cache is None:
            data = np.frombuffer(_fetched(fetch, size, facts.tokens_digest), dtype)
            self._rows = data.reshape(shape)
        else:
            path = _cached(fetch, size, facts.tokens_digest, cache)
            self._held = Held(path)
            self._rows = np.memmap(path, dtype, mode="r", shape=shape)

    def rows(self, ids: Sequence[int]) -> npt.NDArray[Any]:
        return self._rows[np.asarray(ids, np.int64)]


class BuildData(Dataset):
    """Samples of a job's ``data.build``; float64 inputs and targets become float32."""

    def __init__(self, job: Job, facts: Facts | None = None, allow_code: Sequence[str] | None = None) -> None:
        training, validation = build_data(job, allow_code)
        self.samples, self.validation_samples = len(training[0]), len(validation[0])
        found = (self.samples, self.validation_samples)
        if facts is not None and found != (facts.samples, facts.validation_samples):
            raise FarflungError(
                f"data.build gives {found[0]} training and {found[1]} validation samples here, but "
                f"{facts.samples} and {facts.validation_samples} at the coordinator",
                hint="make the function give the same data everywhere",
            )
        pairs = zip(training, validation, strict=True)
        self._inputs, self._targets = (_single(torch.cat([one, other])) for one, other in pairs)

    def batch(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = torch.tensor(list(ids), dtype=torch.int64)
        return self._inputs[rows], self._targets[rows]


class OwnData(Dataset):
    """A node's private data (``data.where = "node"``): a run's sample id, modulo the number of the node's own samples.

    The ids of an epoch are a permutation of 0 .. samples - 1, so a node goes through its samples evenly; validation
    ids map to the part that the node holds out. The same id is another sample on another node, or on the same node
    after a restart with other data: the run guarantees only that each id is drawn once an epoch.
    """

    def __init__(self, own: Dataset, facts: Facts) -> None:
        self.samples, self.validation_samples = facts.samples, facts.validation_samples
        self._own, self.apart = own, own.apart
        if facts.validation_samples and not own.validation_samples:
            raise FarflungError("this node's data has no validation sample", "give it more data with --data")

    def batch(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        own = self._own
        return own.batch(
            [
                number % own.samples
                if number < self.samples
                else own.samples + (number - self.samples) % own.validation_samples
                for number in ids
            ]
        )


def dataset_of(
    job: Job, facts: Facts, fetch: Fetch, cache: Path | None = None, allow_code: Sequence[str] | None = None
) -> Dataset:
    """The data of a job: `BuildData` or `Tokens`."""
    return BuildData(job, facts, allow_code) if job.data.build is not None else Tokens(facts, fetch, cache)


def dtype_of(facts: Facts) -> np.dtype[Any]:
    """The dtype that tokens are stored in. FarflungError: one that this version does not know."""
    dtype = DTYPES.get(facts.token_dtype)
    if dtype is None:
        raise FarflungError(f"tokens of type {facts.token_dtype!r} are not known", hint="update this node")
    return dtype


def _counts(facts: Facts, fetch: Fetch) -> npt.NDArray[np.uint32]:
    """How many targets of each row count in the loss, uint32 [samples + validation samples]."""
    rows = facts.samples + facts.validation_samples
    raw = fetch(COUNTS, 0, 4 * rows)
    if len(raw) != 4 * rows or hashlib.sha256(raw).hexdigest() != facts.artifacts.get(COUNTS):
        raise FarflungError(
            "the counts of trained tokens are not those that the coordinator names",
            hint="start the coordinator again: its data are damaged",
        )
    return np.frombuffer(raw, "<u4")


def tokens_size(facts: Facts) -> int:
    """Bytes of the artifact "data/tokens"; 0 where there is none."""
    if not facts.tokens_digest or facts.token_dtype not in DTYPES:
        return 0
    return (facts.samples + facts.validation_samples) * (facts.context + 1) * DTYPES[facts.token_dtype].itemsize


def disk_for_tokens(job: Job, facts: Facts, cache: Path, pieces: Path, limit: int) -> int:
    """Bytes of disk that tokens may take below ``cache`` on a node whose owner allows ``limit`` bytes (0: no limit).
    Removes unused data of other runs to make room; ``pieces`` is the node's own folder of token pieces."""
    asked = int(job.data.cache_gb * 1e9)
    if not limit:
        return asked
    wanted = min(asked, tokens_size(facts))
    return min(asked, make_room(cache, wanted, limit, (below(cache, f"tokens-{facts.tokens_digest}"), pieces)))


def _single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _fetched(fetch: Fetch, size: int, digest: str) -> bytearray:
    data = bytearray()
    while len(data) < size:
        data += _piece(fetch, len(data), min(PIECE, size - len(data)))
    _check(hashlib.sha256(data).hexdigest(), digest)
    return data


def _cached(fetch: Fetch, size: int, digest: str, cache: Path) -> Path:
    """The file of the tokens below ``cache``; fetched if it is missing or incomplete."""
    path = below(cache, f"tokens-{digest}")
    if path.is_file() and path.stat().st_size == size:
        path.touch()  # a file used just now is not removed by another process before `Held` locks it
        with contextlib.closing(Held(path)):
            if file_digest(path) == digest:
                path.touch()
                return path
    cache.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=cache, prefix="tokens-", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file, contextlib.closing(Held(Path(temporary))):
            offset = 0
            while offset < size:
                offset += file.write(_piece(fetch, offset, min(PIECE, size - offset)))
        _check(file_digest(Path(temporary)), digest)
        os.replace(temporary, path)  # atomic: another node of this machine sees the whole file or none
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path


def _piece(fetch: Fetch, offset: int, length: int) -> bytes:
    piece = fetch(TOKENS, offset, length)
    if len(piece) != length:
        raise FarflungError(
            f"the tokens end at byte {offset + len(piece)}, before their {offset + length}",
            hint="start the coordinator again: its data are damaged",
        )
    return piece


def _check(found: str, wanted: str) -> None:
    if found != wanted:
        raise FarflungError(
            f"the tokens have the digest {found[:12]}, not {wanted[:12]} as the coordinator says",
            hint="start the coordinator again: its data are damaged",
        )
