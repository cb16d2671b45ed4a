"""Whoever reads what a command says may stop reading: what runs for long goes on, a table ends."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from quick_start import Nursery

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


def test_a_run_goes_on_when_its_pipe_is_closed(job_file: Callable[..., Path], nursery: Nursery, tmp_path: Path) -> None:
    """As of ``farflung run JOB 2>&1 | head -n 1``."""
    os.mkfifo(pipe := tmp_path / "pipe")
    words = ("run", str(job_file()), "--nodes", "1", "--state", str(tmp_path / "s"))
    run = nursery.start(*words, out=pipe, errors=pipe, FARM_FORKS="1")
    with pipe.open() as reader:
        assert reader.readline()
    status = run.wait()
    found = read_status(tmp_path / "s")
    assert (status, found["phase"], found["step"]) == (0, "done", 4)
