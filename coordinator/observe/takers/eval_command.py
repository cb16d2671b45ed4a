"""``[eval] command``: a program of the run's owner that evaluates checkpoints, such as lm_eval. Receives the run's
events.

Each due checkpoint is exported as a model folder, and the program runs on it during the training; its output stays in
STATE/evals/step-NNNNNNNN. The command comes only from the job file with which the coordinator was started, and is not
sent to nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ....proto.process import python
from ...events import Emit, Event
from ...events import event as new_event

OUTPUT = "output.txt"
MOST = 100
"""Most numbers of one evaluation that are shown."""
_LONGEST = 300
"""Characters of the last line of a program that failed."""


def is_due(step: int, every: int, last: int) -> bool:
    """Whether the program runs on the checkpoint of a step: on the last one, and on those of every ``every`` steps."""
    return step >= last or bool(every and step % every == 0)


def words_of(command: Sequence[str], model: Path, folder: Path, step: int) -> list[str]:
    """The command with ``{model}``, ``{folder}`` and ``{step}`` put in; other braces stay."""
    values = {"model": str(model), "folder": str(folder), "step": str(step)}
    return [re.sub(r"\{(model|folder|step)\}", lambda found: values[found[1]], word) for word in command]


def results_in(folder: Path) -> dict[str, float]:
    """The numbers of the newest JSON file below a folder: path in the JSON -> number; of lm_eval's files only those
    below ``results``.

    Empty where there is no such file, or it is no JSON.
    """
    files = sorted(folder.rglob("*.json"), key=lambda path: path.stat().st_mtime)
    if not files:
        return {}
    try:
        found = json.loads(files[-1].read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if isinstance(found, dict) and isinstance(found.get("results"), dict):
        found = found["results"]
    return dict(list(_numbers(found, ""))[:MOST])


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _numbers(inner, f"{path}/{name}" if path else str(name))
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and path and math.isfinite(value):
        yield path, float(value)


class EvalCommand:
    """``last``: the run's last step, as it is now. ``merge``: adapters are exported with their base."""

    def __init__(
        self, command: Sequence[str], every: int, merge: bool, folder: Path, emit: Emit, last: Callable[[], int]
    ) -> None:
        self._command, self._every, self._merge = list(command), every, merge
        self._folder, self._emit, self._last = folder, emit, last
        self._waiting: list[tuple[int, str]] = []
        self._task: asyncio.Task[None] | None = None

    def take(self, event: Event) -> None:
        """One event of the run, on its event loop."""
        if event["event"] != "checkpoint" or not is_due(step := int(event["step"]), self._every, self._last()):
            return
        if self._waiting:  # the program has not begun on it, and the checkpoint may be deleted before
            late, _ = self._waiting.pop()
            self._warn(f"eval.command is slower than the checkpoints: that of step {late} is left out")
        self._waiting.append((step, str(event["path"])))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def finish(self) -> None:
        """Wait until the program has evaluated the last checkpoint."""
        if self._task is not None:
            await self._task

    async def close(self) -> None:
        """End the program, whatever it does."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while self._waiting:
            step, path = self._waiting.pop(0)
            try:
                await self._look(step, path)
            except OSError as error:
                self._warn(f"eval.command did not begin at step {step}: {error.strerror or error}")

    async def _look(self, step: int, path: str) -> None:
        folder = self._folder / f"step-{step:08d}"
        shutil.rmtree(folder, ignore_errors=True)  # of the same step of an earlier start
        folder.mkdir(parents=True)
        model, began = folder / "model", time.monotonic()
        with (folder / OUTPUT).open("wb") as output:
            merge = ["--merge"] if self._merge else []
            words = python.module("farflung", "export", path, str(model), "--step", str(step), *merge)
            status = await _run(words, output.fileno(), {})
            what = "farflung export"
            if status == 0:
                words = words_of(self._command, model, folder, step)
                status = await _run(words, output.fileno(), {"FARFLUNG_STEP": str(step), "FARFLUNG_MODEL": str(model)})
                what = "eval.command"
        shutil.rmtree(model, ignore_errors=True)
        if status:
            last = _last_line(folder / OUTPUT)
            self._warn(f"step {step}: {what} ended with status {status}: {last} ({shlex.quote(str(folder / OUTPUT))})")
            return
        seconds, results = time.monotonic() - began, results_in(folder)
        self._emit(new_event("evaluated", step=step, seconds=seconds, results=results, folder=str(folder)))

    def _warn(self, message: str) -> None:
        self._emit(new_event("warning", message=message, node=""))


async def _run(words: Sequence[str], output: int, more: dict[str, str]) -> int:
    """Run a program and return its exit status; negative: the signal that ended it. It ends with this task. OSError: it
    can't be started.

    It is spawned, not forked: gRPC's threads run in this process, and gRPC's fork handlers may crash the child before
    it executes the program.
    """
    if (path := shutil.which(words[0])) is None:
        raise FileNotFoundError(2, f"there is no program {words[0]!r}")
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
    ]
    # A process group of its own: Ctrl-C reaches only the coordinator, which then ends the program and all that it
    # started.
    pid = os.posix_spawn(path, list(words), {**os.environ, **more}, file_actions=files, setpgroup=0)  # noqa: ASYNC221 - it waits for nothing
    ended = asyncio.get_running_loop().run_in_executor(None, os.waitpid, pid, 0)
    try:
        return os.waitstatus_to_exitcode((await asyncio.shield(ended))[1])
    finally:
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            await ended


def _last_line(path: Path) -> str:
    lines = path.read_bytes()[-10_000:].decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:_LONGEST] if lines else "it printed nothing"
