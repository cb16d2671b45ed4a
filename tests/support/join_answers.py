"""What a coordinator answers to a join of a small run, and the link and the device of who asks."""

from farflung.job.data.facts import Facts, Profile
from farflung.job.schema import Job
from farflung.proto.control_pb2 import Device

RUN, TICKET = "0123456789abcdef", "00000001." + "ab" * 16
JOB = Job.model_validate(
    {
        "run": {"name": "small", "steps": 4},
        "model": {"family": "gpt2", "layers": 2, "width": 32, "heads": 2, "context": 32},
        "data": {"text": ["/nowhere/*.txt"]},
        "train": {"batch": 8, "microbatch": 4, "optimizer": "adamw", "learning_rate": 1e-3},
    }
).model_dump_json()
FACTS = Facts(
    samples=100,
    validation_samples=10,
    context=32,
    vocabulary=256,
    token_dtype="uint8",
    steps=4,
    tokens_digest="",
    profile=Profile(layers=[], tied=True, family="gpt2"),
    artifacts={},
).model_dump_json()
DEVICE = Device(kind="cpu", tflops=0.1, memory_bytes=1 << 30, cores=2)
