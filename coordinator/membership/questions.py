"""Questions for a plan, and what the machine does with an event that cannot be decided without the answer.

Such an event changes nothing but ``State.asking``, and has one effect, ``Ask``. Whoever performs it has the plan worked
out, puts what happens meanwhile aside, and gives ``Planned`` to the machine, which then decides the event that waited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...scheduler.errors import PlanError
from ...scheduler.plans import Plan


@dataclass(frozen=True)
class Question:
    """A plan of ``names``, near the ``current`` one; ``broken``: pairs that cannot reach each other."""

    names: tuple[str, ...]
    current: Plan | None
    broken: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Answer:
    """``plan`` None: there is none, and ``error`` says why."""

    plan: Plan | None
    error: str = ""


Answers = Sequence[tuple[Question, Answer]]


Planner = Callable[[tuple[str, ...], Plan | None, frozenset[tuple[str, str]]], Plan]
"""``planner(names, current plan, pairs that cannot reach each other)``; PlanError says why there is no plan."""


def answered(planner: Planner, question: Question) -> Answer:
    """What a planner that answers at once says."""
    try:
        return Answer(planner(question.names, question.current, question.broken))
    except PlanError as error:
        return Answer(None, str(error))


class Unanswered(Exception):
    """The machine needs a plan that the planner has not made yet."""

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
