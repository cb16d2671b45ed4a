"""Which data a node trains on and where it reads them: its owner's files, tokens on its disk, or pieces as needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...job.data.facts import Facts
from ...job.schema import Job
from ...proto.errors import FarflungError
from ..models.weights.fetch import Fetch
from .dataset import BuildData, Dataset, OwnData, dataset_of, disk_for_tokens, tokens_size
from .streamed import FetchLater, StreamedTokens

Emit = Callable[[dict[str, Any]], None]
OpenOwnData = Callable[[Job, Facts, Fetch, Path, Emit], Dataset]
"""``open_own_data(job, facts, fetch, cache, emit)``: a node's private text as samples; see cli/own_data.py."""


class OwnDataUnusable(FarflungError):
    """This node's private files cannot be used. The message is not sent to anybody, because it may quote the files."""


class DataSource:
    """Opens the data of one node in one run."""

    def __init__(self, job: Job, facts: Facts, fetch: Fetch, cache: Path, allow_code: Sequence[str] = ()) -> None:
        self._job, self._facts, self._fetch, self._cache, self._allow_code = job, facts, fetch, cache, allow_code

    def private(self, open_own_data: OpenOwnData | None, emit: Emit) -> Dataset | None:
        """This node's private data, read before it has a place in the run; None where the coordinator has the data.

        Raises:
            FarflungError: the run's nodes have data of their own, and this one was given none.
            OwnDataUnusable: it was given some that cannot be read.
        """
        job, facts = self._job, self._facts
        if job.data.where == "coordinator":
            return None
        if job.data.build is not None:
            return OwnData(BuildData(job, None, self._allow_code), facts)
        if open_own_data is None:
            kind, patterns = job.data.source()
            raise FarflungError(
                "every node of this run trains on data of its own, and this one was given none",
                f"join with --data FOLDER: it reads {kind} files, {', '.join(patterns)}, below that folder and sends "
                "them to nobody",
            )
        try:
            return OwnData(open_own_data(job, facts, self._fetch, self._cache, emit), facts)
        except FarflungError as problem:
            raise OwnDataUnusable(problem.message, problem.hint) from problem

    def shared(self, fetch_later: FetchLater, pieces: Path, limit: int, say: Callable[[str, str], None]) -> Dataset:
        """The run's tokens: whole on this node's disk, or, if the disk has no room, in pieces that are fetched when
        they are needed; the most recently used ones are kept in the folder ``pieces``.

        ``limit``: bytes that the owner allows on the disk; 0: no limit. ``say(event, message)``: shows a notice or a
        warning to the person at the node.
        """
        size = tokens_size(self._facts)
        room = disk_for_tokens(self._job, self._facts, self._cache, pieces, limit)
        if size <= room:
            return dataset_of(self._job, self._facts, self._fetch, self._cache, self._allow_code)
        say(
            "notice",
            f"the training data have {size / 1e9:.3g} GB: this node keeps what it used last, {room / 1e9:.3g} GB",
        )
        return StreamedTokens(self._facts, fetch_later, pieces, room, lambda message: say("warning", message))
