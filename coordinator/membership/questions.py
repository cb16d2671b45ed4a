"""Questions for a plan, and how the machine treats an event that it can't decide without the answer.

Such an event changes only ``State.asking`` and has one effect, ``Ask``. The code that performs ``Ask`` has the plan
made, holds back all events meanwhile, and gives ``Planned`` to the machine, which then decides the waiting event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...scheduler.errors import PlanError
from ...scheduler.plans import Plan


@dataclass(frozen=True)
class Question:
    """A request for a plan of ``names``, near the ``current`` plan; ``broken``: pairs of nodes that can't reach each
    other."""

    names: tuple[str, ...]
    current: Plan | None
    broken: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Answer:
    """The answer to a Question. ``plan`` None: no plan is possible, and ``error`` says why."""

    plan: Plan | None
    error: str = ""


Answers = Sequence[tuple[Question, Answer]]


Planner = Callable[[tuple[str, ...], Plan | None, frozenset[tuple[str, str]]], Plan]
"""``planner(names, current plan, pairs that cannot reach each other)``; PlanError says why there is no plan."""


def answered(planner: Planner, question: Question) -> Answer:
    """The answer of a planner that returns at once."""
    try:
        return Answer(planner(question.names, question.current, question.broken))
    except PlanError as error:
        return Answer(None, str(error))


class Unanswered(Exception):
    """The machine needs a plan that was not made yet."""

    def __init__(self, question: Question) -> None:
        super().__init__(f"a plan of {len(question.names)} nodes is wanted")
        self.question = question


def answer_to(question: Question, answers: Answers) -> Plan:
    """The plan. PlanError: there is none. Unanswered: the planner has not made it yet."""
    for asked, answer in answers:
        if asked == question:
            if answer.plan is None:
                raise PlanError(answer.error)
            return answer.plan
    raise Unanswered(question)
