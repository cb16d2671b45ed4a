"""Plans worked out beside the event loop decide nothing else than plans that everybody waits for."""

import asyncio
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membership_script import Script, planner

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.planning.beside import PlansBeside, Unanswered
from farflung.scheduler.errors import PlanError


def beside(work=planner):
    return PlansBeside(lambda *question: lambda: work(*question))


class Patient(Script):
    """Events wait in order for a plan, as in run.py."""

    def __init__(self, wanted=4):
        super().__init__(wanted)
        self.plans = beside()
        self.machine = Membership(self.plans)
        self.asked = 0

    def __call__(self, *events, dt=0.0):
        self.now += dt
        self.effects = []
        for event in events:
            while True:
                try:
                    self.state, effects, _ = self.machine.apply(self.state, event, self.now)
                except Unanswered as question:
                    before = self.state
                    asyncio.run(self.plans.answer(question))
                    assert self.state is before
                    self.asked += 1
                else:
                    self.plans.forget()
                    self.effects += effects
                    break
        return self


def drive(script, seed):
    """A life of a run, drawn from the seed; every effect in order."""
    chance, told = random.Random(seed), []
    script.join(*"abcd")
    for number in range(40):
        change, state = script.state.change, script.state
        kind = chance.randrange(6)
        if change is not None and kind < 4:
            reply = s.Flushed if state.phase == "flushing" else s.Prepared
            layers = {"layers": frozenset(range(4)), "step": 0} if reply is s.Flushed else {}
            waits = sorted(change.awaited)
            script(*(reply(name, state.nodes[name].session, change.number, **layers) for name in waits))
        elif kind == 4 and len(state.nodes) > 2:
            name = chance.choice(sorted(state.nodes))
            script(s.Left(name, state.nodes[name].session, "gone"))
        elif kind == 5:
            script.join(f"j{number}")
        else:
            nodes = list(state.nodes.values())
            measured = [s.Measured(node.name, node.session) for node in nodes]
            script(*script.heartbeats(), *measured, s.Tick(), dt=0.5)
        told += script.effects
    return told, script.state


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6))
def test_the_machine_decides_the_same(seed):
    at_once, waits = Script(), Patient()
    assert drive(at_once, seed) == drive(waits, seed)


def test_some_lives_ask_for_plans():
    waits = Patient()
    drive(waits, 1)
    assert waits.asked


def test_the_answer_comes_from_another_thread_and_is_used_once():
    threads = []

    def work(names, current, broken):
        threads.append(threading.current_thread())
        return planner(names, current, broken)

    plans = beside(work)
    with pytest.raises(Unanswered) as caught:
        plans(("a", "b"), None, frozenset())
    asyncio.run(plans.answer(caught.value))
    assert plans(("a", "b"), None, frozenset()) is plans(("a", "b"), None, frozenset())
    assert len(threads) == 1 and threads[0] is not threading.main_thread()
    with pytest.raises(Unanswered):
        plans(("a", "c"), None, frozenset())
    plans.forget()
    with pytest.raises(Unanswered):
        plans(("a", "b"), None, frozenset())


@pytest.mark.parametrize("error", [PlanError("no room"), ZeroDivisionError("oops")])
def test_no_plan_is_an_answer_too(error):
    def work(names, current, broken):
        raise error

    plans = beside(work)
    with pytest.raises(Unanswered) as caught:
        plans(("a",), None, frozenset())
    asyncio.run(plans.answer(caught.value))
    with pytest.raises(PlanError, match=r"no room|failed: ZeroDivisionError"):
        plans(("a",), None, frozenset())
