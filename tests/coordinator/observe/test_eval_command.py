"""A program of the owner's that looks at checkpoints: when, on what, and what is told of it."""

import asyncio
import json
import sys

from farflung.coordinator.observe.takers import eval_command
from farflung.coordinator.observe.takers.eval_command import OUTPUT, EvalCommand, is_due, results_in, words_of


def test_which_checkpoints():
    assert [step for step in range(10, 60, 10) if is_due(step, 20, 50)] == [20, 40, 50]
    assert [step for step in range(10, 60, 10) if is_due(step, 0, 50)] == [50]


def test_words_are_put_in_and_other_braces_stay(tmp_path):
    words = ["run", "a={model}", '{"x": {step}, "{y}"}', "{folder}/{step}"]
    found = words_of(words, tmp_path / "{step}", tmp_path, 7)
    assert found == ["run", f"a={tmp_path}/{{step}}", '{"x": 7, "{y}"}', f"{tmp_path}/7"]


def test_results_of_lm_eval_and_of_others(tmp_path):
    assert results_in(tmp_path) == {}
    (tmp_path / "a.json").write_text("no json")
    assert results_in(tmp_path) == {}
    found = {"results": {"arc": {"acc,none": 0.25, "alias": "arc", "n": True}}, "date": 1.5}
    (tmp_path / "a.json").write_text(json.dumps(found))
    assert results_in(tmp_path) == {"arc/acc,none": 0.25}
    (tmp_path / "a.json").write_text('{"loss": 2, "deep": {"x": NaN, "y": 3}}')
    assert results_in(tmp_path) == {"loss": 2.0, "deep/y": 3.0}


class Stage:
    """A command over made-up checkpoints: the export is a program too, that writes a folder."""

    def __init__(self, folder, monkeypatch, script, every=10):
        def module(name, export, path, out, *words):
            assert (name, export) == ("farflung", "export")
            return [sys.executable, "-c", "import os, sys; os.mkdir(sys.argv[1])", out]

        monkeypatch.setattr(eval_command.python, "module", module)
        self.said, self.folder = [], folder
        words = [sys.executable, "-c", script, "{model}", "{folder}", "{step}"]
        self.command = EvalCommand(words, every, False, folder, self.said.append, lambda: 100)

    def checkpoint(self, step):
        self.command.take({"event": "checkpoint", "step": step, "path": f"runs/x/step-{step}"})


WRITES = """
import json, os, sys
model, folder, step = sys.argv[1:]
assert os.path.isdir(model) and os.environ["FARFLUNG_MODEL"] == model
print("hello")
json.dump({"acc": int(step) / 100}, open(folder + "/x.json", "w"))
"""


def test_it_runs_on_each_that_is_due_and_what_it_wrote_stays(tmp_path, monkeypatch):
    async def work():
        stage = Stage(tmp_path, monkeypatch, WRITES)
        stage.command.take({"event": "step", "step": 10})
        stage.checkpoint(15)
        stage.checkpoint(20)
        await stage.command.finish()
        stage.checkpoint(100)
        await stage.command.finish()
        await stage.command.close()
        return stage

    said = asyncio.run(work()).said
    assert [(one["event"], one["step"], one["results"]) for one in said] == [
        ("evaluated", 20, {"acc": 0.2}),
        ("evaluated", 100, {"acc": 1.0}),
    ]
    folder = tmp_path / "step-00000020"
    assert {path.name for path in folder.iterdir()} == {OUTPUT, "x.json"}
    assert (folder / OUTPUT).read_text() == "hello\n"


def test_one_that_fails_is_a_warning(tmp_path, monkeypatch):
    async def work():
        stage = Stage(tmp_path, monkeypatch, "raise SystemExit('no such task')")
        stage.checkpoint(10)
        await stage.command.finish()
        return stage.said

    (said,) = asyncio.run(work())
    assert said["event"] == "warning"
    assert said["message"].startswith("step 10: eval.command ended with status 1: no such task (")


def test_a_slow_one_leaves_checkpoints_out_and_ends_with_the_coordinator(tmp_path, monkeypatch):
    async def work():
        stage = Stage(
            tmp_path, monkeypatch, "open(__import__('sys').argv[2] + '/on', 'w'); input = __import__('signal').pause()"
        )
        stage.checkpoint(10)
        while not (tmp_path / "step-00000010" / "on").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # of another process
        stage.checkpoint(20)
        stage.checkpoint(30)
        await stage.command.close()
        return stage.said

    (said,) = asyncio.run(work())
    assert "slower than the checkpoints: that of step 20 is left out" in said["message"]


def test_a_program_that_is_none_is_a_warning(tmp_path, monkeypatch):
    async def work():
        stage = Stage(tmp_path, monkeypatch, WRITES)
        stage.command._command[0] = "no-such-program"
        stage.checkpoint(10)
        await stage.command.finish()
        return stage.said

    (said,) = asyncio.run(work())
    assert said["message"] == "eval.command did not begin at step 10: there is no program 'no-such-program'"
