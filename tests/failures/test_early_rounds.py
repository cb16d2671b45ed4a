"""Two real nodes of whose rounds most goes out while their last backward passes run: seen in a trace, and no loss
differs."""

import json

import pytest
from farm import Process

STEPS, WIDTH = 3, 1024
MODEL = f"""\
import torch
from torch import nn
from torch.nn import functional

def model():
    sizes = (16, {WIDTH}, {WIDTH}, {WIDTH}, {WIDTH})  # 3.2 million parameters: a section of three buckets
    blocks = [nn.Sequential(nn.Linear(one, two), nn.Tanh()) for one, two in zip(sizes, sizes[1:])]
    return nn.Sequential(*blocks, nn.Linear({WIDTH}, 4)), total

def total(logits, targets):
    return functional.cross_entropy(logits, targets, reduction="sum")

def data():
    random = torch.Generator().manual_seed(9)
    x = torch.randn(560, 16, generator=random)
    y = (x @ torch.randn(16, 4, generator=random)).argmax(1)
    return (x[:480], y[:480]), (x[480:], y[480:])
"""


def within(spans: list[dict], outer: dict) -> list[dict]:
    return [one for one in spans if outer["ts"] <= one["ts"] and one["ts"] + one["dur"] <= outer["ts"] + outer["dur"]]


@pytest.mark.slow
def test_parts_are_offered_before_the_pass_ends_and_losses_are_the_plain_loops(farm):
    run = farm(parallel={"stages": 1, "pipelines": 2}, train={"learning_rate": 1e-4}, checkpoint={"every": 0})
    (run.folder / "paced.py").write_text(MODEL)
    run.coordinator("--min-nodes", "2")
    run.nodes("ab")
    run.trains("a", "b")
    profile = Process(run, "profile", ["profile", "state", "--steps", str(STEPS), "--out", "trace.json"])
    run.wait(lambda: not profile.alive, "the profile is taken")
    assert profile.status == 0, profile.log.read_text()
    events = json.loads((run.folder / "trace.json").read_text())["traceEvents"]
    nodes = {event["pid"] for event in events if event["name"] == "process_name"}
    assert len(nodes) == 2
    for pid in nodes:
        own = [event for event in events if event["ph"] == "X" and event["pid"] == pid]
        steps = [event for event in own if event["name"].startswith("step ")]
        assert len(steps) == STEPS
        for step in steps:
            backward = [one for one in within(own, step) if one["name"] == "backward"]
            encoded = [one for one in within(own, step) if one["name"] == "encode"]
            *before, last = sorted(backward, key=lambda one: one["ts"])
            assert before and not any(within(encoded, one) for one in before)
            assert within(encoded, last), "no part was offered within the step's last backward pass"
    last_step = run.step()
    losses = {event["step"]: event["loss"] for event in run.events("step")}
    assert [losses[n] for n in range(1, last_step + 1)] == pytest.approx(run.plain_losses(last_step), abs=1e-4)
