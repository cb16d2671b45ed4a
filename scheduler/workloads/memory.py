"""What a node holds for a stage, thing by thing, in bytes: weights, what moves them, errors, activations, messages.

``layers.stage_memory`` is what a plan keeps within its devices: the sum of all but the last two kinds. Everything here
follows from the job's tables alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .jobs import moment_bytes, reference_bytes
from .layers import beside, stage_memory, trained
from .round_copies import error_copies, message_copies, pattern_of
from .workload import Workload


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of one stage on each node that holds it.

    frozen: weights that do not train. moments: where they lie, offloaded ones in main memory too. reference: g, and the
    outer optimiser's momentum. errors: error feedbacks, of what the node encodes and of the sums that it publishes.
    activations: what the backward pass keeps of the microbatches in flight, and what a layer has beside it. messages:
    about the most that a round has under way, always in main memory.
    """

    weights: float
    frozen: float
    gradient: float
    moments: float
    reference: float
    errors: float
    activations: float
    messages: float
    offloaded: bool = False

    @property
    def device(self) -> float:
        """Bytes on the device."""
        own = self.weights + self.frozen + self.gradient + self.reference + self.errors + self.activations
        return own + (0.0 if self.offloaded else self.moments)

    @property
    def host(self) -> float:
        """Bytes in main memory beside the device's; on a CPU both are one memory."""
        return self.messages + (self.moments if self.offloaded else 0.0)

    def record(self) -> dict[str, int]:
        """Whole bytes by name, with the sums."""
        parts = {name: value for name, value in asdict(self).items() if name != "offloaded"}
        return {name: round(value) for name, value in {**parts, "device": self.device, "host": self.host}.items()}


def need_of(
    job: Mapping[str, Any], workload: Workload, layers: tuple[int, int], held: int, members: int, codec: str = ""
) -> Need:
    """What layers [first, last] take with ``held`` microbatches in flight, in a group of ``members``. ``codec``: of
    updates, where the plan has chosen it."""
    first, last = layers
    train, updates = job.get("train") or {}, job.get("updates") or {}
    here = workload.layers[first : last + 1]
    count = trained(workload, first, last)
    frozen = 4.0 * sum(layer.frozen for layer in here)
    whole = stage_memory(beside(workload, 1), first, last, held)
    codec = codec or str(updates.get("codec", "none"))
    pattern = pattern_of(updates, members)
    return Need(
        weights=4.0 * count,
        frozen=frozen,
        gradient=4.0 * count,
        moments=moment_bytes(train) * count,
        reference=reference_bytes(updates) * count,
        errors=4.0 * count * error_copies(updates, codec, pattern, members, workload.overlap),
        activations=whole - workload.optimizer_bytes * count - frozen,
        messages=4.0 * count * message_copies(updates, codec, pattern, members),
        offloaded=bool(train.get("offload")),
    )
