"""Calls the scheduler with a run's numbers: from measured devices and links to a plan of the joined nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from ...job.chosen import microbatch_of
from ...job.data.facts import Facts, LayerProfile
from ...job.schema import SECURE_MEMBERS, Job
from ...scheduler import Device, Layer, Network, PlanError, Workload, plan
from ...scheduler.networks.guesses import confidence_of
from ...scheduler.planning.choose_trials import held, with_trials
from ...scheduler.plans import Plan
from ...scheduler.workloads import jobs
from ...scheduler.workloads.inside import PIECES
from ...scheduler.workloads.offload import APART, on_device
from ...scheduler.workloads.round_copies import USUAL
from ..membership.questions import Question

_SEARCH_S = 1.0
"""Seconds of a search for which a view change waits."""
_MOST_DATA = 64e9  # bytes
_FORWARD_PART = 1 / 3  # a profile counts forward and backward, the scheduler the forward alone

Links = Mapping[tuple[str, str], tuple[float, float]]
"""(from, to) -> (seconds one way, bits per second)."""


def moment_bytes(job: Job) -> float:
    """Bytes that the optimiser's moments take for each parameter."""
    return jobs.moment_bytes(job.train.model_dump(), job.model.model_dump().get("lora"))


def memory_of(job: Job, kind: str, memory: float, nodes: int = 1) -> float:
    """Bytes of a device's ``memory`` that a plan may use, for a device of this kind in a run of this many nodes.

    A plan does not count what lies in main memory: a round's messages and what the job offloads. A CPU has
    only main memory, so they are subtracted from it."""
    if kind != "cpu":
        return memory
    stages, pipelines = job.parallel.stages, job.parallel.pipelines
    members = max(1, nodes // (stages if isinstance(stages, int) else 1))
    members = min(members, pipelines if isinstance(pipelines, int) else USUAL)
    messages, moments = jobs.message_bytes(job.updates.model_dump(), members), moment_bytes(job)
    offload, reference = job.train.offload_kind, jobs.reference_bytes(job.updates.model_dump())
    moved = reference if offload in APART else 0.0
    counted = on_device(offload, jobs.WEIGHT_BYTES, moments, 0.0)
    return memory * counted / (jobs.WEIGHT_BYTES + moments + messages + moved)


def memories_of(job: Job, found: Mapping[str, Any], nodes: int = 1) -> dict[str, Any]:
    """The memory of a device that a node describes in ``found``, as fields of the scheduler's Device: what a plan may
    use of it, or of each of an island's devices, and of the main memory beside them."""
    kind, memory = str(found.get("kind")), float(found.get("memory_bytes") or 0.0)
    ranks, main = int(found.get("devices") or 1), float(found.get("main_bytes") or 0.0)
    usable = memory_of(job, kind, memory, nodes)
    if usable <= 0:
        return {"memory_bytes": None}
    apart = job.train.offload_kind in APART  # then a plan counts all that lies there (Workload.main_bytes)
    whole = job.model_copy(update={"train": job.train.model_copy(update={"offload": False})}) if apart else job
    beside = memory_of(whole, "cpu", main, nodes)
    if kind == "cpu":  # the pieces of an island's processes take the same memory
        beside *= 1 - PIECES / (PIECES + jobs.WEIGHT_BYTES + moment_bytes(job))
    one_memory = {"one_memory": True} if kind == "cpu" else {}
    return {"memory_bytes": usable, "ranks": max(1, ranks), "main_bytes": beside if beside > 0 else None, **one_memory}


def workload_of(job: Job, facts: Facts) -> Workload:
    """One step of the job in the scheduler's numbers, layer costs from the profile."""
    layers = [
        Layer(
            one.name,
            one.parameters,
            one.flops_per_sample * _FORWARD_PART,
            max(1, one.activation_elements_per_sample),
            one.stored_elements_per_sample,
            one.frozen,
            one.copied_elements,
            one.working_elements_per_sample,
            one.temporary_elements,
            one.decoding_elements_per_sample,
            one.entry_elements_per_sample,
            one.after_elements_per_sample,
            one.after_working_elements_per_sample,
            one.after_copied_elements,
            one.largest_elements,
        )
        for one in facts.profile.layers
    ]
    return jobs.numbers(job.model_dump(), layers, facts.profile.tied, facts.context, shares=facts.profile.shares)


@dataclass(frozen=True)
class Search:
    """A question for a plan with all measurements at that time. ``measured``: (from, to, seconds one way, bit/s).
    ``least``: the fewest pipelines. ``ages``: seconds since each entry of ``measured``, 0 where training shows the
    rate; empty: all are new."""

    workload: Workload
    question: Question
    devices: tuple[Device, ...]
    measured: tuple[tuple[str, str, float, float], ...]
    least: int = 1
    seed: int = 0
    _: KW_ONLY
    seconds: float = _SEARCH_S
    ages: tuple[float, ...] = ()


def search(asked: Search) -> Plan:
    """The plan. PlanError: there is none. Pure, up to how far a search gets in its seconds.

    Where fewer nodes are left than the job's shape wants, or some of them can't reach each other, a plan has fewer
    pipelines, and fewer stages only when not even one pipeline can be filled. What was measured in the plan in force
    of the job's open keys stays, if there is a plan with it.
    """
    question = asked.question
    if not question.names:
        raise PlanError("no node is left")
    measured = {(source, target): (latency, rate) for source, target, latency, rate in asked.measured}
    pairs = [(source, target) for source, target, _, _ in asked.measured]
    ages = dict(zip(pairs, asked.ages, strict=True)) if asked.ages else {}
    for one, other in question.broken:
        measured[one, other] = measured[other, one] = (0.0, 0.0)
    network = Network.measured(
        list(asked.devices),
        {pair: latency for pair, (latency, _) in measured.items()},
        {pair: bandwidth for pair, (_, bandwidth) in measured.items()},
        confidence={pair: confidence_of(ages.get(pair, 0.0)) for pair in measured},
        age=ages,
    )
    known = held(asked.workload, question.current)
    try:
        made = _searched(asked, network, known)
    except PlanError:
        if known is asked.workload:
            raise
        made = _searched(asked, network, asked.workload)
    return with_trials(network, asked.workload, made, question.current)


def _searched(asked: Search, network: Network, workload: Workload) -> Plan:
    question, least = asked.question, asked.least
    fitted = fit_shape(workload, len(question.names))
    if (fitted.pipelines or len(question.names)) < least:
        raise PlanError(_too_few(least))
    while True:
        try:
            found = plan(network, fitted, time_limit=asked.seconds, seed=asked.seed, current=question.current)
            if len(found.pipelines) >= least:
                return found
            if fitted.pipelines is not None:
                raise PlanError(_too_few(least))
            fitted = replace(fitted, pipelines=least)
        except PlanError:
            # Nodes that can't reach each other need not stop the others: one of them becomes a spare.
            if (fitted.pipelines or 1) <= least or bool((network.bandwidth > 0).all()):
                raise
            fitted = replace(fitted, pipelines=(fitted.pipelines or 1) - 1)


def _too_few(least: int) -> str:
    return f"updates.secure waits for nodes for {least} pipelines: with fewer a sum hides nobody's update"


def fetch_seconds(job: Job, facts: Facts, plan: Plan, name: str, links: Links) -> float:
    """Seconds that a node takes to fetch the state of its place in a plan, over its fastest measured link; 0: not
    known.

    A joiner measures its sending rate; receiving is assumed to be as fast.
    """
    rates = []
    for other in plan.nodes:
        known = [links[pair][1] for pair in ((name, other), (other, name)) if pair in links]
        rates += [min(known)] if known else []
    ranges = [plan.stages[stage] for stage in plan.stages_of(name)]
    layers = [layer for first, last in ranges for layer in facts.profile.layers[first : last + 1]]
    size = sum(layer_bytes(job, layers))
    return 8 * size / max(rates) if rates and max(rates) > 0 else 0.0


def layer_bytes(job: Job, layers: Iterable[LayerProfile]) -> tuple[float, ...]:
    """For each layer, the bytes that a node fetches for it: weights and the state that moves them."""
    outer = 4.0 * bool(job.updates.outer_optimizer.momentum)
    moments = moment_bytes(job) if job.updates.mode == "gradient" else 0.0
    return tuple(layer.parameters * (4.0 + outer + moments) + 4.0 * layer.frozen for layer in layers)


def data_bytes(facts: Facts) -> float:
    """The most bytes of data that a node fetches before its first step: of larger data it keeps only the part used
    last."""
    rows = facts.samples + facts.validation_samples
    return min(4.0 * rows * (facts.context + 1), _MOST_DATA) if "data/tokens" in facts.artifacts else 0.0


def step_seconds(job: Job, facts: Facts, plan: Plan, tflops: Callable[[str], float]) -> float:
    """Seconds that a step of a plan computes on its slowest node, by the speed measured as it joined; 0: not known."""
    longest = 0.0
    for index, pipeline in enumerate(plan.pipelines):
        samples = plan.microbatches[index] * microbatch_of(job, plan.chosen)
        for name in dict.fromkeys(pipeline):
            ranges = [plan.stages[stage] for stage in plan.stages_of(name)]
            layers = [layer for first, last in ranges for layer in facts.profile.layers[first : last + 1]]
            speed = 1e12 * tflops(name)
            if speed > 0:
                longest = max(longest, samples * sum(layer.flops_per_sample for layer in layers) / speed)
    return longest


def fit_shape(workload: Workload, nodes: int) -> Workload:
    """The workload with its wished shape cut down to what ``nodes`` nodes can fill."""
    stages, pipelines = workload.stages, workload.pipelines
    needed = _nodes_for(workload)
    if stages is not None and needed > nodes:
        stages = needed = min(stages, nodes)
    if pipelines is not None:
        pipelines = max(1, min(pipelines, nodes // needed))
    return replace(workload, stages=stages, pipelines=pipelines)


def _nodes_for(workload: Workload) -> int:
    """The fewest nodes that hold the wished stages of one pipeline: interleaved, a node has up to 4 of them."""
    stages = workload.stages or 1
    if workload.schedule != "interleaved":
        return stages
    return min(
        stages // chunks for chunks in range(1, 5) if stages % chunks == 0 and (stages // chunks > 1 or chunks == 1)
    )


def wanted_nodes(job: Job) -> tuple[int, str]:
    """How many nodes the first view waits for, and why."""
    stages, pipelines = job.parallel.stages, job.parallel.pipelines
    if job.updates.secure and pipelines == "auto":
        pipelines = SECURE_MEMBERS
    if job.parallel.schedule == "interleaved":  # the shape depends on how many nodes join
        return job.parallel.min_nodes, f"parallel.min_nodes = {job.parallel.min_nodes}"
    shape = (1 if stages == "auto" else stages) * (1 if pipelines == "auto" else pipelines)
    if shape <= job.parallel.min_nodes or shape == 1:
        return job.parallel.min_nodes, f"parallel.min_nodes = {job.parallel.min_nodes}"
    parts = [(count, name) for count, name in ((pipelines, "pipeline"), (stages, "stage")) if count != "auto"]
    words = [f"{count} {name}{'s' if count != 1 else ''}" for count, name in parts]
    return shape, " of ".join(words)
