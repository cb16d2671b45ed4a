"""A run that goes on until the test has seen enough: a coordinator and two nodes of one stage each, real processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

JOB = """\
[run]
name = "watched"
steps = 100000
[model]
family = "gpt2"
layers = 2
width = 32
heads = 2
context = 32
[data]
text = ["text.txt"]
validation = 0.1
[train]
batch = 8
microbatch = 2
eval_every = 10
[parallel]
stages = 2
[checkpoint]
every = 0
"""


@contextmanager
def long_run(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Iterator[Any], Path]]:
    """(the process, its events, the state folder) of `farflung run` in ``folder``, which is interrupted at the end."""
    (folder / "text.txt").write_text("".join(f"{n}. To be, or not to be, that is the question.\n" for n in range(600)))
    (folder / "job.toml").write_text(JOB)
    state = folder / "state"
    words = [sys.executable, "-m", "farflung", "run", "job.toml", "--nodes", "2", "--state", str(state), "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        (folder / "stderr").open("w") as log,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environment) as process,
    ):
        try:
            assert process.stdout is not None
            yield process, map(json.loads, process.stdout), state
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)
