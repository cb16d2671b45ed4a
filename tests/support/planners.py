"""A planner for tests that wait for their plans."""

from dataclasses import replace

from farflung.coordinator.membership.questions import Question
from farflung.coordinator.planning.measured import Measured
from farflung.coordinator.planning.planner import Search, search
from farflung.job.data.facts import Facts, LayerProfile, Profile
from farflung.job.schema import Job


def planner_of(workload, device_of, links, seed=0, reached=lambda: 1.0, least=1):
    """A planner that works a plan out while its caller waits. ``links()``: what was measured by then."""

    def plan(names, current, broken):
        devices = tuple(device_of(name) for name in names)
        measured = tuple((*pair, *found) for pair, found in links().items())
        asked = Question(tuple(names), current, broken)
        return search(Search(replace(workload, reached=reached()), asked, devices, measured, least, seed))

    return plan


def measured(count):
    """(names, what is known) of a run of so many equal nodes whose links nobody has measured."""
    names = [f"n{number}" for number in range(count)]
    job = Job.model_validate(
        {
            "run": {"name": "many", "steps": 10},
            "model": {"build": "none:none"},
            "data": {"build": "none:none"},
            "train": {"batch": 8, "microbatch": 1},
        }
    )
    layer = LayerProfile(name="block", parameters=10, flops_per_sample=1e9, activation_elements_per_sample=8)
    facts = Facts(
        samples=100,
        validation_samples=1,
        context=16,
        vocabulary=10,
        token_dtype="uint16",
        steps=10,
        tokens_digest="",
        profile=Profile(layers=[layer] * 4, tied=False, family="build"),
        artifacts={},
    )
    device = {"kind": "cuda", "description": "one kind", "tflops": 30.0, "memory_bytes": 24 << 30}
    return names, Measured(job, facts, {name: dict(device) for name in names}, {})
