"""``train.compile``: layers through torch.compile. Here by a backend that only traces; the slow test makes code too."""

import pytest
import torch
from plain_loop import plain_losses
from torch import nn
from torch._dynamo import utils
from windows import Windows, facts_of

from farflung.job.schema import Job
from farflung.node.models.compiled import not_compiled
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

STEPS = 3
FACTS = facts_of(samples=60, validation=6, context=8, vocabulary=29, steps=STEPS)
DATA = Windows(FACTS)
PLAN = Plan(pipelines=(("n0", "n1"),), stages=((0, 2), (3, 4)), microbatches=(3,), schedule="1f1b")


@pytest.fixture
def backend(request, monkeypatch):
    """Layers are compiled by this backend."""
    compiled = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda layer: compiled(layer, backend=request.param))
    torch._dynamo.reset()
    utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # the tracer looks at activations
@pytest.mark.usefixtures("nobody_late", "backend")
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)], indirect=True)
def test_the_losses_are_those_of_a_plain_loop(backend):
    """Three blocks on two stages, in training and in evaluation: two graphs, and not one for each block."""
    job = Job.model_validate(
        {
            "run": {"name": "compiled", "seed": 3, "steps": STEPS},
            "model": {"family": "llama", "layers": 3, "width": 16, "heads": 2, "context": 8},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 6, "microbatch": 2, "learning_rate": 1e-2, "eval_every": 2, "compile": True},
            "updates": {"mode": "gradient", "codec": "none"},
            "checkpoint": {"every": 0},
        }
    )
    hub = Hub(job, FACTS)
    for name in PLAN.nodes:
        hub.start(name, DATA)
    hub.begin(PLAN, PLAN.nodes, checkpoint=0)
    outcome = hub.finish(PLAN.nodes)
    assert not hub.errors, hub.errors
    wanted = plain_losses(job, FACTS, DATA, STEPS)
    assert [outcome.losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted, abs=1e-5)
    assert utils.counters["stats"]["unique_graphs"] == 2


def test_a_failure_of_the_compiler_is_told_from_others():
    def backend(graph, inputs):
        raise OSError("no compiler here")

    with pytest.raises(RuntimeError) as caught:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    told = not_compiled(caught.value)
    assert told is not None and "no compiler here" in told.message and "compile = false" in told.hint
    assert not_compiled(RuntimeError("shapes do not fit")) is None
