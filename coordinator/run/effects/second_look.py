"""A longer search for each view's plan while the view trains: a view begins at once with the plan found in one second.

The search answers the question that the machine would ask now; meanwhile the machine decides events as usual. If it
finds another plan than the one in force, the machine is told to plan again, and this plan is its answer.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from ....scheduler.plans import Plan
from ...membership.questions import Answer, Question

AFTER_S = 30.0
"""Seconds that a view trains before the longer search begins: by then training has shown links and speeds."""
LONG_S = 10.0
FEW = 12
"""With at most this many nodes one second of search finds the best plan, so only plans with spares are searched
again."""


class SecondLook:
    """``question()``: the question that the machine would ask if it planned now, None: no question. ``answer``: a
    search of LONG_S. ``replan(why)``: have the machine plan anew."""

    def __init__(
        self,
        question: Callable[[], Question | None],
        answer: Callable[[Question], Awaitable[Answer]],
        replan: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._question, self._answer, self._replan, self._clock = question, answer, replan, clock
        self._plan: Plan | None = None
        self._due = math.inf
        self._looks = False
        self._found: tuple[Question, Answer] | None = None

    def is_due(self, plan: Plan) -> bool:
        """Whether to start the longer search now; called at every tick. ``plan``: the one in force."""
        now = self._clock()
        if plan is not self._plan:
            self._plan, self._found = plan, None
            self._due = now + AFTER_S if plan.spares or len(plan.nodes) > FEW else math.inf
        return now >= self._due and not self._looks

    async def look(self) -> None:
        """Search once for each plan, and replan if a better one was found."""
        self._due, self._looks = math.inf, True
        try:
            question = self._question()
            answer = None if question is None else await self._answer(question)
        finally:
            self._looks = False
        if question is None or question.current is None or answer is None or answer.plan is None:
            return
        if not answer.plan.same_placement(question.current) and question == self._question():
            self._found = question, answer
            self._replan(f"a search of {LONG_S:g} s found a better plan")

    def found(self, question: Question) -> Answer | None:
        """The result of the longer search, returned once, if it answers this question."""
        if self._found is None or self._found[0] != question:
            return None
        (_, answer), self._found = self._found, None
        return answer
