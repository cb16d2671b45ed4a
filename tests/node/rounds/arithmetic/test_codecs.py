"""Every codec in real rounds: it trains and all members end with the same bits, or a job with it is refused."""

import pytest
import torch
from windows import Windows, facts_of

from farflung import compress
from farflung.job.schema import Job
from farflung.node.rounds.arithmetic.ways.phased import phases_of
from farflung.proto import data_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

pytestmark = pytest.mark.usefixtures("nobody_late")

STEPS = 4
SPECS = [
    *(name for name in compress.names() if name not in ("topk", "randomk", "sign")),
    "topk:ratio=0.2,feedback=true",
    "randomk:ratio=0.5,feedback=true",
    "sign:scale=rms,feedback=true",
    "int4:rounding=nearest,feedback=true",
    "powersgd:rank=4,feedback=true",
    "powersgd:rank=4,feedback=true,factors=16,rate=2",
    "thc:bits=6,feedback=true",
    "demo:k=128,feedback=true",
    "chunked_topk:k=512,bits=3,feedback=true",
    "cocktail:random=0.5,top=0.5,feedback=true",
    "nf4:feedback=true",
    "tile:feedback=true",
    "intsgd:rule=max",
]
THREE = Plan(pipelines=(("a",), ("b",), ("c",)), stages=((0, 2),), microbatches=(2, 1, 1))
TWO = Plan(pipelines=(("a",), ("b",)), stages=((0, 2),), microbatches=(3, 1))


def job_of(mode: str, codec: str, **more) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "codecs", "seed": 3, "steps": STEPS},
            "model": {"family": "llama", "layers": 1, "width": 16, "heads": 2, "context": 8, "tie": False},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 8, "microbatch": 2, "learning_rate": 3e-3, "eval_every": 0},
            "updates": {"mode": mode, "block": 256, "codec": codec, "dense_rounds": 1, **more},
            "checkpoint": {"every": 0},
        }
    )


def train(job: Job, plan: Plan) -> tuple[Hub, dict[str, torch.Tensor]]:
    """The hub after the run, and each node's g."""
    facts = facts_of(samples=40, validation=0, context=8, vocabulary=17, steps=STEPS)
    data = Windows(facts)
    hub = Hub(job, facts)
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors and not outcome.warnings
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    found = {name: hub.trainers[name].state.sections["stage-0"].g for name in plan.nodes}
    assert all(bool(torch.isfinite(g).all()) and torch.equal(g, found["a"]) for g in found.values())
    return hub, found


@pytest.mark.parametrize("mode", ["delta", "gradient"])
@pytest.mark.parametrize("spec", SPECS)
def test_trains_with_equal_fingerprints_or_is_refused(spec, mode):
    try:
        compress.check(spec, "update" if mode == "delta" else "gradient")
    except compress.CodecError as refusal:
        assert spec.partition(":")[0] in str(refusal) and len(str(refusal)) < 400 and "\n" not in str(refusal)
        return
    hub, found = train(job_of(mode, spec), THREE if mode == "delta" else TWO)
    begun = hub.trainers["a"].context.definition
    start = torch.cat([begun.initial(name, 3).reshape(-1) for name in begun.parameter_names(0, 2)])
    assert float((found["a"] - start).abs().max()) > 1e-3  # it moved
    assert hub.trainers["a"].training.view.links["stage-0"].rounds.plan.phases == max(1, phases_of(spec))


def test_one_bit_of_momentum_after_the_freeze():
    job = job_of("gradient", "sign:scale=rms,feedback=true", dense_rounds=2)
    job = job.model_copy(update={"train": job.train.model_copy(update={"optimizer": "onebit_adam"})})
    hub, _ = train(job, THREE)
    a = hub.trainers["a"]
    moments = a.state.sections["stage-0"].moments
    assert all(torch.equal(moments["m"], t.state.sections["stage-0"].moments["m"]) for t in hub.trainers.values())
    assert bool((moments["m"][moments["v"] == 0] == 0).all()) and float(moments["m"].abs().max()) > 0
    assert float(a.state.sections["stage-0"].feedback.abs().max()) > 0


def test_sums_of_few_bits_cost_few_bytes():
    sent = {}
    for codec in ("none", "global_qsgd:bits=8", "powersgd:rank=1,feedback=true"):
        hub, _ = train(job_of("gradient", codec, dense_rounds=0), TWO)
        sent[codec] = hub.bytes[data_pb2.CONTRIBUTION] + hub.bytes[data_pb2.RESULT]
    assert sent["global_qsgd:bits=8"] < 0.5 * sent["none"]
    assert sent["powersgd:rank=1,feedback=true"] < 0.5 * sent["none"]
