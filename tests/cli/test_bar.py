"""The line at the foot of a running command: its words, and what of it fits a terminal."""

import io
import re

import pytest

from farflung.cli.screen.bar import Bar, fitted
from farflung.cli.screen.events.run_summary import RunSummary
from farflung.cli.screen.output import Output
from farflung.cli.screen.terminal import screen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


LONG = "node-2 left: silent for 5 s; waits until 2 of the 4 nodes that the plan needs are back"


def training(summary: RunSummary, first: int = 1, last: int = 120) -> RunSummary:
    summary.add({"event": "phase", "phase": "training", "why": ""})
    for step in range(first, last + 1):
        sizes = {"bytes_updates": 10, "bytes_dense": 820, "bytes_dense_updates": 820}
        summary.add(
            {"event": "step", "step": step, "steps": 485, "time": 1e9 + 2.0 * step, "loss": 2.103}
            | {"tokens_per_second": 8190.0, **sizes}
        )
    return summary


def shown(summary: RunSummary, width: int) -> str:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(Bar(summary))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_step_total_and_time_left_are_there_at_every_width(width: int) -> None:
    line = shown(training(RunSummary()), width)
    assert line.count("\n") == 1 and len(line.rstrip()) <= width
    assert "training" in line and "120/485" in line and "12 min 10 s left" in line
    assert ("fewer bytes" in line) == (width >= 120)


def test_a_long_reason_is_cut_before_the_numbers_are() -> None:
    summary = training(RunSummary())
    summary.add({"event": "phase", "phase": "waiting", "why": LONG})
    line = shown(summary, 80)
    assert line.count("\n") == 1 and "waiting: node-2 left" in line and "…" in line and "120/485" in line
    assert fitted(summary, 200).words == f"waiting: {LONG}"


def test_the_line_says_what_the_run_does_and_not_what_it_did() -> None:
    summary = training(RunSummary())
    assert summary.headline() == "training" and summary.speed_text() and summary.left_text()
    summary.add({"event": "phase", "phase": "flushing", "why": "node-3 joined"})
    assert "new view" in summary.headline() and not summary.speed_text() and not summary.left_text()
    summary.add({"event": "phase", "phase": "waiting", "why": "no node is left"})
    assert summary.headline() == "waiting: no node is left" and not summary.speed_text() and not summary.left_text()
    summary.add({"event": "phase", "phase": "preparing", "why": ""})
    training(summary, 121, 125)
    assert summary.headline() == "training" and summary.left_text()


def test_after_the_last_step_it_does_not_train_any_more() -> None:
    summary = training(RunSummary(), 480, 485)
    assert summary.headline() == "last evaluation and checkpoint" and summary.count() == "485/485"
    assert not summary.left_text() and not summary.speed_text()


def test_what_is_known_of_the_data_stands_above_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    message = "data.text: 34,400 bytes in 1 document are 34,400 tokens, 1 token per byte; a document ends"
    with screen(Output(stdout=out, stderr=io.StringIO())) as view:
        view.show({"event": "notice", "message": message, "node": ""})
        view.show({"event": "notice", "message": message, "node": ""})
    assert out.getvalue().count(message) == 1


def test_after_ctrl_c_steps_that_still_come_do_not_take_the_word_back() -> None:
    summary = training(RunSummary())
    summary.add({"event": "phase", "phase": "stopping", "why": ""})
    summary.add({"event": "notice", "message": "stopping: a last checkpoint first", "node": ""})
    summary.add({"event": "step", "step": 121, "loss": 2.0})
    summary.add({"event": "phase", "phase": "flushing", "why": "a node left"})
    assert summary.headline() == "stopping: a last checkpoint first" and not summary.left_text()


def test_a_node_hears_of_no_phase_and_shows_what_it_was_told_last() -> None:
    summary = RunSummary()
    summary.add({"event": "view", "view": 1, "pipelines": [["a"]]})
    assert summary.headline() == "starting"
    summary.add({"event": "step", "step": 3, "steps": 9, "loss": 2.0})
    assert summary.headline() == "training"
    summary.add({"event": "notice", "message": "waiting for 1 more node", "node": "a"})
    assert summary.headline() == "waiting for 1 more node"
    summary.add({"event": "step", "step": 4, "steps": 9, "loss": 2.0})
    assert summary.headline() == "training"


def test_a_pipe_and_a_terminal_take_the_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    for kind in (io.StringIO, Terminal):
        out = Output(stdout=kind(), stderr=io.StringIO())
        with screen(out) as view:
            for step in (1, 2):
                view.show({"event": "step", "step": step, "steps": 9, "loss": 2.0})
            view.show({"event": "phase", "phase": "stopping", "why": "interrupted"})
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.stdout.getvalue())
        assert "step 1 of 9" in text if kind is io.StringIO else "stopping" in text and "2/9" in text
