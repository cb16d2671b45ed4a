"""Small jobs and real processes for the tests of the front door."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

JOB = """\
[run]
name = "small"
steps = 4

[model]
family = "gpt2"
layers = 2
width = 32
heads = 2
context = 32

[data]
text = ["text/*.txt"]
validation = 0.1

[train]
batch = 8
microbatch = 2
eval_every = 0

[checkpoint]
every = 0
"""

TEXT = "".join(f"{number}. To be, or not to be, that is the question.\n" for number in range(600))


class Command:
    """A finished command: its status, the events on stdout and the lines on stderr."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.status = done.returncode
        self.stdout, self.stderr = done.stdout, done.stderr

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def error(self) -> dict[str, Any]:
        """The one error event. Nothing may follow it."""
        found = [event for event in self.events if event["event"] == "error"]
        assert len(found) == 1, (self.stdout, self.stderr)
        assert "Traceback" not in self.stderr, self.stderr
        return found[0]


def farflung(*arguments: str, cwd: Path | None = None, timeout: float = 120, **environment: str) -> Command:
    """Run a command of farflung to its end, in a process of its own."""
    words = [sys.executable, "-m", "farflung", *arguments]
    environment = {**ENVIRONMENT, **environment}
    return Command(subprocess.run(words, capture_output=True, text=True, cwd=cwd, timeout=timeout, env=environment))


@pytest.fixture
def command() -> Callable[..., Command]:
    return farflung


@pytest.fixture(scope="module")
def job_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    """``job_file(("old", "new"), ...)``: the small job with some of its text replaced, beside its data."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_text(TEXT)
    (folder / "empty").mkdir()
    (folder / "empty" / "a.txt").write_text("")
    count = 0

    def make(*changes: tuple[str, str]) -> Path:
        nonlocal count
        text = JOB
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        count += 1
        path = folder / f"job{count}.toml"
        path.write_text(text)
        return path

    yield make


class Running:
    """A command that runs for long; its events are read one by one."""

    def __init__(self, words: tuple[str, ...], cwd: Path, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "farflung", *words, "--json"]
        self.log = (cwd / "stderr.txt").open("w+")
        self.errors = ""
        """What it wrote to stderr, after ``end``."""
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.log, text=True, env={**ENVIRONMENT, **environment}, cwd=cwd
        )

    def wait_for(self, name: str) -> dict[str, Any]:
        """The next event of that name; fails when the command ends without one."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == name:
                return event
        self.log.seek(0)
        raise AssertionError(f"no {name!r} event: {self.log.read()}")

    def end(self) -> int:
        """Interrupt it, as Ctrl-C does; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=30)
        finally:
            self.process.kill()
            if not self.log.closed:
                self.log.seek(0)
                self.errors = self.log.read()
                self.log.close()
        return self.process.returncode


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Running]]:
    """``start("coordinator", "start", ...)``: ended at the end of the module, whatever happens."""
    started: list[Running] = []

    def begin(*words: str, **environment: str) -> Running:
        started.append(Running(words, tmp_path_factory.mktemp("running"), environment))
        return started[-1]

    yield begin
    for one in reversed(started):
        one.end()
