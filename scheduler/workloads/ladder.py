"""The ladders: the codecs among which a plan chooses, for updates and for links between stages, and a workload's fields
about them."""

from __future__ import annotations

from dataclasses import fields as fields_of
from typing import Any

from ..errors import PlanError
from .codecs import BLOCK, bits_of
from .workload import EVERY, CodecChoice, Interval

_OF_INTERVAL = tuple(one.name for one in fields_of(Interval))

_DENSE = ("none", "bf16", "int8", "int4")
_QUARTER = "cocktail:random=0.5,top=0.5,bits=4"
"""In each step: within the spread of the seeds it loses what no codec loses, with fewer bits than _TWO."""
_TWO, _ONE = "eden:bits=2,biased=true", "eden:bits=1,biased=true"
"""All values. Biased: the error is smaller, and what is left stays in x - g."""
_SPARSE = ((0.3, 0.3), (0.2, 0.2), (0.1, 0.2), (0.1, 0.1), (0.05, 0.1))
"""Parameters of the cocktail codec where a round begins every step: (part of the vector that is offered, part of the
offered that is sent)."""
_CLEARLY = 1.5
"""A codec is in the ladder only if the one before takes this many times its bits."""


def ladder(mode: str, interval: int, rarer: bool = False) -> tuple[str, ...]:
    """The codecs to choose among, the least lossy first; each weight has a round every `interval` steps.

    Gradients are sent dense: sparse ones give Adam's second moment spikes, and the model trains much worse. Below one
    bit a part of the values is sent. Where rounds are rare every round offers more of the vector and sends less of what
    it offers, so no coordinate waits for many rounds until it is offered.

    ``rarer``: rounds may be rarer too. Then the ladder ends where that takes over: one bit of all values every few
    steps loses less than as many bytes of a small part of the values in each step (docs/quality.md).
    """
    if mode == "gradient":
        return _DENSE[:3]
    found = [*_DENSE, _QUARTER if interval == 1 else _TWO, _ONE]
    for random, top in _SPARSE[: int(interval == 1)] if rarer else _SPARSE:
        offered = min(1.0, random * interval)
        spec = f"cocktail:random={offered:g},top={random * top / offered:g},bits=4"
        if bits_of(found[-1]) > _CLEARLY * bits_of(spec):
            found.append(spec)
    return tuple(found)


def workload_fields(
    mode: str,
    codec: str,
    overlap: int | str,
    interval: int,
    fragments: int,
    block: int = BLOCK,
    *,
    rarer: bool = False,
) -> dict[str, Any]:
    """The fields of a Workload for the job's `codec` and `overlap`; either may be "auto". A round begins every
    `interval` steps, and carries one of the `fragments`. block: elements that a round encodes together. rarer: see
    ``ladder``."""
    steps = ladder(mode, interval * fragments, rarer) if codec == "auto" else (codec,)
    bits = tuple(bits_of(spec, block) / fragments for spec in steps)
    # The search for a placement assumes these values; the choice is made later, for the placement found.
    fields: dict[str, Any] = {
        "update_bits": bits[-1],
        "overlap": interval if overlap == "auto" else overlap,
        "every": interval,
        "fragments": fragments,
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
            fields = workload_fields(mode, codec, overlap, every, 1, block, rarer=every < EVERY[-1])
            found.append(Interval(**{name: fields[name] for name in _OF_INTERVAL if name in fields}))
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
