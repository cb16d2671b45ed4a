"""A rank of an island is killed while the others wait for it: the node says so and ends, and the run goes on."""

import os
import signal

import pytest
from plain_loop import plain_losses
from sharded_runs import DATA, FACTS, GROUP, STEPS, job_of

from farflung.node.pipeline.inside import hands
from farflung.node.pipeline.island import Island
from farflung.proto.errors import RunFailed
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

REST = Plan(pipelines=(("n1",),), stages=GROUP.stages, microbatches=(4,), schedule="1f1b")
COCKTAIL = {"mode": "delta", "codec": "cocktail:random=0.5,top=0.2,bits=4", "overlap": 1, "dense_rounds": 1}


WHEN = {
    "optimiser step": ("step", {}),
    "encoding": ("encode", COCKTAIL),
    "placing a step's sum": ("put", {"codec": "none", "pattern": "publishers"}),
}


@pytest.mark.parametrize(("during", "updates"), WHEN.values(), ids=WHEN)
def test_a_rank_is_killed_and_the_run_goes_on(monkeypatch, during, updates):
    """It is stopped first, so that it is killed with the order in hand, and certainly not after it has answered."""
    monkeypatch.setattr(hands, "GRACE_SECONDS", 10_000.0)  # it would end the tests' own process
    order, seen = Island.order, []

    def killing(island, rank, do, *tensors, **words):
        second = do == during and len(seen) == 1
        seen.extend([do] if do == during else [])
        process = island._hands[rank - 1].process
        if second:
            os.kill(process.pid, signal.SIGSTOP)
        order(island, rank, do, *tensors, **words)
        if second:
            os.kill(process.pid, signal.SIGKILL)

    monkeypatch.setattr(Island, "order", killing)
    job = job_of(**updates)
    with Island("cpu", 2) as island:
        island.measure()
        hub = Hub(job, FACTS)
        for name in GROUP.nodes:
            hub.start(name, DATA, island if name == "n0" else None)
        hub.begin(GROUP, GROUP.nodes, checkpoint=0)
        with pytest.raises(RuntimeError, match="n0 ended"):
            hub.finish(GROUP.nodes)
        hub.kill("n0")
        assert not hub.threads["n0"].is_alive()
        assert isinstance(hub.errors["n0"], RunFailed)
        why = str(hub.errors["n0"])
        assert why.startswith("process 1 of this node's island (cpu) was killed by SIGKILL, so the node ends")
    assert [hand.process.returncode for hand in island._hands] == [-signal.SIGKILL]
    hub.change(REST, ["n1"])
    outcome = hub.finish(["n1"])
    assert sorted(outcome.losses) == list(range(1, STEPS + 1))
    if updates is not COCKTAIL:  # of step 2 this hub has perhaps only n1's samples
        wanted = dict(enumerate(plain_losses(job, FACTS, DATA, STEPS), 1))
        del wanted[2], outcome.losses[2]
        assert outcome.losses == pytest.approx(wanted, abs=1e-5)
