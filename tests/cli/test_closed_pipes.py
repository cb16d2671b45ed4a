"""Whoever reads what a command says may stop reading: what runs for long goes on, a table ends."""

import io
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from farflung.cli.screen.output import DONE, FAILED, Output
from farflung.coordinator.observe.status import read_status


def closed() -> io.TextIOWrapper:
    """A stream whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    return io.TextIOWrapper(os.fdopen(writing, "wb"), encoding="utf-8")


def test_what_lasts_is_not_ended_by_its_reader() -> None:
    with closed() as stdout, closed() as stderr:
        output = Output(as_json=True, stdout=stdout, stderr=stderr)
        output.lasts = True
        for _ in range(3):
            output.event({"event": "step"})
            output.note("a word")
        assert output.fail(BrokenPipeError("another pipe, of the program itself")) == FAILED
        output.close()


def test_a_table_that_nobody_reads_on_is_done() -> None:
    with closed() as stdout:
        output = Output(stdout=stdout)
        with pytest.raises(BrokenPipeError) as caught:
            output.say("a line")
        assert output.fail(caught.value) == DONE
        output.close()


def test_a_run_goes_on_when_its_pipe_is_closed(job_file: Callable[..., Path], tmp_path: Path) -> None:
    words = [sys.executable, "-m", "farflung", "run", str(job_file()), "--nodes", "1", "--state", str(tmp_path / "s")]
    script = f"set -o pipefail; {shlex.join(words)} 2>&1 | head -n 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=550, check=False)
    status = read_status(tmp_path / "s")
    assert (done.returncode, status["phase"], status["step"]) == (0, "done", 4), done.stdout
