"""``farflung status --watch`` and ``--log-format json``."""

import io
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up_run import MadeUpRun
from rich.console import Console

from farflung.cli.one_run.watch import line_of, screen_of, watch
from farflung.cli.screen.output import Output
from farflung.proto.errors import FarflungError
from farflung.proto.process.logs import log_line, set_up


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return MadeUpRun(tmp_path_factory.mktemp("run"), steps=100).record()


def looked(answers: list[Any], as_json: bool = False) -> tuple[list[str], list[float]]:
    """The lines and the pauses of a watch over these answers."""
    left, pauses = iter(answers), list[float]()

    def ask() -> dict[str, Any]:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    output = Output(as_json, stdout=io.StringIO())
    watch(output, ask, 3.0, pauses.append)
    return output.stdout.getvalue().splitlines(), pauses


def test_a_line_when_something_has_changed(record: dict[str, Any]) -> None:
    lines, pauses = looked([record, record, {**record, "step": 101}, {**record, "phase": "done", "why": "all done"}])
    assert [line[9:] for line in lines] == [
        line_of(record),
        line_of({**record, "step": 101}),
        "shakespeare-1b: done, step 100 of 4000, loss 7.0391, 17.3 k tokens/s, all done".replace(
            "7.0391", f"{record['loss']:.4f}"
        ).replace("17.3 k", line_of(record).split(", ")[3].removesuffix(" tokens/s")),
    ]
    assert "held up by the upload of attic: 1" in lines[0] and pauses == [3.0] * 3


def test_a_coordinator_that_is_away_is_waited_for(record: dict[str, Any]) -> None:
    away = FarflungError("the coordinator did not answer")
    lines, _ = looked([record, away, away, {**record, "running": False, "phase": "interrupted"}])
    assert len(lines) == 3 and "did not answer" in lines[1] and "interrupted" in lines[2]
    with pytest.raises(FarflungError):
        looked([away])


def test_json_is_a_record_a_look(record: dict[str, Any]) -> None:
    lines, _ = looked([record, {**record, "phase": "failed"}], as_json=True)
    assert [json.loads(line)["phase"] for line in lines] == ["training", "failed"]


def test_the_screen_says_what_would_help(record: dict[str, Any]) -> None:
    console = Console(file=io.StringIO(), width=200)
    console.print(screen_of(record, "no answer"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "no answer" in [line.strip() for line in text.splitlines()]  # beside no bar
    for words in (
        "shakespeare-1b: training, step 100 of 4000",
        "no answer",
        "to go",
        "held up by the upload of attic",
        "pipeline 0: frankfurt-1 (layers 0-5) -> attic (layers 6-13), 5 microbatches a step",
        "its upload is the bottleneck of stage 1",
        "warning: update refused",
    ):
        assert words in text, text
    console.print(screen_of({"phase": "waiting", "running": True, "name": "x", "why": "waiting for 2 more nodes"}))


def test_logs_are_lines_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARFLUNG_LOG_FORMAT", "")
    root = logging.getLogger()
    handlers, level, stream = root.handlers[:], root.level, io.StringIO()
    try:
        assert set_up("json", stream) == "json" and set_up(None, stream) == "json"
        logging.getLogger("farflung.x").info("a node %s", "joined")
        try:
            raise ValueError("broken")
        except ValueError:
            logging.getLogger("farflung.x").exception("it failed")
    finally:
        root.handlers[:], root.level = handlers, level
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.items() >= {"level": "info", "logger": "farflung.x", "message": "a node joined"}.items()
    assert first["time"] > 1e9 and "ValueError: broken" in second["error"]
    assert json.loads(log_line("error", "two\nlines"))["message"] == "two\nlines"


def test_errors_of_a_command_are_json_too(command: Callable[..., Any], tmp_path: Path) -> None:
    done = command("status", str(tmp_path), "--watch", "--log-format", "json")
    assert done.status == 2 and done.stdout == ""
    line = json.loads(done.stderr)
    assert line["level"] == "error" and "there is no run in" in line["message"]
    wrong = command("status", str(tmp_path), "--log-format", "xml")
    assert wrong.status == 2 and "neither text nor json" in wrong.stderr
    assert "Traceback" not in wrong.stderr and sys.executable not in wrong.stderr
