"""What the machine was given is recorded, and gives the same again: transitions, effects and reasons."""

import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membership_script import Script, planner
from typer.testing import CliRunner

from farflung.__main__ import app
from farflung.coordinator.membership import signals as s
from farflung.coordinator.membership.machine import Membership
from farflung.coordinator.membership.questions import answered
from farflung.coordinator.membership.state import Known
from farflung.coordinator.membership.transitions import Impossible
from farflung.coordinator.replay import recorder as recording
from farflung.coordinator.replay.kinds import VALUES
from farflung.coordinator.replay.recorder import FOLDER, Recorder
from farflung.coordinator.replay.replay import replay
from farflung.proto.errors import FarflungError


class Recorded(Script):
    """A machine whose events are recorded, and whose measurements change whenever they are read."""

    def __init__(self, folder, wanted=4, life=1):
        super().__init__(wanted)
        self.recorder = Recorder(folder / FOLDER, life, True, clock=lambda: self.now)
        self.read = 0
        readings = self.recorder.readings
        known = Known(self.measured, self.measured, self.measured)
        self.machine = Membership(None, readings.fetch_s(self.measured), True, readings.known(known))

    def measured(self, *about):
        self.read += 1
        return 0.1 * (self.read % 7)

    def take(self, event):
        before = self.state
        self.state, effects, why = self.machine.apply(before, event, self.now)
        self.recorder.note(before, event, self.now, self.state, effects, why)
        self.recorder.write()
        if effects and isinstance(effects[-1], s.Ask):
            return self.take(s.Planned(effects[-1].number, answered(planner, effects[-1].question)))
        return effects

    def __call__(self, *events, dt=0.0):
        self.now += dt
        self.effects = [effect for event in events for effect in self.take(event)]
        return self


def live(script, chance):
    """A life of a run, of which every turn is drawn."""
    script.join(*"abcd").wait(1.5)
    for turn in chance:
        change, state = script.state.change, script.state
        if change is not None and turn % 6 < 4:
            kind = s.Flushed if state.phase == "flushing" else s.Prepared
            layers = {"layers": frozenset(range(4)), "step": turn % 3} if kind is s.Flushed else {}
            script(*(kind(name, state.nodes[name].session, change.number, **layers) for name in sorted(change.awaited)))
        elif turn % 6 == 4 and len(state.nodes) > 2:
            name = sorted(state.nodes)[turn % len(state.nodes)]
            script(s.Left(name, state.nodes[name].session, "gone"), s.Hold("a", "paused"), s.Release("a", "goes on"))
        elif turn % 6 == 5:
            script.join(f"j{turn}")
        else:
            nodes = list(state.nodes.values())
            beats = s.Beats(tuple(s.Heard(node.name, node.session, True, turn, 0.25) for node in nodes))
            script(beats, *(s.Measured(node.name, node.session) for node in nodes), s.Tick(turn), dt=0.5)
            number = state.view.number if state.view else 1
            script(s.Steps(tuple((s.StepFinished(n.name, n.session, number, turn, 0.5), script.now) for n in nodes)))
            script(s.Accused(nodes[0].name, nodes[0].session, nodes[-1].name, "reset"))
    script.recorder.close()
    return script


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 50), max_size=30))
def test_any_life_is_the_same_again(tmp_path_factory, chance):
    folder = tmp_path_factory.mktemp("run")
    script = live(Recorded(folder), chance)
    done = replay(folder)
    assert done.events == script.state.events and done.lives == done.files == 1


TURNS = [0, 0, 1, 6, 0, 4, 0, 1, 7, 0, 5, 0, 0, 10, 1, 2, 0, 0, 6, 0]


def test_files_follow_each_other_and_the_oldest_go(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "SEGMENT_BYTES", 600)
    script = live(Recorded(tmp_path), TURNS)
    files = sorted((tmp_path / FOLDER).iterdir())
    whole = replay(tmp_path)
    assert len(files) > 3 and whole.files == len(files) and whole.events == script.state.events
    assert replay(files[2]).files == 1  # each can be run again by itself
    monkeypatch.setattr(recording, "KEPT_BYTES", 1500)
    live(Recorded(tmp_path, life=2), TURNS)
    left = sorted((tmp_path / FOLDER).iterdir())
    assert files[0] not in left and sum(file.stat().st_size for file in left) < 1500 + 2 * 5000
    assert replay(tmp_path).files == len(left)


def lines(file):
    return [json.loads(line) for line in zlib.decompressobj().decompress(file.read_bytes()).splitlines()]


def rewritten(file, found):
    file.write_bytes(zlib.compress("".join(json.dumps(line) + "\n" for line in found).encode()))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line.update(why="another"), "has the reason"),
        (lambda line: line.update(to=["done", 9]), "leads to"),
        (lambda line: line.update(made=["another"]), "has as effect 1"),
        (lambda line: line.update(broke="KeyError"), "broke with KeyError, and does not any more"),
        (lambda line: line.update(read=[["rate", 1.0]]), "does not read a measurement"),
        (lambda line: line["is"].update({"": "Unheard"}), "there is no 'Unheard'"),
        (lambda line: line["is"].update({"name": 7, "where": 8}), "another version of farflung, or damaged|line"),
    ],
)
def test_the_first_difference_is_said(tmp_path, change, said):
    live(Recorded(tmp_path), TURNS)
    (file,) = (tmp_path / FOLDER).iterdir()
    found = lines(file)
    at = next(number for number, line in enumerate(found) if "made" in line and number > 3)
    change(found[at])
    rewritten(file, found)
    with pytest.raises(FarflungError, match=said) as caught:
        replay(tmp_path)
    assert f"line {at + 1}" in caught.value.message
    told = CliRunner().invoke(app, ["coordinator", "replay", str(tmp_path)])
    assert told.exit_code != 0


def test_a_measurement_that_is_read_no_more_or_anew(tmp_path):
    script = live(Recorded(tmp_path), TURNS)
    assert script.read
    (file,) = (tmp_path / FOLDER).iterdir()
    found = lines(file)
    at = next(number for number, line in enumerate(found) if "read" in line)
    del found[at]["read"]
    rewritten(file, found)
    with pytest.raises(FarflungError, match="reads a measurement"):
        replay(tmp_path)


def test_what_could_not_be_decided_cannot_be_decided_again(tmp_path):
    script = Recorded(tmp_path)
    script.join("a")
    with pytest.raises(Impossible) as caught:
        script.machine.apply(script.state, s.Undecidable(3), script.now)
    script.recorder.broke(script.state, s.Undecidable(3), script.now, caught.value)
    script.wait(1.0).recorder.close()
    assert replay(tmp_path).events == script.state.events + 1


def test_a_recording_that_ends_in_the_middle_of_a_line(tmp_path):
    script = live(Recorded(tmp_path), TURNS)
    (file,) = (tmp_path / FOLDER).iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    assert 0 < replay(tmp_path).events < script.state.events


def test_a_disk_that_is_full_costs_the_recording_alone(tmp_path, monkeypatch):
    (tmp_path / FOLDER).write_text("no folder")
    script = live(Recorded(tmp_path), TURNS)
    assert script.state.number and (tmp_path / FOLDER).read_text() == "no folder"
    with pytest.raises(FarflungError, match="no events are recorded"):
        replay(tmp_path)


def test_every_value_comes_back_as_it_was(tmp_path):
    script = live(Recorded(tmp_path), TURNS)
    again = VALUES.read(VALUES.text(script.state))
    assert again == script.state and VALUES.text(again) == VALUES.text(script.state)
