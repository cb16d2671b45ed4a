"""Plans worked out beside the event loop, for a machine that asks for them as if they were there.

The membership machine calls its planner and gets a plan. A search takes up to seconds, in which the event loop has a
thousand heartbeats to take. So the planner of a running coordinator raises ``Unanswered`` for a question that is new.
As the machine is pure, the event that made it ask has changed nothing: the shell (run.py) puts that event and all later
ones aside, in order, has the question worked out in a thread, and gives the event to the machine again, which now gets
the answer. What the machine decides is what it would have decided had everybody waited.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ...scheduler.errors import PlanError
from ...scheduler.plans import Plan

log = logging.getLogger(__name__)

Work = Callable[[], Plan]
"""Works one question out, from what was known when it was asked: nothing that the event loop changes meanwhile."""
Questions = Callable[[tuple[str, ...], Plan | None, frozenset[tuple[str, str]]], Work]
_Key = tuple[tuple[str, ...], Plan | None, frozenset[tuple[str, str]]]


class Unanswered(Exception):
    """A plan is wanted that nobody has worked out yet."""

    def __init__(self, key: _Key, work: Work) -> None:
        super().__init__("a plan is being worked out")
        self.key, self.work = key, work


class PlansBeside:
    """A planner (members.Planner) whose answers are worked out by ``answer``. One thread works, one question a time."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._known: list[tuple[_Key, Plan | PlanError]] = []
        self._thread: ThreadPoolExecutor | None = None

    def __call__(self, names: tuple[str, ...], current: Plan | None, broken: frozenset[tuple[str, str]]) -> Plan:
        """The plan. PlanError: there is none, and why. Unanswered: not yet."""
        key = (names, current, broken)
        for asked, found in self._known:
            if asked == key:
                if isinstance(found, PlanError):
                    raise found
                return found
        raise Unanswered(key, self._questions(*key))

    async def answer(self, question: Unanswered) -> None:
        """Work a question out. An error of the search is the answer that there is no plan, and said in the log."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "plans")
        found: Plan | PlanError
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, question.work)
        except PlanError as error:
            found = error
        except Exception as error:
            log.exception("a plan could not be worked out")
            found = PlanError(f"the search for a plan failed: {error!r}")
        self._known.append((question.key, found))

    def forget(self) -> None:
        """What was asked for is decided: the next time the same question may have another answer."""
        self._known.clear()

    def close(self) -> None:
        """Nobody asks any more."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
