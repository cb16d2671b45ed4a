"""The ladders: the codecs among which a plan chooses, for updates and for links between stages, and a workload's fields
about them."""

from __future__ import annotations

from typing import Any

from ..errors import PlanError
from .codecs import BLOCK, bits_of
from .workload import EVERY, CodecChoice, Interval

_DENSE = ("none", "bf16", "int8", "int4")
_SPARSE = ((0.5, 0.5), (0.25, 0.4), (0.2, 0.2), (0.1, 0.2), (0.1, 0.1), (0.05, 0.1))
"""Parameters of the cocktail codec where a round begins every step: (part of the vector that is offered, part of the
offered that is sent)."""


def ladder(mode: str, interval: int) -> tuple[str, ...]:
    """The codecs to choose among, the least lossy first; rounds begin every `interval` steps.

    Gradients are sent dense: sparse ones give Adam's second moment spikes, and the model trains much worse. Where
    rounds are rare every round offers more of the vector and sends less of what it offers, so no coordinate waits for
    many rounds until it is offered.
    """
    if mode == "gradient":
        return _DENSE[:3]
    sparse = []
    for random, top in _SPARSE:
        offered = min(1.0, random * interval)
        sparse.append(f"cocktail:random={offered:g},top={random * top / offered:g},bits=4")
    return (*_DENSE, *sparse)


def workload_fields(
    mode: str, codec: str, overlap: int | str, interval: int, fragments: int, block: int = BLOCK
) -> dict[str, Any]:
    """The fields of a Workload for the job's `codec` and `overlap`; either may be "auto". block: elements that a round
    encodes together."""
    steps = ladder(mode, interval) if codec == "auto" else (codec,)
    bits = tuple(bits_of(spec, block) / fragments for spec in steps)
    # The search for a placement assumes these values; the choice is made later, for the placement found.
    fields: dict[str, Any] = {
        "update_bits": bits[-1],
        "overlap": interval if overlap == "auto" else overlap,
        "every": interval,
    }
    if "auto" in (codec, overlap):
        fields["update_ladder"] = tuple(zip(steps, bits, strict=True))
        fields["auto_overlap"] = overlap == "auto"
    return fields


def intervals(mode: str, codec: str, overlap: int | str, block: int = BLOCK) -> tuple[Interval, ...]:
    """The numbers of steps between rounds that a plan may choose, each with its fields from ``workload_fields``.
    PlanError if the job's overlap is longer than all of them."""
    least = 1 if isinstance(overlap, str) else max(1, overlap)
    found = []
    for every in EVERY:
        if every >= least:
            fields = workload_fields(mode, codec, overlap, every, 1, block)
            fields.pop("auto_overlap", None)
            found.append(Interval(**fields))
    if not found:
        raise PlanError(f"overlap {overlap} is more than the {EVERY[-1]} steps between rounds that a plan may choose")
    return tuple(found)


LINKS = (("none", "none"), ("bf16", "bf16"), ("int8", "int8"))
"""(forward, backward) of links between stages, the least lossy first; the job's own codec comes after them."""
CODING_SECONDS = 5e-10
"""Device seconds for each element at one end that a codec with state takes beyond a copy: a link must gain at least as
much by it."""


def wire_codec(spec: str, precision: str) -> str:
    """The codec that a link between stages of this precision really uses: with codec none, stages that compute in bf16
    send bf16."""
    return "bf16" if spec == "none" and precision == "bf16" else spec


def link_ladder(forward: str, backward: str, elements: int = BLOCK) -> tuple[tuple[str, str], ...]:
    """The codecs that one link between stages may have, (forward, backward), the least lossy first: those of LINKS that
    are less lossy than the job's own codec, then the job's own. ``elements``: of a message."""
    most, most_back = bits_of(forward, elements), bits_of(backward, elements)
    gentler = []
    for ahead, back in LINKS:
        if bits_of(ahead, elements) > most:
            gentler.append((ahead, back if bits_of(back, elements) > most_back else backward))
    return (*gentler, (forward, backward))


def link_choices(forward: str, backward: str, elements: int, plain: float) -> tuple[CodecChoice, ...]:
    """The ladder of a link as CodecChoice, named by the forward codec. ``plain``: bits of an element that codec none
    sends."""
    return tuple(
        CodecChoice(
            ahead,
            bits_of(ahead, elements, plain),
            bits_of(back, elements, plain),
            0.0 if (ahead, back) in LINKS else CODING_SECONDS,
        )
        for ahead, back in link_ladder(forward, backward, elements)
    )
