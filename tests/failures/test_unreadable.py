"""Checkpoints rot on the coordinator's disk while it runs, and its nodes are killed."""

import pytest

pytestmark = pytest.mark.timeout(1200)  # what is waited for is a state


def test_nodes_that_come_back_to_a_damaged_checkpoint_take_the_one_before(farm):
    run = farm(parallel={"pipelines": 2}, checkpoint={"every": 5, "keep": 3})
    run.coordinator()
    nodes = run.nodes("ab")
    run.wait(lambda: len(run.events("checkpoint")) > 2, "checkpoints")
    for node in nodes.values():
        node.kill()
    run.wait(lambda: len(run.events("left")) > 1, "both are missed")
    steps = sorted(int(path.name[5:]) for path in run.folder.rglob("step-*"))
    newest = next(iter(run.folder.rglob(f"step-{steps[-1]:08d}")))
    (file,) = newest.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    views = len(run.c.of("view"))  # one of them may have trained for a moment when the other was dead
    run.nodes("ab")
    before = run.wait(lambda: [e for e in run.c.of("view")[views:] if e["step"] < steps[-1]], "a view")[0]
    assert before["step"] in steps[:-1] and f"from the checkpoint of step {before['step']}" in before["why"]
    run.wait(lambda: run.events("checkpoint", step=steps[-1])[1:], "it is trained and stored once more")
    said = " ".join(event["message"] for event in run.events("warning"))
    assert f"cannot read stage-0.safetensors of the checkpoint of step {steps[-1]}" in said
    assert "has another digest than when it was stored" in said
    assert f"the checkpoint of step {steps[-1]} is damaged (stage-0.safetensors has another digest); it is in" in said
    assert len(list(run.folder.rglob(f"damaged-step-{steps[-1]:08d}"))) == 1
