"""The functions behind ``farflung codecs`` and its commands: they return plain data, which is printed elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compress.specs.spec import names, parse, traits_of
from ..proto.errors import FarflungError
from ..scheduler.errors import PlanError
from ..scheduler.networks.network import DEFAULT_LATENCY
from ..scheduler.workloads.codecs import bits_of

if TYPE_CHECKING:
    import torch


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
    """Bits for each value of a vector of 2**20 at the codec's defaults; None where they depend on the values."""
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


MOST = 1 << 22
"""Most values of a file on which errors are measured."""
STRETCHES = 64
MOMENTUM = "optimizer.m."
"""Prefixes of those tensors of a checkpoint that are means of gradients."""


def _some(vector: torch.Tensor, count: int) -> torch.Tensor:
    """``count`` elements of a vector, in stretches over all of it: its beginning may be an embedding, whose gradient is
    zero in most rows."""
    if len(vector) <= count:
        return vector
    import torch

    stretches = vector.tensor_split(min(STRETCHES, count))
    return torch.cat([one[: count // len(stretches)] for one in stretches])


def advise(path: str, members: int, link: str, step: float, latency: str | None = None) -> dict[str, Any]:
    """The advice for the gradients in a safetensors file, or the means of gradients in a run's newest checkpoint.
    latency: one way, as "30ms"; None: what a plan assumes of a link that was not measured."""
    import torch

    from ..compress.errors import CodecError
    from ..compress.exchange.measurement import load, nmse
    from ..node.generation.checkpoint import find_checkpoint
    from .advice import advise as advised
    from .quantities import milliseconds, rate

    bits = rate(link, "--link")
    if bits is None:
        raise FarflungError("--link: no advice is needed for an unlimited link", hint='write a rate, like "100mbit"')
    late = DEFAULT_LATENCY if latency is None else milliseconds(latency, "--latency") / 1e3
    try:
        if Path(path).is_dir():
            files = sorted(str(one) for one in find_checkpoint(Path(path)).folder.glob("*.safetensors"))
            vectors = [load(one, MOMENTUM) for one in files]
        else:
            vectors = [load(path)]
    except CodecError as error:
        hint = "name a safetensors file of gradients, or the folder of a run whose optimizer has momentum, as adamw"
        raise FarflungError(str(error), hint) from error
    parameters = sum(len(vector) for vector in vectors)
    hint = "save the gradients of a step that trains; of a run, wait until it has made some"
    if wrong := sum(int((~torch.isfinite(vector)).sum()) for vector in vectors):
        raise FarflungError(f"{path}: {wrong} of {parameters} values are not finite in fp32", hint)
    if not any(bool(vector.any()) for vector in vectors):
        raise FarflungError(f"{path}: all {parameters} values are zero", hint)
    values = torch.cat([_some(vector, max(1, MOST // len(vectors))) for vector in vectors])
    if not bool(values.any()):
        raise FarflungError(f"{path}: the {len(values)} values of it that were looked at are zero", hint)

    def lost(codec: str) -> float:
        return 0.0 if codec == "none" else nmse(codec, values, 1)[0]

    return advised(parameters, members, bits, step, lost, late)
