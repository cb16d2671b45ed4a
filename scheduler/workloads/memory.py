"""The bytes that a node holds for a stage, by kind: weights, gradient, moments, reference, errors, activations,
messages.

A plan compares ``layers.stage_memory`` with a device's memory. Everything here follows from the job's tables and the
workload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .jobs import moment_bytes, reference_bytes
from .layers import beside, stage_memory, state_memory, trained
from .offload import APART, NONE
from .round_copies import error_copies, message_copies, pattern_of
from .workload import Workload


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of one stage on each node that holds it.

    frozen: weights that do not train. moments: the optimiser's, in main memory where the job offloads. reference:
    the group's weights g and the outer optimiser's momentum. errors: residuals of the node's own encodings and
    server errors of the sums that it publishes. activations: what the backward pass keeps of the microbatches in
    flight, and a layer's working memory. messages: an estimate of a round's largest total of messages, always in
    main memory. copies: the weights on the device where those that the optimiser moves lie in main memory, with all
    but the activations; None: they lie together.
    """

    weights: float
    frozen: float
    gradient: float
    moments: float
    reference: float
    errors: float
    activations: float
    messages: float
    offload: str = NONE
    copies: float | None = None

    @property
    def device(self) -> float:
        """Bytes on the device."""
        if self.copies is not None:
            return self.copies + self.frozen + self.activations
        own = self.weights + self.frozen + self.gradient + self.reference + self.errors + self.activations
        return own + (self.moments if self.offload == NONE else 0.0)

    @property
    def host(self) -> float:
        """Bytes in main memory beside the device's; on a CPU both are one memory."""
        if self.copies is not None:
            return self.messages + self.weights + self.gradient + self.moments + self.reference + self.errors
        return self.messages + (0.0 if self.offload == NONE else self.moments)

    def record(self) -> dict[str, int]:
        """Field name -> whole bytes, with the sums as "device" and "host"."""
        parts = {name: value or 0.0 for name, value in asdict(self).items() if name != "offload"}
        return {name: round(value) for name, value in {**parts, "device": self.device, "host": self.host}.items()}


def need_of(
    job: Mapping[str, Any], workload: Workload, layers: tuple[int, int], held: int, members: int, codec: str = ""
) -> Need:
    """The bytes of layers [first, last] with ``held`` microbatches in flight, in a group of ``members`` nodes.
    ``codec``: of updates, where the plan has chosen it; else the job's."""
    first, last = layers
    train, updates = job.get("train") or {}, job.get("updates") or {}
    here = workload.layers[first : last + 1]
    count = trained(workload, first, last)
    frozen = 4.0 * sum(layer.frozen for layer in here)
    whole = stage_memory(beside(workload, 1), first, last, held)
    codec = codec or str(updates.get("codec", "none"))
    pattern, kind = pattern_of(updates, members), workload.offload
    return Need(
        weights=4.0 * count,
        frozen=frozen,
        gradient=4.0 * count,
        moments=moment_bytes(train, (job.get("model") or {}).get("lora")) * count,
        reference=reference_bytes(updates) * count,
        errors=4.0 * count * error_copies(updates, codec, pattern, members, workload.overlap),
        activations=whole - state_memory(replace(workload, round_bytes=0.0), first, last) - frozen,
        messages=4.0 * count * message_copies(updates, codec, pattern, members, count),
        offload=kind,
        copies=state_memory(workload, first, last) if kind in APART else None,
    )
