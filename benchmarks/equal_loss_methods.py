"""What equal_loss compares: for each method the job's tables, and remedies that only the loop of members.py knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .members import Remedy

BASELINE = "one optimiser"
COCKTAIL = "cocktail:random=0.1,top=0.2,bits=4"
DENSER = "cocktail:random=0.3,top=0.3,bits=4"
CHUNKED = "chunked_topk:k={k},bits=2,feedback=true"


@dataclass(frozen=True)
class Method:
    """``remedy``: None where a job can ask for all of it."""

    updates: dict[str, Any]
    train: dict[str, Any] = field(default_factory=dict)
    remedy: Remedy | None = None


def delta(codec: str = "none", every: int = 1, overlap: int = 1, **more: Any) -> dict[str, Any]:
    return {"mode": "delta", "codec": codec, "every": every, "overlap": overlap, **more}


def diloco(codec: str = "none", every: int = 20, outer: str = "nesterov:lr=0.7,momentum=0.5") -> dict[str, Any]:
    return delta(codec, every, 0, outer=outer)


HALF, MOST = "nesterov:lr=0.7,momentum=0.5", "nesterov:lr=0.7,momentum=0.9"
SMALL = "nesterov:lr=0.14,momentum=0.9"  # 0.14 / (1 - 0.9) = 0.7 / (1 - 0.5)
EDEN1, EDEN2, EDEN4 = (f"eden:bits={bits},biased=true" for bits in (1, 2, 4))
PART = "eden:bits={bits},biased=true"
FIFTH = 24_576
"""Elements: a part of each of the five fragments of a looped size."""
SPARSE = "chunked_topk:k={k},bits=2"
"""Without an explicit feedback: what was not sent stays in x - g."""
MUON = {"optimizer": "muon"}
METHODS: dict[str, Method] = {
    BASELINE: Method({"mode": "gradient", "codec": "none"}),
    "delta, none": Method(delta()),
    "delta, none, overlap 0": Method(delta(overlap=0)),
    "cocktail, 1/80": Method(delta(COCKTAIL)),
    "cocktail, 1/20": Method(delta(DENSER)),
    "eden 0.2 bits": Method(delta("eden:bits=0.2,biased=true")),
    "eden 1 bit, every 5": Method(delta(EDEN1, 5)),
    "eden 1 bit, in fifths": Method(delta(EDEN1, 5, 1, fragments=5, block=FIFTH)),
    "eden 2 bits, every 10": Method(delta(EDEN2, 10)),
    "eden 4 bits, every 5": Method(delta(EDEN4, 5)),
    "diloco, every 20": Method(diloco()),
    "diloco, every 20, int4": Method(diloco("int4")),
    "sparseloco, every 20": Method(diloco(CHUNKED.format(k=128), 20, "sgd:lr=1.0")),
    "sparseloco, every 5": Method(diloco(CHUNKED.format(k=128), 5, "sgd:lr=1.0")),
    "one optimiser, muon": Method(delta(), MUON),
    "muon, every 20, int4": Method(diloco("int4"), MUON),
    "muon, every 20, eden 2 bits": Method(diloco(EDEN2), MUON),
    "muon, eden 1 bit, every 5": Method(delta(EDEN1, 5), MUON),
    "muon, eden 4 bits, every 5": Method(delta(EDEN4, 5), MUON),
    "muon, cocktail, 1/80": Method(delta(COCKTAIL), MUON),
    "muon, every 50, eden 2 bits": Method(diloco(EDEN2, 50), MUON),
    "gradient, int8": Method({"mode": "gradient", "codec": "int8"}),
    "gradient, int4": Method({"mode": "gradient", "codec": "int4"}),
    # What might get the loss back.
    "diloco, int4, average": Method(diloco("int4", outer="average")),
    "diloco, int4, 0.9": Method(diloco("int4", outer=MOST)),
    "diloco, int4, 0.9, follows the rate": Method(diloco("int4", outer=MOST), remedy=Remedy(outer_follows=True)),
    "diloco, int4, 0.9, first 80 %": Method(diloco("int4", outer=MOST), remedy=Remedy(momentum_until=0.8)),
    "diloco, int4, 0.9, smaller": Method(diloco("int4", outer=SMALL)),
    "diloco, every 2": Method(diloco(every=2)),
    "diloco, every 2, 0.9": Method(diloco(every=2, outer=MOST)),
    "diloco, every 2, 0.9, smaller": Method(diloco(every=2, outer=SMALL)),
    "diloco, every 2, 0.9, smaller, beta1 0": Method(diloco(every=2, outer=SMALL), {"betas": [0.0, 0.99]}),
    "diloco, int4, 0.9, inner m from 0": Method(diloco("int4", outer=MOST), remedy=Remedy(masked=0.0)),
    "cocktail, outer 0.5": Method(delta(COCKTAIL, outer=HALF)),
    "cocktail, feedback": Method(delta(f"{COCKTAIL},feedback=true")),
    "cocktail, v of all every 50": Method(delta(COCKTAIL), remedy=Remedy("v", 50)),
    "cocktail, top only": Method(delta("cocktail:random=1.0,top=0.02,bits=4")),
    "cocktail, random less": Method(delta("cocktail:random=0.04,top=0.5,bits=4")),
    "cocktail, at once every 10": Method(delta("cocktail:random=1.0,top=0.2,bits=4", 10, 1)),
    "cocktail, log": Method(delta(f"{COCKTAIL},values=log")),
    "cocktail, masked": Method(delta(COCKTAIL), remedy=Remedy(masked=0.0)),
    "cocktail, kept 0.98": Method(delta(COCKTAIL), remedy=Remedy(kept=0.98)),
    "cocktail, common clip": Method(delta(COCKTAIL), remedy=Remedy(common_clip=True)),
    "cocktail, ahead": Method(delta(COCKTAIL), remedy=Remedy(ahead=1.0)),
    "cocktail, warm-up": Method(
        delta(COCKTAIL),
        remedy=Remedy(codecs=((0.02, "none"), (0.04, "int8"), (0.1, "cocktail:random=0.5,top=0.5,bits=4"))),
    ),
    "gradient, cocktail": Method({"mode": "gradient", "codec": f"{COCKTAIL},feedback=true"}),
    # Where its gap to one optimiser is from: four bits in a part of the run, the first or the last.
    "in fifths, none": Method(delta("none", 5, 1, fragments=5, block=FIFTH)),
    "eden in fifths, 4 bits first": Method(
        delta(EDEN1, 5, 1, fragments=5, block=FIFTH), remedy=Remedy(codecs=((0.2, EDEN4),))
    ),
    "eden in fifths, 4 bits last": Method(
        delta(EDEN4, 5, 1, fragments=5, block=FIFTH), remedy=Remedy(codecs=((0.8, EDEN1),))
    ),
    "eden in fifths, none last": Method(
        delta("none", 5, 1, fragments=5, block=FIFTH), remedy=Remedy(codecs=((0.8, EDEN1),))
    ),
    "eden in fifths, outer 0.5": Method(delta(EDEN1, 5, 1, fragments=5, block=FIFTH, outer=HALF)),
    "eden 1 bit, outer 0.5": Method(delta(EDEN1, 5, outer=HALF)),
    "eden 1 bit, in sixths": Method(delta(EDEN1, 6, 1, fragments=6, block=20_480)),
    "muon, eden 1 bit, in fifths": Method(delta(EDEN1, 5, 1, fragments=5, block=FIFTH), MUON),
    "eden 1 bit, every step": Method(delta(EDEN1)),
    "eden 1 bit, every 2": Method(delta(EDEN1, 2)),
    "eden 1 bit, every 6": Method(delta(EDEN1, 6)),
    "eden 1 bit, every 5, overlap 4": Method(delta(EDEN1, 5, 4)),
    "eden 1 bit, at once": Method(delta(EDEN1, 5, 0)),
    "eden 1 bit, ahead": Method(delta(EDEN1, 5), remedy=Remedy(ahead=1.0)),
    "eden 1 bit, common clip": Method(delta(EDEN1, 5), remedy=Remedy(common_clip=True)),
    "eden 1 bit, kept 0.9": Method(delta(EDEN1, 5), remedy=Remedy(kept=0.9)),
    "muon, eden 1 bit, every 2": Method(delta(EDEN1, 2), MUON),
    "muon, eden 1 bit, every 5, overlap 4": Method(delta(EDEN1, 5, 4), MUON),
    "muon, eden 1 bit, every 6": Method(delta(EDEN1, 6), MUON),
    # Updates of a low rank, as Dion and PowerSGD send; int8 is the codec of the closing rounds alone.
    "muon, rank 1, every 2": Method(delta("int8", 2), MUON, Remedy(low_rank=1)),
    "muon, rank 3, every 5": Method(delta("int8", 5), MUON, Remedy(low_rank=3)),
    "rank 3, every 5": Method(delta("int8", 5), remedy=Remedy(low_rank=3)),
    # A hundredth of a bit a parameter and step.
    "0.01 bit: sparseloco, every 30": Method(diloco(CHUNKED.format(k=56), 30, "sgd:lr=1.0")),
    "0.01 bit: muon, sparseloco, every 15": Method(diloco(CHUNKED.format(k=28), 15, "sgd:lr=1.0"), MUON),
    "0.01 bit: muon, sparseloco, every 30": Method(diloco(CHUNKED.format(k=56), 30, "sgd:lr=1.0"), MUON),
    "0.01 bit: muon, sparseloco, every 50": Method(diloco(CHUNKED.format(k=94), 50, "sgd:lr=1.0"), MUON),
    "0.01 bit: muon, chunked, every 30": Method(diloco(SPARSE.format(k=56), 30, "average"), MUON),
    "0.01 bit: muon, chunked, every 30, 0.5": Method(diloco(SPARSE.format(k=56), 30), MUON),
    "0.01 bit: muon, cocktail, every 24": Method(diloco(COCKTAIL, 24, "average"), MUON),
    "0.01 bit: muon, eden 0.33 bits, every 50": Method(diloco(PART.format(bits=0.33), 50, "average"), MUON),
    "0.01 bit: muon, eden 1 bit, every 150": Method(diloco(EDEN1, 150, "average"), MUON),
    "0.01 bit: muon, eden 0.2 bits, every 30": Method(diloco(PART.format(bits=0.2), 30, "average"), MUON),
}
