"""Memory as torch counts it."""

import torch

from farflung.node.models.stage import Pass
from farflung.node.pipeline.island_worker import autocast
from farflung.node.state.optimizers.make_optimizer import make_optimizer
from farflung.node.state.stage_state import StageState
from farflung.scheduler import Plan


def peak_of(run) -> int:
    """The most bytes that torch has allocated at a time while ``run`` runs, beyond those from before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    events = [one for one in found.profiler.kineto_results.events() if one.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def peak_of_a_step(job, definition, stages, place, held, vocabulary) -> int:
    """The most bytes that stage ``place`` of one pipeline takes: its state, and a step with ``held`` microbatches in
    flight. Where the job offloads, the CPU is both, the device and main memory."""
    apart = job.train.offload_kind in ("optimizer", "parameters")
    row = tuple(f"n{number}" for number in range(len(stages)))
    plan = Plan(pipelines=(row,), stages=stages, microbatches=(2,))
    cpu, (samples, context) = torch.device("cpu"), (job.train.microbatch, job.model.context)

    def step():
        state = StageState(
            definition, job, plan, row[place], make_optimizer(job), cpu, computes_on=cpu if apart else None
        )
        (model,) = state.models
        for section in state.sections.values():
            section.x.normal_(std=0.02)
        for _, values in state.frozen():
            values.data.zero_()
        state.fresh()
        state.gradients.begin()
        passes = [passed(model.train()) for _ in range(held)]
        for one in passes:
            one.backward(torch.ones_like(one.output), 1.0)
        state.gradients.end()
        for section in state.sections.values():
            make_optimizer(job).step(section, 1, 1e-3)

    def passed(model):
        ids = torch.randint(0, vocabulary, (samples, context))
        hidden = ids if model.is_first else torch.randn(samples, context, definition.config.hidden_size)
        with autocast(job.train.precision, cpu):
            return Pass(model, hidden, ids)

    return peak_of(step)
