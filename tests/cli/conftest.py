"""Small jobs and real processes for the tests of the front door."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from quick_start import PATIENCE, Nursery

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


@pytest.fixture(scope="session")
def command(nursery: Nursery) -> Callable[..., Command]:
    """``command("status", ..., cwd=, timeout=, FARFLUNG_LINK=...)``: run a command of farflung to its end."""
    return lambda *words, **more: Command(nursery.run(*words, **more))


@pytest.fixture(scope="session")
def local_run(command: Callable[..., Command]) -> Callable[..., Command]:
    """``local_run(JOB, ..., cwd=)``: ``farflung run JOB ... --json`` to its end. Its coordinator and nodes are forks of
    the nursery; test_run.py has the processes that people get."""
    return lambda job, *words, **more: command("run", str(job), *words, "--json", timeout=280, FARM_FORKS="1", **more)


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

    def __init__(self, nursery: Nursery, words: tuple[str, ...], cwd: Path, environment: dict[str, str]) -> None:
        self._out, self._log = cwd / "stdout.txt", cwd / "stderr.txt"
        self._read = 0
        self.process = nursery.start(*words, "--json", out=self._out, errors=self._log, cwd=cwd, **environment)

    @property
    def errors(self) -> str:
        """What it has written to stderr."""
        return self._log.read_text()

    def wait_for(self, name: str) -> dict[str, Any]:
        """The next event of that name; fails when the command ends without one."""
        while True:
            over = self.process.poll() is not None
            for line in self._out.read_bytes()[self._read :].splitlines(keepends=True):
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                event: dict[str, Any] = json.loads(line)
                if event["event"] == name:
                    return event
            assert not over, f"no {name!r} event: {self.errors}"
            time.sleep(0.02)

    def end(self) -> int:
        """Interrupt it, as Ctrl-C does; the exit status."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def start(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Running]]:
    """``start("coordinator", "start", ...)``: ended at the end of the module, whatever happens."""
    started: list[Running] = []

    def begin(*words: str, **environment: str) -> Running:
        started.append(Running(nursery, words, tmp_path_factory.mktemp("running"), environment))
        return started[-1]

    yield begin
    for one in reversed(started):
        one.end()
