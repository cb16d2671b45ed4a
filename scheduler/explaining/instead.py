"""Which one change of the job would let the spares of a plan train: each change is planned and simulated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from ..errors import PlanError
from ..networks.network import Network
from ..planning.planner import plan
from ..plans import Plan
from ..workloads.ladder import link_choices, workload_fields
from ..workloads.workload import Workload
from .predict import predict

SELDOM = 20
"""Steps between two rounds in the change that makes rounds rarer."""
MORE = 4
"""The batch is tried this many times as large where it has fewer microbatches than there are machines."""
MORE_OR_LESS = (2, 4, 8, 16)
"""The multiples of the batch that are tried where the job has a critical batch, beyond which a larger batch helps
little."""
WORTH_SAYING, CLEARER = 1.2, 1.05
"""WORTH_SAYING: a change is mentioned from this many times the plan's tokens a second. CLEARER: a later change of the
list replaces an earlier one from this many times the earlier one's tokens a second."""
PLAIN_BITS = 32.0


def changes(network: Network, workload: Workload) -> Iterator[tuple[str, Workload]]:
    """(keys of the job in words, the workload with these keys), the change that costs the training least first."""
    sent = workload.microbatch * max((layer.activation for layer in workload.layers[:-1]), default=1)
    if workload.schedule == "gpipe":
        yield 'parallel.schedule = "1f1b"', replace(workload, schedule="1f1b")
    if not workload.codecs and workload.activation_bits > 8 and workload.stages != 1:
        codecs = link_choices("aqsgd:bits=4", "int8", sent, PLAIN_BITS)
        yield 'activations.forward = "auto"', replace(workload, codecs=codecs)
    if not workload.recompute and any(device.memory_bytes is not None for device in network.devices):
        yield "train.recompute = true", replace(workload, recompute=True)
    if workload.movable_bytes and any(device.memory_bytes is not None for device in network.devices):
        less = workload.optimizer_bytes - workload.movable_bytes
        yield 'train.offload = "moments"', replace(workload, optimizer_bytes=less, movable_bytes=0.0)
    if workload.mode == "delta" and not workload.overlap:
        yield "updates.overlap = 1", replace(workload, overlap=1)
    turns = workload.fragments  # of a round every few steps each: the job's every is that of a weight
    if workload.every * turns < SELDOM and SELDOM % turns == 0:
        mode = "" if workload.mode == "delta" else 'mode = "delta" and '
        yield f"updates.{mode}every = {SELDOM}", replace(workload, mode="delta", every=SELDOM // turns)
    if not workload.update_ladder:
        fields = workload_fields(workload.mode, "auto", workload.overlap, workload.every, workload.fragments)
        yield 'updates.codec = "auto"', replace(workload, **fields)
    if workload.microbatches < len(network):
        for more in (MORE,) if workload.critical_batch is None else MORE_OR_LESS:
            yield f"train.batch = {more * workload.batch}", replace(workload, batch=more * workload.batch)


def instead(network: Network, workload: Workload, made: Plan, time_limit: float, seed: int = 0) -> str:
    """A sentence: the change that gains most, how many machines train with it, and how many times as many tokens a
    second (where the job has a critical batch: tokens that count, see Workload.counts). Empty where no change gains
    WORTH_SAYING. time_limit: seconds for all changes together."""
    now = predict(network, workload, made).tokens_per_second * workload.counts
    what = "the tokens" if workload.critical_batch is None else "the tokens that count"
    tried = list(changes(network, workload))
    best, words = WORTH_SAYING / CLEARER, ""
    deadline = time.monotonic() + time_limit
    for at, (said, changed) in enumerate(tried):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            other = plan(network, changed, time_limit=left / (len(tried) - at), seed=seed, near=made)
        except PlanError:
            continue
        times = predict(network, changed, other).tokens_per_second * changed.counts / now
        if times >= best * CLEARER and len(other.nodes) > len(made.nodes):
            who = "all" if not other.spares else str(len(other.nodes))
            best, words = times, f"with {said} {who} of {len(network)} train: {times:.2g} times {what}"
    return words
