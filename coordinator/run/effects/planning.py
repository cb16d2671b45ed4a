"""Finds the plans that the machine asks for, in the background."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ...membership import signals as s
from ...membership.members import Planner
from ...membership.questions import Answer, Question, answered
from ...planning.measured import Measured
from ...planning.search_process import BESIDE
from ...planning.searches import COMMAND, Searches
from ..context import RunContext
from ..deciding import Deciding
from .second_look import LONG_S, SecondLook

Begin = Callable[..., None]
"""``begin(coroutine)`` starts a background task."""


class Planning:
    """Searches in a separate process, unless a ``planner`` that answers at once is given.

    ``deciding`` is set later: it asks this object for plans, and this object tells it to plan again.
    """

    deciding: Deciding

    def __init__(self, context: RunContext, measured: Measured, planner: Planner | None) -> None:
        self._context, self._measured, self.planner = context, measured, planner
        self.searches = Searches()
        self._second_look = SecondLook(
            lambda: self.deciding.would_ask(),
            self._search_long,
            lambda why: self.deciding.feed(s.Replan(why)),
            context.clock,
        )

    def prepare(self) -> None:
        """Start the search process: a plan will be asked for soon."""
        if self.planner is None:
            self.searches.prepare()

    async def answer(self, question: Question) -> Answer:
        """A plan made with the present measurements."""
        if self.planner is not None:
            return answered(self.planner, question)
        if (found := self._second_look.found(question)) is not None:
            return found
        return await self.searches.answer(self._measured.search(question, self._present, self._context.clock()))

    def tick(self, begin: Begin) -> None:
        """While a view trains: store new measurements of links, and replan where they may change the plan."""
        news, links = self._measured.news(self._context.clock())
        for pair, found in links.items():
            self._context.store.links.put(*pair, *found, time.time())
        view = self.deciding.state.view
        if news:
            self.deciding.feed(s.Replan(news))
        elif self.planner is None and view is not None and self._second_look.is_due(view.plan):
            begin(self._second_look.look())

    def close(self) -> None:
        """End the process."""
        self.searches.close()

    @property
    def _present(self) -> list[str]:
        return list(self.deciding.state.nodes)

    async def _search_long(self, question: Question) -> Answer:
        """The same search with more time, in another process."""
        asked = self._measured.search(question, self._present, self._context.clock())
        searches = Searches([*COMMAND, BESIDE])
        try:
            return await searches.answer(replace(asked, seconds=LONG_S))
        finally:
            searches.close()
