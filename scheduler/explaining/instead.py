"""What one change of the job would do for machines that a plan leaves out: each is planned and simulated."""

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
"""Steps between rounds that are tried."""
MORE = 4
"""Times the batch that is tried where it has too few microbatches for all machines."""
MORE_OR_LESS = (2, 4, 8, 16)
"""The same where the job says from which batch on a larger one helps little."""
WORTH_SAYING, CLEARER = 1.2, 1.05
"""What a change must gain to be said; and what a later one of the list must gain over an earlier one."""
PLAIN_BITS = 32.0


def changes(network: Network, workload: Workload) -> Iterator[tuple[str, Workload]]:
    """(words of the job, the workload with them), what costs a training least first."""
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
        yield "train.offload = true", replace(workload, optimizer_bytes=less, movable_bytes=0.0)
    if workload.mode == "delta" and not workload.overlap:
        yield "updates.overlap = 1", replace(workload, overlap=1)
    if workload.every < SELDOM:
        mode = "" if workload.mode == "delta" else 'mode = "delta" and '
        yield f"updates.{mode}every = {SELDOM}", replace(workload, mode="delta", every=SELDOM)
    if not workload.update_ladder:
        fields = workload_fields(workload.mode, "auto", workload.overlap, workload.every, 1)
        yield 'updates.codec = "auto"', replace(workload, **fields)
    if workload.microbatches < len(network):
        for more in (MORE,) if workload.critical_batch is None else MORE_OR_LESS:
            yield f"train.batch = {more * workload.batch}", replace(workload, batch=more * workload.batch)


def instead(network: Network, workload: Workload, made: Plan, time_limit: float, seed: int = 0) -> str:
    """The change that gains most, in a sentence with who trains then and how many times the tokens, those that count
    where the job has a critical batch; empty where none gains WORTH_SAYING. time_limit: seconds for all of them."""
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
