"""What ``farflung codecs`` and ``farflung codecs measure`` show: plain data, for the front door to print."""

from __future__ import annotations

from typing import Any

from ..compress.specs.spec import names, parse, traits_of
from ..scheduler.errors import PlanError
from ..scheduler.workloads.codecs import bits_of


def table() -> list[dict[str, Any]]:
    """One row for each codec at its defaults; does not import torch."""
    rows = []
    for name in names():
        spec = parse(name)
        declaration, traits = spec.declaration, traits_of(spec)
        rows.append(
            {
                "codec": name,
                "bits": _bits(name),
                "about": declaration.about,
                "paper": declaration.paper,
                "parameters": {
                    p.name: {"default": p.default, "allowed": p.allowed(), "about": p.about}
                    for p in declaration.parameters
                },
                "unbiased": traits.unbiased,
                "aggregation": traits.aggregation,
                "seed": traits.seed,
                "feedback": traits.feedback,
                "roles": sorted(traits.roles),
                "patterns": sorted(traits.patterns),
            }
        )
    return rows


def _bits(name: str) -> float | None:
    """Bits a value of a vector of 2**20 at the codec's defaults; None where only a message tells."""
    try:
        return round(bits_of(name, 1 << 20), 3)
    except PlanError:
        return None


def measure(
    spec: str,
    distribution: str = "normal",
    tensor: str | None = None,
    size: int = 1 << 16,
    workers: int = 1,
    trials: int = 10,
    *,
    device: str = "cpu",
    allow_code: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Bits, error and speed of a spec on a named distribution, or on the tensors of a safetensors file. allow_code:
    modules that a spec MODULE.NAME may import."""
    from ..compress import allow
    from ..compress.exchange.measurement import measure as run

    allow(allow_code)

    return run(spec, distribution=distribution, tensor=tensor, size=size, workers=workers, trials=trials, device=device)
