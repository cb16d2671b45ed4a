"""Training loops of one's own, each in a process of its own, joined by farflung.group."""

import json
import os
import re
import signal
from types import SimpleNamespace

import pytest
import torch
from documents import ROOT
from torch import nn
from torch.nn import functional

import farflung
from farflung.job.data.sampling import Position, sample_ids
from farflung.job.schema import Job
from farflung.node.training.external.external_loop import OwnLoop
from farflung.node.training.external.external_model import OwnModel, OwnOptimizer
from farflung.proto.errors import FarflungError
from farflung.proto.words.link import Link

pytestmark = pytest.mark.timeout(1200)  # what is waited for is a state

STEPS, SAMPLES, BATCH, SEED = 120, 240, 12, 3

LOOP = """\
import json, sys, time
from pathlib import Path
import torch
from torch.nn import functional
import farflung
import parts

name = sys.argv[1]
model, optimizer = parts.make(name)
inputs, targets = parts.data()
say = lambda event: print(json.dumps(event), flush=True)
with farflung.group("@link", model, optimizer, name=name, cache=Path("cache-" + name), on_event=say) as g:
    while g.samples:
        share, step = g.samples, g.steps + 1
        loss = functional.cross_entropy(model(inputs[share]), targets[share])
        loss.backward()
        if not Path("go").exists():
            time.sleep(0.05 if step < 20 else 2.0)  # the run must not end before all have come
        say({"event": "mine", "step": step, "samples": share, "counted": g.step(loss)})
torch.save(model.state_dict(), name + ".pt")
"""

PARTS = """\
import torch
from torch import nn

def make(name):
    torch.manual_seed(sum(name.encode()))  # each begins with weights of its own
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)

def data():
    random = torch.Generator().manual_seed(5)
    inputs = torch.randn(240, 8, generator=random)
    return inputs, (inputs @ torch.randn(8, 3, generator=random)).argmax(1)
"""


def begin(run, **updates):
    """A coordinator of a run of the members' own model."""
    run.job = {
        "run": {"name": "own", "seed": SEED, "steps": STEPS},
        "model": {"parameters": 147},
        "data": {"samples": SAMPLES},
        "train": {"batch": BATCH, "microbatch": 2},
        "parallel": {"min_nodes": 2},
        "updates": updates,
        "checkpoint": {"every": 0},
    }
    run.write_job()
    (run.folder / "loop.py").write_text(LOOP)
    (run.folder / "parts.py").write_text(PARTS)
    run.coordinator("--link-file", "link")


def plain(run, first, steps):
    """The weights after as many steps of one ordinary loop over whole batches, from the first member's weights."""
    scope = {}
    exec(PARTS, scope)
    model, optimizer = scope["make"](first)
    inputs, targets = scope["data"]()
    for step in range(1, steps + 1):
        ids = sample_ids(Position().positions(step, BATCH), SEED, SAMPLES)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs[ids]), targets[ids]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.state_dict()


def test_members_are_killed_join_and_crash_and_the_result_is_that_of_one_loop(farm):
    run = farm()
    begin(run, mode="gradient")
    a, b = (run.script(name, "loop.py", name) for name in "ab")
    run.trains("a", "b")
    first = run.view()["pipelines"][0][0]
    b.kill()
    run.trains("a", steps=1)
    c = run.script("c", "loop.py", "c")
    run.trains("a", "c", steps=1)
    number = run.view()["view"]
    [io] = a.family[1:]
    os.kill(io, signal.SIGSEGV)
    run.wait(lambda: a.of("warning"), "a says that it joins again")
    run.wait(lambda: run.view()["view"] > number + 1, "two view changes")
    run.trains("a", "c", steps=1)
    (run.folder / "go").touch()
    run.wait(lambda: run.c.of("done"), "the run is done")
    for one in (a, c):
        run.wait(lambda one=one: not one.alive, f"{one.name} ends")
        assert one.status == 0, run.story()
    assert [event["node"] for event in run.events("left")][:1] == ["b"]
    assert "was ended by SIGSEGV" in a.of("warning")[0]["message"] and "joins again" in a.of("warning")[0]["message"]
    assert [event["samples"] for event in run.events("step")] == [BATCH] * STEPS
    mine = [event for one in (a, b, c) for event in one.of("mine", counted=True)]
    known = sorted(sample for event in mine if event["step"] == STEPS for sample in event["samples"])
    assert known == sorted(sample_ids(Position().positions(STEPS, BATCH), SEED, SAMPLES))
    ends = [torch.load(run.folder / f"{name}.pt") for name in "ac"]
    expected = plain(run, first, STEPS)
    for name, values in expected.items():
        assert torch.equal(ends[0][name], ends[1][name])
        torch.testing.assert_close(ends[0][name], values, atol=1e-5, rtol=1e-4)


