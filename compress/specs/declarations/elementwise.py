"""Codecs that send every element by itself, or groups of neighbours with one step."""

from __future__ import annotations

from dataclasses import replace

from .. import sizes
from ..sizes import each, grouped
from ..traits import Parameter, Traits
from .declaration import BIASED, FEEDBACK, NEAREST, RECODE, Declaration

EXACT = Traits(float_format=True, aggregation="recode")
ROUNDING = Parameter(
    "rounding", "stochastic", "nearest is biased, with half the error", choices=("stochastic", "nearest")
)
SCALE = Parameter(
    "scale",
    "auto",
    "floor: OCP's; ceil: nothing saturates; auto: ceil if stochastic",
    choices=("auto", "floor", "ceil"),
)


def _group(bits: int) -> Declaration:
    return Declaration(
        f"int{bits}",
        {8: 3, 4: 4, 2: 5}[bits],
        "quantizers.groups:Group",
        f"{bits}-bit integers, one 16-bit step per group",
        "group-wise absmax quantisation",
        Traits(unbiased=True, aggregation="recode", contracts=bits > 2),
        grouped(bits, "group", "scale"),
        (
            Parameter("group", 128, "neighbours that share a step", 8, 65536),
            ROUNDING,
            FEEDBACK,
            Parameter("scale", 16, "bits of a group's step", choices=(16, 32)),
        ),
    )


CODECS = [
    Declaration(
        "none", 0, "quantizers.casts:Plain", "the values themselves", "", replace(EXACT, unbiased=True), each(32)
    ),
    Declaration(
        "fp16", 1, "quantizers.casts:Cast", "half precision; refuses values beyond 65504", "IEEE 754", EXACT, each(16)
    ),
    Declaration("bf16", 2, "quantizers.casts:Cast", "the upper half of fp32, rounded to nearest", "", EXACT, each(16)),
    _group(8),
    _group(4),
    _group(2),
    Declaration(
        "int8_tensor",
        8,
        "quantizers.affine:Affine",
        "8 bits, one scale and zero point",
        "torch DDP quantization hook",
        BIASED,
        grouped(8, 0, 40),
        (FEEDBACK,),
    ),
    Declaration(
        "int8_channel",
        9,
        "quantizers.affine:Affine",
        "8 bits, a scale and zero point per 512",
        "torch DDP quantization hook",
        BIASED,
        grouped(8, 512, 40),
        (FEEDBACK,),
    ),
    Declaration(
        "mxfp8",
        10,
        "quantizers.formats:Microscaling",
        "blocks of 32 8-bit floats, a power of two each",
        "OCP Microscaling 1.0",
        RECODE,
        grouped(8, 32, 8),
        (Parameter("format", "e4m3", "exponent and mantissa", choices=("e4m3", "e5m2")), ROUNDING, SCALE, FEEDBACK),
    ),
    Declaration(
        "mxfp6",
        11,
        "quantizers.formats:Microscaling",
        "blocks of 32 6-bit floats",
        "OCP Microscaling 1.0",
        RECODE,
        grouped(6, 32, 8),
        (Parameter("format", "e2m3", "exponent and mantissa", choices=("e2m3", "e3m2")), ROUNDING, SCALE, FEEDBACK),
    ),
    Declaration(
        "mxfp4",
        12,
        "quantizers.formats:Microscaling",
        "blocks of 32 4-bit floats",
        "OCP Microscaling 1.0",
        RECODE,
        grouped(4, 32, 8),
        (ROUNDING, SCALE, FEEDBACK),
    ),
    Declaration(
        "nvfp4",
        13,
        "quantizers.formats:NvFp4",
        "blocks of 16 4-bit floats, 8-bit scales",
        "NVIDIA NVFP4",
        RECODE,
        grouped(4, 16, 8, 32),
        (
            ROUNDING,
            FEEDBACK,
            Parameter("scale", "up", "block scales, if stochastic: nearest can clip", choices=("up", "nearest")),
        ),
    ),
    Declaration(
        "nf4",
        14,
        "quantizers.formats:Nf4",
        "16 quantiles of the normal distribution",
        "QLoRA, Dettmers et al., 2023",
        BIASED,
        grouped(4, "block", 16),
        (Parameter("block", 64, "neighbours that share a scale", 16, 4096), FEEDBACK),
    ),
    Declaration(
        "tile",
        36,
        "quantizers.tile:Tile",
        "small groups; tiles with an outlier are rotated",
        "after TAH-Quant, He et al., 2025",
        Traits(unbiased=True, aggregation="recode"),
        sizes.tile,
        (
            Parameter("bits", 4, "per element", 2, 8),
            Parameter("tile", 64, "neighbours that share a step", choices=(16, 32, 64, 128, 256)),
            Parameter("outlier", 3.5, "rotate where largest / rms is over this", 1.0, 1000.0),
            NEAREST,
            FEEDBACK,
        ),
    ),
]
