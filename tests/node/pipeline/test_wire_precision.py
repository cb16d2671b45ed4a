"""What goes between stages where the job names no codec: fp32 of a run in fp32 or fp16, bf16 of a run in bf16.
The plan counts what goes."""

import pytest
from plain_loop import plain_losses
from windows import Windows, facts_of

from farflung.job.schema import Job
from farflung.proto import data_pb2
from farflung.scheduler import Plan
from farflung.scheduler.workloads.jobs import workload_of
from farflung.scheduler.workloads.ladder import link_choices, wire_codec
from farflung.testing.loopback import Hub

STEPS = 4
FACTS = facts_of(samples=60, validation=6, context=16, vocabulary=29, steps=STEPS)
DATA = Windows(FACTS)
PLAN = Plan(pipelines=(("n0", "n1"),), stages=((0, 1), (2, 3)), microbatches=(3,), schedule="1f1b")


def job_of(precision: str) -> Job:
    return Job.model_validate(
        {
            "run": {"name": "wire", "seed": 3, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 2, "width": 32, "heads": 4, "context": 16},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 6, "microbatch": 2, "learning_rate": 1e-2, "eval_every": 2, "precision": precision},
            "updates": {"mode": "gradient", "codec": "none"},
            "checkpoint": {"every": 0},
        }
    )


@pytest.mark.parametrize(("precision", "bits", "close"), [("fp32", 32, 1e-5), ("bf16", 16, 0.05), ("fp16", 32, 0.05)])
@pytest.mark.usefixtures("nobody_late")
def test_plan_and_run_agree(precision, bits, close):
    job, sizes = job_of(precision), {}

    def look(sender, to, header, data):
        sizes.setdefault(header.kind, set()).add(data.nbytes)
        return data

    hub = Hub(job, FACTS)
    hub.tamper = look
    for name in PLAN.nodes:
        hub.start(name, DATA)
    hub.begin(PLAN, PLAN.nodes, checkpoint=0)
    losses = hub.finish(PLAN.nodes).losses
    assert not hub.errors, hub.errors
    wanted = plain_losses(job, FACTS, DATA, STEPS, bf16=precision != "fp32")
    assert [losses[step] for step in range(1, STEPS + 1)] == pytest.approx(wanted, abs=close)

    elements = job.train.microbatch * 16 * 32
    workload = workload_of(job.model_dump(), vocabulary=29)
    for kind, planned in (
        (data_pb2.ACTIVATION, workload.activation_bits),
        (data_pb2.ACTIVATION_GRADIENT, workload.gradient_bits),
        (data_pb2.EVALUATION, workload.activation_bits),
    ):
        (size,) = sizes[kind]
        assert bits * elements / 8 <= size < bits * elements / 8 + 100
        assert planned * elements / 8 == pytest.approx(size, abs=100)


def test_codecs_by_link_count_the_same():
    assert [wire_codec(*pair) for pair in (("none", "bf16"), ("none", "fp32"), ("int8", "bf16"), ("none", "fp16"))] == [
        "bf16",
        "none",
        "int8",
        "none",
    ]
    tables = {"activations": {"forward": "int8", "by_link": True}, "train": {"precision": "bf16"}}
    job = job_of("bf16").model_dump()
    workload = workload_of({**job, **{name: {**job[name], **more} for name, more in tables.items()}}, vocabulary=29)
    none, half = workload.codecs[:2]
    assert (none.name, half.name) == ("none", "bf16") and none.forward == half.forward == pytest.approx(16, abs=1)
    assert link_choices("int8", "none", 1 << 20, 32.0)[0].forward == 32