def test_the_page_and_its_loop(farm):
    """docs/how-to/own-loop.md with ten times its steps, in delta mode with two processes; one leaves early."""
    page = (ROOT / "docs" / "how-to" / "own-loop.md").read_text()
    blocks = dict(re.findall(r"```\w+\n# (job\.toml|loop\.py)\n(.*?)```", page, re.DOTALL))
    run, steps = farm(), 400  # enough for the goodbye to come before the end, whatever else the machine does
    (run.folder / "job.toml").write_text(blocks["job.toml"].replace("steps = 40\n", f"steps = {steps}\n"))
    (run.folder / "loop.py").write_text(blocks["loop.py"])
    early = blocks["loop.py"].replace("while g.samples:", "while g.steps < 20:")
    (run.folder / "early.py").write_text(early)
    run.coordinator("--link-file", "link")
    stays, leaves = run.script("stays", "loop.py"), run.script("leaves", "early.py")
    run.wait(lambda: run.c.of("done"), "the run is done")
    for one in (stays, leaves):
        run.wait(lambda one=one: not one.alive, f"{one.name} ends")
        assert one.status == 0, run.story()
    assert f"{steps} steps, the last loss" in stays.said.read_text()
    assert "its training loop has ended" in run.events("left")[0]["why"]
    last = run.events("view")[-1]
    assert len(last["pipelines"]) == 1 and "is leaving: its training loop has ended" in last["why"]
    losses = {event["step"]: event["loss"] for event in run.events("step")}
    assert sorted(losses) == list(range(1, steps + 1)) and losses[steps] < 0.7 * losses[1]


def test_what_cannot_be_averaged_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    with pytest.raises(FarflungError, match="moves 1 tensors, of which 0"):
        OwnModel(model, torch.optim.SGD([nn.Parameter(torch.zeros(3))], lr=0.1))
    with pytest.raises(FarflungError, match=r"is torch\.bfloat16, not torch\.float32"):
        half = nn.Linear(2, 2).bfloat16()
        OwnModel(half, torch.optim.SGD(half.parameters(), lr=0.1))
    with pytest.raises(FarflungError, match="BatchNorm1d, whose statistics"):
        normed = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        OwnModel(normed, torch.optim.SGD(normed.parameters(), lr=0.1))
    with pytest.raises(FarflungError, match="LBFGS takes no step by itself"):
        lbfgs = torch.optim.LBFGS(model.parameters())
        OwnOptimizer(OwnModel(model, lbfgs), lbfgs)
    with pytest.raises(FarflungError, match="NAdam keeps 'mu_product'"):
        nadam = torch.optim.NAdam(model.parameters())
        OwnOptimizer(OwnModel(model, nadam), nadam)
    used = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    used.step()
    with pytest.raises(FarflungError, match="has taken steps already"):
        OwnOptimizer(OwnModel(model, used), used)


@pytest.mark.parametrize(
    "make, moments",
    [
        (lambda p: torch.optim.SGD(p, 0.1), ()),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1), ("momentum_buffer",)),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")),
        (lambda p: torch.optim.Adagrad(p), ("sum",)),
    ],
)
def test_the_state_of_an_optimizer_lies_in_the_sections(make, moments):
    model = nn.Linear(3, 2)
    optimizer = make(model.parameters())
    assert OwnOptimizer(OwnModel(model, optimizer), optimizer).moments == moments


def test_a_spare_at_the_end_says_that_its_weights_are_old(caplog):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loop = OwnLoop(OwnModel(model, optimizer), optimizer)
    before = [values.clone() for values in model.parameters()]
    loop.end(None)
    assert loop.take() is None
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    [said] = caplog.records
    assert said.levelname == "WARNING" and "not the run's final ones" in said.message


def test_a_run_with_a_model_of_its_own_is_not_for_groups(farm, monkeypatch):
    run = farm()
    run.coordinator("--link-file", "link")
    monkeypatch.chdir(run.folder)
    model = nn.Linear(2, 2)
    with pytest.raises(FarflungError, match="this run has a model of its own"):
        farflung.group("@link", model, torch.optim.SGD(model.parameters(), 0.1), cache=run.folder).__enter__()
    run.job = {
        "run": {"steps": 3},
        "model": {"parameters": 7},
        "data": {"samples": 3, "tokenizer": "bytes"},
        "train": {"learning_rate": 0.5},
    }
    run.write_job()
    done = run.coordinator(wait=False)
    run.wait(lambda: not done.alive, "the job is refused")
    assert done.status == 2 and "train.learning_rate is decided by the members' own loop" in json.dumps(done.events)


def test_a_loop_s_moments_lie_in_a_folder_where_the_job_offloads_them_and_a_gpu_is_told(tmp_path):
    model = nn.Linear(4, 3)
    parameters = sum(one.numel() for one in model.parameters())
    link = Link("127.0.0.1", 7070, run="0" * 16, ticket=f"{'0' * 8}.{'0' * 32}")

    def group(folder):
        optimizer = torch.optim.AdamW(model.parameters())
        return farflung.group(str(link), model, optimizer, cache=tmp_path, insecure=True, offload_folder=folder)

    (tmp_path / "file").write_text("")
    with pytest.raises(FarflungError, match="cannot keep its moments in"):
        group(tmp_path / "file" / "below")
    one = group(str(tmp_path / "nvme"))
    assert one._loop.owner.offload_folder == tmp_path / "nvme" and (tmp_path / "nvme").is_dir()
    assert group(None)._loop.owner.offload_folder is None
    tables = {"run": {"steps": 1}, "model": {"parameters": parameters}, "data": {"samples": 4}}
    for kind in ("none", "moments"):
        joined = SimpleNamespace(job=Job.model_validate({**tables, "train": {"offload": kind}}))
        one._check(joined)
        one._model.device = torch.device("cuda:0")
        if kind == "moments":
            with pytest.raises(FarflungError, match="steps on cuda:0, where it needs them"):
                one._check(joined)
        one._model.device = torch.device("cpu")
