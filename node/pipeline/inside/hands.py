"""The first process's side of an island's other processes, the hands: how they are started, told and watched."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from ....proto.errors import RunFailed
from ....proto.process import python
from . import carry
from .meeting import meeting_place, remove
from .words import ERRORS, Words, described, hear, receive, say

log = logging.getLogger("farflung.island")

GRACE_SECONDS = 20.0
"""Seconds from a hand's end to the end of the node's process, unless the trainer notices earlier: it may hang in a
collective that has lost a member."""


@dataclass
class _Hand:
    """The first process's record of a hand."""

    rank: int
    device: torch.device
    process: subprocess.Popen[bytes]
    connection: Connection


class Hands:
    """The hands of an island. Every call may raise RunFailed when one has ended: the node then ends too."""

    def __init__(self, devices: list[torch.device]) -> None:
        self.devices, self.ranks = devices, len(devices)
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._lost = ""
        self._asked: set[int] = set()
        self._kept_answers: dict[int, Words] = {}
        self._place, self._file = meeting_place()
        """The path and the descriptor of the file by which the ranks find each other."""
        self._hands: list[_Hand] = []

    @property
    def device(self) -> torch.device:
        """The first process's device."""
        return self.devices[0]

    def check(self) -> None:
        """RunFailed when a hand has ended."""
        if self._lost:
            raise self._failed()

    def _start(self, rank: int, environment: dict[str, str]) -> None:
        ours, theirs = Pipe()
        words = [theirs.fileno(), self.devices[rank], rank, self.ranks, self._place]
        # A session of its own: the terminal's Ctrl-C reaches only the first process.
        process = subprocess.Popen(
            python.module("farflung.node.pipeline.island_worker", *map(str, words)),
            pass_fds=[theirs.fileno(), self._file],
            stdin=subprocess.DEVNULL,
            stdout=2,  # stdout is for events; output of imported modules goes to stderr
            env=environment,
            start_new_session=True,
        )
        theirs.close()
        hand = _Hand(rank, self.devices[rank], process, ours)
        self._hands.append(hand)
        threading.Thread(target=self._watch, args=(hand,), name=f"hand-{rank}", daemon=True).start()

    def _end(self) -> bool:
        """End the hands. Returns whether they had not been ended before."""
        if self._closing.is_set():
            return False
        self._closing.set()
        for hand in self._hands:
            hand.connection.close()
        for hand in self._hands:
            try:
                hand.process.wait(5.0)
            except subprocess.TimeoutExpired:
                hand.process.kill()
                hand.process.wait()
        remove(self._place)  # its descriptor stays open, see `meeting_place`
        return True

    # ---- orders and answers ----------------------------------------------------------------

    def _tell(self, do: str, **words: Any) -> None:
        for hand in self._hands:
            self.order(hand.rank, do, **words)

    def _answers(self) -> list[Words]:
        return self.answers(range(1, self.ranks))

    def tell(self, do: str, **words: Any) -> None:
        """Send all hands an order, and wait until they have obeyed."""
        self._tell(do, **words)
        self._answers()

    def ask(self, rank: int, do: str, **words: Any) -> None:
        """Send a hand an order whose answer is read by ``answer_of``."""
        self.order(rank, do, **words)
        self._asked.add(rank)

    def answer_of(self, rank: int) -> Words:
        """The answer to the last ``ask``. Raises what `answers` does."""
        return self.answers_of([rank])[rank]

    def answers_of(self, ranks: Iterable[int]) -> dict[int, Words]:
        """The answer of each of these ranks to its last ``ask``. When all have answered, raises what `answers` does."""
        ranks = list(ranks)
        for rank in ranks:
            self._settle(rank)
        found = {rank: self._kept_answers.pop(rank) for rank in ranks}
        self._complain(found.values())
        return found

    def _settle(self, rank: int) -> None:
        """Before another order: read an answer that is still to come."""
        if rank in self._asked:
            self._asked.discard(rank)
            (self._kept_answers[rank],) = self._hear([rank])

    def order(self, rank: int, do: str, *tensors: Tensor, **words: Any) -> None:
        """Send a hand an order and its tensors."""
        self._settle(rank)
        with self._together():
            say(self._hands[rank - 1].connection, {"do": do, "tensors": [described(one) for one in tensors], **words})
            for one in tensors:
                carry.send(one, rank)

    def answers(self, ranks: Iterable[int]) -> list[Words]:
        """The answers of the hands ``ranks``; an answer's tensor is its ``value``.

        Raises:
            RuntimeError: some of them failed; OutOfMemoryError if a device's memory was too small, CodecError if what
                it was to encode was not finite.
        """
        found = self._hear(ranks)
        self._complain(found)
        return found

    def _hear(self, ranks: Iterable[int]) -> list[Words]:
        found = []
        with self._together():
            for rank in ranks:
                words = hear(self._hands[rank - 1].connection)
                if "tensor" in words:
                    words["value"] = receive(words["tensor"], self.device, rank)
                found.append({"rank": rank, **words})
        return found

    def _complain(self, answers: Iterable[Words]) -> None:
        """Raise the errors in ``answers``, all in one: of the first kind in `ERRORS` that is among them."""
        failed = [words for words in answers if "error" in words]
        for kind, raised in ERRORS.items():
            if any(words["kind"] == kind for words in failed):
                said = (f"on {self.devices[one['rank']]} of the island: {one['error']}" for one in failed)
                raise raised("; ".join(said))

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Turn errors of communication in this context into RunFailed: a hand has ended."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except (OSError, EOFError, RuntimeError) as problem:
            self._ended.wait(GRACE_SECONDS / 4)  # a connection ends before the process that held it
            raise self._failed(f"a process of this node's island does not answer: {problem}") from problem

    def _failed(self, otherwise: str = "") -> RunFailed:
        return RunFailed(self._lost or otherwise, "see its last lines above; `farflung join` again")

    def _watch(self, hand: _Hand) -> None:
        status = hand.process.wait()
        if self._closing.is_set():
            return
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
        self._lost = f"process {hand.rank} of this node's island ({hand.device}) {how}, so the node ends"
        self._ended.set()
        if not self._closing.wait(GRACE_SECONDS):
            log.critical(self._lost)
            remove(self._place)
            os._exit(RunFailed.status)
