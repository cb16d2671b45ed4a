"""Effects are performed one by one: what fails costs nothing of what comes after it, and is tried again."""

import asyncio
from dataclasses import replace

from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.rules import Rules
from farflung.coordinator.membership.state import FLUSHING, TRAINING, State
from farflung.coordinator.run.effects.performing import PERFORMERS
from farflung.coordinator.run.effects.undone import AGAIN_S, Undone
from farflung.coordinator.run.intake import TAKERS
from farflung.proto.process.telling import undisturbed

FLUSH, SAY = s.SendFlush(("a",), 3, "why"), s.Say("left", "b", "why")


def test_what_failed_is_due_after_a_while_and_once():
    undone, state = Undone(), replace(State(Rules("gradient", 8, 2, 1, 100, 4)), phase=FLUSHING, number=3)
    undone.add(FLUSH, 10.0)
    undone.add(SAY, 10.0)
    assert undone.due(state, 10.0 + AGAIN_S / 2) == []
    assert undone.due(state, 10.0 + AGAIN_S) == [FLUSH, SAY]
    assert undone.due(state, 99.0) == [] and len(undone) == 0


def test_orders_for_a_view_that_is_over_are_dropped():
    undone, state = Undone(), State(Rules("gradient", 8, 2, 1, 100, 4))
    for now in (replace(state, phase=FLUSHING, number=4), replace(state, phase=TRAINING, number=3)):
        undone.add(FLUSH, 0.0)
        assert undone.due(now, 9.0) == []


def test_what_waits_is_bounded_and_orders_stay_longest(monkeypatch):
    monkeypatch.setattr("farflung.coordinator.run.effects.undone.MOST", 10)
    undone, state = Undone(), replace(State(Rules("gradient", 8, 2, 1, 100, 4)), phase=FLUSHING, number=3)
    undone.add(FLUSH, 0.0)
    for number in range(100):
        undone.add(s.Say("left", f"n-{number % 50}", "why"), 0.0)
    assert len(undone) == 10 and undone.dropped == 91
    fences = [s.Fence(f"n-{number}", "s", "why") for number in range(12)]
    for fence in fences:
        undone.add(fence, 0.0)
    assert undone.due(state, 9.0) == fences[-10:]


def test_what_fails_again_and_again_waits_once():
    undone = Undone()
    for _ in range(5):
        undone.add(SAY, 0.0)
    assert len(undone) == 1 and not undone.dropped


async def test_a_view_change_survives_whatever_fails_on_the_way(cluster, monkeypatch):
    """The sentence that a node has left cannot be told, and the new view cannot be stored the first time."""
    failed = []
    usual_say, usual_announce = PERFORMERS[s.Say], PERFORMERS[s.SendView]

    def say(performer, effect):
        if effect.kind == "left":
            failed.append("say")
            raise OSError(28, "No space left on device")
        usual_say(performer, effect)

    def announce(performer, effect):
        if effect.view.number == 2 and "announce" not in failed:
            failed.append("announce")
            raise RuntimeError("the database is on fire")
        usual_announce(performer, effect)

    monkeypatch.setitem(PERFORMERS, s.Say, say)
    monkeypatch.setitem(PERFORMERS, s.SendView, announce)
    coordinator = cluster.coordinator(cluster.job(("steps = 12", "steps = 60")))
    link = await coordinator.link
    nodes = {name: await cluster.node(link, name) for name in "abcd"}
    first = await coordinator.event("view")
    await coordinator.event("step", step=5)
    await nodes[first["pipelines"][1][1]].die()
    await coordinator.event("view", view=2)
    assert await asyncio.wait_for(coordinator.task, 60) == 0
    assert {"say", "announce"} <= set(failed)
    assert any("it is tried again" in one["message"] for one in coordinator.events if one["event"] == "warning")


async def test_a_report_that_cannot_be_taken_costs_only_itself(cluster, monkeypatch):
    usual = TAKERS["step"]

    def step(intake, stream, report):
        if report.step == 3:
            raise RuntimeError("no")
        usual(intake, stream, report)

    monkeypatch.setitem(TAKERS, "step", step)
    coordinator = cluster.coordinator()
    link = await coordinator.link
    for name in "abcd":
        await cluster.node(link, name)
    assert await asyncio.wait_for(coordinator.task, 60) == 0
    assert not [event for event in coordinator.events if event["event"] == "left"]


def test_what_cannot_be_shown_is_said_once_and_so_is_its_end(caplog):
    broken, shown = [True], []

    def tell(event):
        if broken:
            raise OSError(28, "No space left on device")
        shown.append(event)

    told = undisturbed(tell)
    for number in range(3):
        told({"event": number})
    broken.clear()
    told({"event": 3})
    assert [record.message for record in caplog.records] == [
        "cannot show what happens: [Errno 28] No space left on device; the run goes on",
        "what happens is shown again; 3 events were not",
    ]
    assert shown == [{"event": 3}]


def test_a_reader_that_is_gone_is_no_event(caplog):
    def tell(event):
        raise BrokenPipeError

    undisturbed(tell)({"event": "step"})
    assert not caplog.records
