"""Codecs that rotate blocks first."""

from __future__ import annotations

from dataclasses import replace

from .. import sizes
from ..sizes import rotated
from ..traits import Parameter, Traits
from .declaration import FEEDBACK, RECODE, SUMMED, Declaration, block

EDEN = (
    Parameter("biased", False, "least error instead of no bias"),
    Parameter("rotations", 1, "2 for vectors that are nearly all zeros", choices=(1, 2)),
    Parameter("feedback", False, "keep what was not sent and add it next time (the caller's error feedback)"),
)
PRIVATE = Traits(unbiased=True, aggregation="gather", seed="private")

CODECS = [
    Declaration(
        "drive",
        23,
        "rotated.eden:Eden",
        "rotation and signs",
        "DRIVE, Vargaftik et al., NeurIPS 2021",
        PRIVATE,
        rotated(1),
        (block(4096), *EDEN),
    ),
    Declaration(
        "eden",
        24,
        "rotated.eden:Eden",
        "rotation and Lloyd-Max levels, any number of bits",
        "EDEN, Vargaftik et al., ICML 2022",
        PRIVATE,
        rotated("bits"),
        (Parameter("bits", 4.0, "per coordinate, fractions too", 0.05, 8.0), block(4096), *EDEN),
    ),
    Declaration(
        "turboquant",
        25,
        "rotated.turboquant:Turbo",
        "EDEN with the norm as its scale; prod adds the residual's signs",
        "TurboQuant, Zandieh et al., 2025",
        PRIVATE,
        sizes.turboquant,
        (
            Parameter("bits", 4, "per coordinate", 1, 8),
            Parameter("kind", "mse", "mse is biased, prod is not", choices=("mse", "prod")),
            block(4096),
            FEEDBACK,
        ),
    ),
    Declaration(
        "quicfl",
        26,
        "rotated.quicfl:QuicFl",
        "one rotation for all, outliers exact, the rest at random",
        "QUIC-FL, Basat et al., ICML 2024",
        replace(RECODE, aggregation="gather", seed="both"),
        sizes.quicfl,
        (
            Parameter("bits", 4, "per coordinate", 1, 4),
            Parameter("shared", True, "shared randomness: half the error"),
            block(4096),
        ),
    ),
    Declaration(
        "thc",
        27,
        "summable.thc:Thc",
        "one rotation for all, a table of integers; added encoded",
        "THC, Li et al., NSDI 2024",
        replace(SUMMED, unbiased=False, feedback=True, seed="both"),
        sizes.thc,
        (
            Parameter("bits", 4, "of one worker's code", 2, 8),
            Parameter("granularity", 30, "largest integer of the table; 0: 2^bits - 1, equal steps", 0, 1024),
            Parameter("tail", 32, "one in so many coordinates is clamped", 4, 1 << 20),
            block(0),
            FEEDBACK,
        ),
    ),
    Declaration(
        "dynamiq",
        28,
        "hops.dynamiq:Dynamiq",
        "more bits where the sum has more energy; made for many hops",
        "DynamiQ, 2026",
        RECODE,
        sizes.hops,
        (Parameter("bits", 5.0, "per element, scales included", 2.8, 8.0),),
    ),
    Declaration(
        "rotq",
        29,
        "hops.rotq:RotQ",
        "rotated once, widths shared by all; hops stay rotated",
        "this project (docs/codecs.md)",
        replace(RECODE, seed="both"),
        sizes.hops,
        (Parameter("bits", 4.0, "per element, scales included", 2.2, 8.0),),
    ),
]
