"""Nodes that stream a corpus which neither they nor the coordinator keep, while any of them dies."""

import contextlib

import corpora
import numpy as np
import pytest
from farm import Process
from plain_loop import plain_model, plain_optimizer, plain_step
from safetensors.torch import load_file

from farflung.coordinator.data.corpus.index import Index
from farflung.coordinator.store.store import Store
from farflung.job.data.facts import Facts
from farflung.job.data.sampling import Position, sample_ids
from farflung.job.schema import Job
from farflung.node.data.dataset import Tokens
from farflung.node.state.optimizers.learning_rates import learning_rate

pytestmark = pytest.mark.timeout(1800)  # what is waited for is a state
SIZE = 6_000_000
"""Tokens of a byte: 24 pieces, of which a node keeps 16."""


@pytest.mark.parametrize("kind", ["jsonl", pytest.param("tokens", marks=pytest.mark.slow)])
def test_a_node_and_the_coordinator_die_while_nodes_stream(farm, kind, tmp_path):
    if kind == "jsonl":
        pattern = corpora.write(f"file://{tmp_path}/texts", kind, corpora.texts(400, longest=160_000))
    else:
        pattern = str(tmp_path / "a.bin")
        (np.arange(SIZE) ** 2 % 251).astype("<u2").tofile(pattern)
    run = farm(parallel={"pipelines": 2}, train={"optimizer": "sgd", "learning_rate": 0.1})
    run.job["model"] = {"family": "gpt2", "layers": 1, "width": 16, "heads": 2, "context": 64}
    run.job["data"] = {kind: [pattern], "validation": 0.0, "cache_gb": 0.0001}
    run.write_job()
    run.coordinator("--min-nodes", "2")
    nodes = run.nodes("ab")
    run.trains("a", "b")
    nodes["a"].kill()
    run.trains("b")
    run.node("c")
    run.trains("b", "c")
    run.c.kill()
    run.coordinator()
    last = run.trains("b", "c", steps=5)
    run.wait(lambda: [e for e in run.c.of("checkpoint") if e["step"] >= last], "a checkpoint")
    for process in run.processes:
        process.kill()
    assert sum(path.stat().st_size for path in (run.state / "artifacts").iterdir()) < 120_000 < SIZE / 40

    with contextlib.closing(Store(run.state)) as store:
        facts, ledger = Facts.model_validate_json(store.get("facts")), store.steps.all()
    assert [row.step for row in ledger] == list(range(1, len(ledger) + 1)) and {row.samples for row in ledger} == {12}
    step = run.c.of("checkpoint")[-1]["step"]
    export = Process(run, "export", ["export", "state", "out", "--step", str(step)])
    run.wait(lambda: not export.alive, "the export ends")
    assert export.status == 0, export.lines()
    assert far_from_plain(run, facts, step) < 1e-5


def far_from_plain(run, facts, steps):
    """The largest difference of a weight of out/ to that of a plain loop over so many steps."""
    (path,) = (run.state / "artifacts").glob("*.index")
    index = Index.load(path)
    rows = b"".join(index.read(piece) for piece in range(len(index.pieces)))
    data = Tokens(facts, lambda _, offset, length: rows[offset : offset + length])
    job = Job.model_validate(run.job)
    model = plain_model(job, facts)
    optimizer = plain_optimizer(model, job.train)
    for step in range(1, steps + 1):
        ids = sample_ids(Position().positions(step, job.train.batch), job.run.seed, facts.samples)
        rate = learning_rate(job.train, step, facts.steps)
        plain_step(model, optimizer, job.train, rate, *data.batch(ids))
    wanted = dict(model.named_parameters())
    found = load_file(run.folder / "out" / "model.safetensors")
    assert set(found) <= set(wanted)
    return max(float((tensor - wanted[name].detach()).abs().max()) for name, tensor in found.items())
