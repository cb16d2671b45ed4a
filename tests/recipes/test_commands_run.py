"""The commands of deploy/compose and the health check of deploy/docker, run on this machine: a whole small run."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from linters import DEPLOY
from quick_start import Nursery, Started

from farflung.proto.words.link import parse_link

JOB = """\
[run]
steps = 4

[model]
family = "gpt2"
layers = 2
width = 32
heads = 2
context = 32

[data]
text = ["data/*.txt"]

[train]
batch = 8
microbatch = 2
eval_every = 0
"""
PATIENCE = 240.0


def words_here(service: str, folder: Path) -> list[str]:
    """The service's command with the folders and addresses of its containers replaced by this machine's."""
    command = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"][service]["command"]
    for old, new in {
        "--min-nodes 3": "--min-nodes 1 --listen 127.0.0.1:0",
        "coordinator:7070": "127.0.0.1:0",
        "0.0.0.0:7071": "127.0.0.1:0",
        "0.0.0.0:7072": "127.0.0.1:0",
    }.items():
        command = command.replace(old, new)
    return shlex.split(re.sub(r"(?<![\w/])/(?=job|state|link|cache)", f"{folder}/", command))


@contextmanager
def started(nursery: Nursery, words: list[str], log: Path) -> "Iterator[Started]":
    process = nursery.start(*words, out=log, errors=log, OMP_NUM_THREADS="1", FARFLUNG_LINK="")
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def healthy(port: int) -> bool:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    found = re.search(r"HEALTHCHECK.*?CMD (\[.*?\])$", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    program, *words = json.loads(found[1])
    assert program == "python"
    environment = {**os.environ, "FARFLUNG_PORT": str(port)}
    return subprocess.run([sys.executable, *words], env=environment, stderr=subprocess.DEVNULL).returncode == 0


@pytest.mark.timeout(900)
def test_the_composed_run_trains_and_its_link_is_nobodys_business(nursery: Nursery, tmp_path: Path) -> None:
    (tmp_path / "job" / "data").mkdir(parents=True)
    (tmp_path / "job" / "job.toml").write_text(JOB)
    (tmp_path / "job" / "data" / "a.txt").write_text("To be, or not to be, that is the question.\n" * 300)
    link = tmp_path / "link" / "link"
    log, node_log = tmp_path / "coordinator.log", tmp_path / "node.log"
    node_words = words_here("node", tmp_path)
    with started(nursery, words_here("coordinator", tmp_path), log) as coordinator:
        deadline = time.monotonic() + PATIENCE
        while not link.exists():
            assert coordinator.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        written = parse_link(link.read_text())
        assert healthy(written.port)
        with started(nursery, node_words, node_log) as node:
            ticket = str(written).split("#")[1]
            assert not any(ticket in word for word in node_words)
            assert node.wait(PATIENCE) == 0, node_log.read_text()
        assert coordinator.wait(PATIENCE) == 0, log.read_text()
    assert not healthy(written.port)
    assert "done: 4 steps" in log.read_text()
    assert list((tmp_path / "state" / "checkpoints").glob("step-*"))
