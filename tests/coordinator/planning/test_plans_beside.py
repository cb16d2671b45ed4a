"""Plans that are asked for decide nothing else than plans that everybody waits for, and are searched for in a process
of their own that may end at any time."""

import asyncio
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membership_script import Script, planner

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.questions import Answer, Question, answered
from farflung.coordinator.membership.transitions import Impossible
from farflung.coordinator.planning.planner import Search, search
from farflung.coordinator.planning.search_process import SEARCHES, answer
from farflung.coordinator.planning.searches import Searches
from farflung.scheduler import CodecChoice, Device, Layer, Plan, Workload
from farflung.scheduler.workloads.jobs import workload_of


class Patient(Script):
    """Events wait in order for a plan, as in run.py."""

    def __init__(self, wanted=4):
        super().__init__(wanted)
        self.machine = Membership()
        self.asked = 0

    def __call__(self, *events, dt=0.0):
        self.now += dt
        self.effects = []
        for event in events:
            self.state, effects, _ = self.machine.apply(self.state, event, self.now)
            while effects and isinstance(effects[-1], s.Ask):
                *_, ask = effects
                assert len(effects) == 1
                self.asked += 1
                planned = s.Planned(ask.number, answered(planner, ask.question))
                self.state, effects, _ = self.machine.apply(self.state, planned, self.now)
            self.effects += effects
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
    (at_once, state), (waits, other) = drive(Script(), seed), drive(Patient(), seed)
    assert at_once == waits
    assert state == type(state)(**{**vars(other), "asked": 0})


def test_some_lives_ask_for_plans():
    waits = Patient()
    drive(waits, 1)
    assert waits.asked


def asking():
    """A machine that has asked for the first plan of four nodes."""
    script = Script()
    script.machine = Membership()
    script.join(*"abcd").wait(1.5)
    script(*(s.Measured(name, name + "1") for name in "abcd"))
    script.answer(s.Flushed, "abcd")
    (ask,) = script.get(s.Ask)
    return script, ask


def test_who_asks_changes_nothing_until_the_answer_comes():
    script, ask = asking()
    assert script.state.phase == "flushing" and "d" not in script.state.change.flushed
    script(s.Planned(ask.number, answered(planner, ask.question)))
    assert script.state.phase == "preparing" and script.state.asking is None and not script.state.answers
    (sent,) = script.get(s.SendView)
    assert "Planned for" in sent.cause and "Flushed of d" in sent.cause


def test_no_plan_is_an_answer_too():
    script, ask = asking()
    script(s.Planned(ask.number, Answer(None, "no room")))
    assert script.state.phase == "waiting" and "no room" in script.state.why


def test_what_cannot_be_decided_never_happened():
    script, ask = asking()
    script(s.Undecidable(ask.number))
    assert script.state.asking is None and script.state.phase == "flushing"
    script.answer(s.Flushed, "d")
    assert script.get(s.Ask)[0].number == ask.number + 1


def test_nothing_else_is_decided_while_a_plan_is_waited_for():
    script, ask = asking()
    with pytest.raises(Impossible, match=r"(?s)Left of a cannot be: .*Flushed of d has to be decided.*Flushed of|->"):
        script(s.Left("a", "a1", "gone"))
    with pytest.raises(Impossible, match="nobody asked for this plan"):
        script(s.Planned(ask.number + 1, Answer(None, "")))


# ---- the process -----------------------------------------------------------------------------


def asked(names=("a", "b", "c", "d"), **more):
    layers = tuple(Layer(f"layer {at}", 10**6, 1e9, 1000) for at in range(4))
    choice = CodecChoice("int8", 8.0, 8.0)
    workload = Workload(layers, batch=8, stages=2, codecs=(choice,), update_ladder=(("none", 32.0),))
    devices = tuple(Device(name, tflops=2.0) for name in names)
    links = tuple((one, other, 0.01, 1e8) for one in names for other in names if one != other)
    return Search(workload, Question(tuple(names), more.pop("current", None), frozenset()), devices, links, **more)


def test_a_question_crosses_to_the_process_as_it_is():
    first = search(asked())
    question = asked(names=("a", "b", "d"), current=first, least=1, seed=3)
    assert SEARCHES.read(SEARCHES.text(question)) == question
    assert Plan.from_json(first.to_json()) == first


@pytest.mark.parametrize(
    "tables",
    [{}, {"train": {"offload": "auto", "microbatch": "auto"}}, {"updates": {"mode": "delta", "every": "auto"}}],
    ids=str,
)
def test_all_that_a_job_leaves_open_crosses(tables):
    job = {"model": {"family": "gpt2", "layers": 2, "width": 64, "heads": 4, "context": 32}, **tables}
    workload = workload_of(job)
    assert SEARCHES.read(SEARCHES.text(workload)) == workload


def test_a_question_that_is_no_question_ends_nothing():
    assert "failed" in answer("{}") and "failed" in answer("nonsense")


async def test_plans_come_out_of_another_process():
    searches = Searches()
    searches.prepare()
    try:
        found, none = await searches.answer(asked()), await searches.answer(asked(names=()))
    finally:
        searches.close()
    assert found.plan is not None and set(found.plan.nodes) <= set("abcd") and searches.spent > 0
    assert none == Answer(None, "no node is left")
    assert (await asyncio.to_thread(searches._answer, asked())).plan is None  # it is closed


DIES = """
import os, signal, sys
from pathlib import Path
from farflung.coordinator.planning.search_process import answer
for line in sys.stdin:
    Path(sys.argv[1]).open("a").write("asked\\n")
    if len(Path(sys.argv[1]).read_text().split()) <= int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    print(answer(line), flush=True)
"""


@pytest.mark.parametrize("deaths", [1, 2])
async def test_a_search_that_is_killed_is_made_again_once(tmp_path, deaths):
    searches = Searches([sys.executable, "-c", DIES, str(tmp_path / "count"), str(deaths)])
    try:
        found = await searches.answer(asked())
        if deaths == 2:
            assert found.plan is None and "killed by signal 9, 2 times in a row" in found.error
            found = await searches.answer(asked())
    finally:
        searches.close()
    assert found.plan is not None
