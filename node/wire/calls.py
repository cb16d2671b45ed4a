"""Calls of the trainer that the I/O process answers: numbered, and the answers may come in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...proto.errors import FarflungError, Parted, RunFailed
from ..ipc.pipe import PARTED_STATUS, To, TrainerEnd


class Reply(NamedTuple):
    """An answer. ``problem``: empty, or the error's sentence; ``status``: the error's exit status."""

    problem: str
    hint: str
    status: int
    payload: npt.NDArray[np.uint8]


class Calls:
    """The calls that have not been answered."""

    def __init__(self, end: TrainerEnd, wait: Callable[[], None]) -> None:
        """``wait``: waits up to a second for messages of the I/O process and handles them."""
        self.replies: dict[int, Reply] = {}
        self.unwanted: set[int] = set()
        """Calls whose answer is to be dropped."""
        self._end, self._wait, self._last = end, wait, 0

    def ask(self, method: str, *arguments: Any) -> int:
        """Begin a call. Returns its number."""
        self._last += 1
        self._end.write(int(To.CALL), self._last, method, list(arguments))
        return self._last

    def replied(self, number: int, reply: Reply) -> None:
        """An answer has come."""
        if number in self.unwanted:
            self.unwanted.discard(number)
        else:
            self.replies[number] = reply

    def answer(self, number: int) -> bytes:
        """Waits for an answer. FarflungError, RunFailed or Parted, as the I/O process says."""
        while number not in self.replies:
            self._wait()
        problem, hint, status, payload = self.replies.pop(number)
        if problem:
            if status == PARTED_STATUS:
                raise Parted(problem, hint)
            raise (RunFailed if status == RunFailed.status else FarflungError)(problem, hint, status)
        return bytes(payload)

    def later(
        self, method: str, *arguments: Any, meanwhile: Callable[[], Callable[[], None] | None]
    ) -> Callable[[], bytes]:
        """Ask now. Returns a function that waits for the answer. ``meanwhile()``: the function to call repeatedly until
        the answer is here, or None. If that function raises, the answer will be dropped."""
        number = self.ask(method, *arguments)

        def answer() -> bytes:
            try:
                while number not in self.replies and (work := meanwhile()) is not None:
                    work()
            except BaseException:
                self.unwanted.add(number)
                raise
            return self.answer(number)

        return answer
