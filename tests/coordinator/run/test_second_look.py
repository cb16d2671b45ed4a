"""A longer search follows where a second is not enough, and changes a view only where it finds something better."""

from dataclasses import replace

import pytest
from membership_script import Script

from farflung.coordinator.membership.questions import Answer, Question
from farflung.coordinator.membership.state import Known
from farflung.coordinator.run.deciding import Deciding
from farflung.coordinator.run.effects.second_look import AFTER_S, FEW, SecondLook
from farflung.scheduler import Plan

NEAR = Plan((("a", "b"),), ((0, 1), (2, 3)), (4,), spares={"c": "left", "d": "left"})
BETTER = Plan((("a", "b"), ("c", "d")), ((0, 1), (2, 3)), (2, 2))


class Beside:
    """A second look with answers of its own; ``asked``: questions of the long search, ``told``: why to plan anew."""

    def __init__(self, plan: Plan | None) -> None:
        self.plan, self.now, self.asked, self.told = plan, 0.0, [], []
        self.question: Question | None = Question(("a", "b", "c", "d"), NEAR, frozenset())
        self.answers = {}
        self.look = SecondLook(lambda: self.question, self.answer, self.replan, lambda: self.now)

    async def answer(self, question: Question) -> Answer:
        self.asked.append(question)
        return Answer(self.plan)

    def replan(self, why: str) -> None:
        self.told.append(why)
        assert self.question is not None
        self.answers[why] = self.look.found(self.question)


async def looked(beside: Beside) -> None:
    assert not beside.look.is_due(NEAR)
    beside.now += AFTER_S - 1
    assert not beside.look.is_due(NEAR)
    beside.now += 1
    assert beside.look.is_due(NEAR)
    await beside.look.look()
    beside.now += 10 * AFTER_S
    assert not beside.look.is_due(NEAR), "once for a plan"


async def test_a_better_plan_answers_the_next_question_at_once() -> None:
    beside = Beside(BETTER)
    await looked(beside)
    assert len(beside.asked) == len(beside.told) == 1 and "better plan" in beside.told[0]
    assert beside.answers[beside.told[0]] == Answer(BETTER)
    assert beside.look.found(beside.asked[0]) is None, "and none that comes later"


@pytest.mark.parametrize("plan", [NEAR, replace(NEAR, why="another reason"), None])
async def test_the_same_plan_or_none_changes_nothing(plan: Plan | None) -> None:
    beside = Beside(plan)
    await looked(beside)
    assert beside.asked and not beside.told


async def test_what_was_found_for_others_is_dropped() -> None:
    beside = Beside(BETTER)

    async def meanwhile(question: Question) -> Answer:
        beside.question = replace(question, names=("a", "b", "c"))
        return Answer(BETTER)

    beside.look._answer = meanwhile
    await looked(beside)
    assert not beside.told


async def test_nothing_is_asked_where_the_machine_asks_nothing() -> None:
    beside = Beside(BETTER)
    beside.question = None
    await looked(beside)
    assert not beside.asked and not beside.told


def test_few_nodes_that_all_train_are_not_looked_at_again() -> None:
    beside = Beside(BETTER)
    beside.look.is_due(BETTER)
    beside.now += 10 * AFTER_S
    assert not beside.look.is_due(BETTER)
    many = Plan(tuple((f"n{at}",) for at in range(FEW + 1)), ((0, 3),), (1,) * (FEW + 1))
    beside.look.is_due(many)
    beside.now += AFTER_S
    assert beside.look.is_due(many)


def test_the_question_is_the_one_that_planning_anew_asks() -> None:
    script = Script().started()
    deciding = Deciding(
        script.state, follow=True, known=Known(), fetch_s=lambda name, plan: 0.0, clock=lambda: script.now,
        leads=lambda: True, answer=lambda question: None, moved=lambda *told: None,
    )  # fmt: skip
    question = deciding.would_ask()
    assert question is not None and set(question.names) == set("abcd")
    assert question.current == script.state.view.plan and deciding.state is script.state
