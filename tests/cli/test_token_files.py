"""A run on files of tokens: the nodes read them through the coordinator, which keeps no copy."""

import numpy as np
import pytest

from farflung.node.data.dataset import TOKENS

TOKENS_SEEN = 400_000


def keys(path, *more, stages=2):
    return (
        ('text = ["text/*.txt"]', "\n".join([f'tokens = ["{path}"]', *more])),
        ("eval_every = 0", "eval_every = 2"),
        ("[checkpoint]", f"[parallel]\nstages = {stages}\npipelines = 1\n\n[checkpoint]"),
        ("validation = 0.1", "validation = 0.01"),
    )


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "train.bin"
    (np.arange(TOKENS_SEEN) ** 2 % 251).astype("<u2").tofile(path)
    return path


def test_a_corpus_that_neither_coordinator_nor_nodes_keep(job_file, local_run, tokens, tmp_path):
    state = tmp_path / "state"
    job = job_file(*keys(tokens, "cache_gb = 0.0001"))
    done = local_run(job, "--nodes", "2", "--state", str(state))
    assert done.status == 0, (done.stdout, done.stderr)
    (end,) = (event for event in done.events if event["event"] == "done")
    assert (end["steps"], end["samples"]) == (4, 4 * 8) and end["eval_loss"] > 0
    assert 0 < sum(path.stat().st_size for path in (state / "artifacts").iterdir()) < TOKENS_SEEN / 100
    assert list(state.rglob("*.lock")), "the nodes' caches are below the state folder"
    assert not list(state.rglob("tokens-*")) and not list(state.rglob("pieces-*"))  # never whole; removed at the end


def test_a_file_that_changes_while_a_run_needs_it(job_file, start, command, tokens, tmp_path):
    job = str(job_file(*keys(tokens, stages=1)))
    coordinator = start("coordinator", "start", job, "--listen", "127.0.0.1:0", "--state", str(tmp_path / "state"))
    link = coordinator.wait_for("listening")["link"]
    tokens.write_bytes(tokens.read_bytes()[:-100_000])
    node = command("join", link, "--device", "cpu", "--cache", str(tmp_path / "cache"), "--json", timeout=300)
    assert node.status == 4
    assert f"cannot fetch {TOKENS}: data.tokens: {tokens} was changed since the run began" in node.error["message"]
