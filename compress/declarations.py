"""Every codec: its name, its number on the wire, its parameters and its traits. No torch here.

The order of a codec's parameters and their defaults are part of its wire format: add at the end, change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from . import sizes
from .sizes import Bits, each, grouped, rotated
from .traits import PATTERNS, Parameter, Role, Traits


@dataclass(frozen=True)
class Declaration:
    """One codec: where its class is, its number on the wire, its parameters (their order is part of the format).

    bits: bits of the body of a vector of so many elements, with these parameters (sizes.py).
    """

    name: str
    wire_id: int
    target: str
    about: str
    paper: str
    traits: Traits
    bits: Bits
    parameters: tuple[Parameter, ...] = ()
    version: int = 1

    def parameter(self, name: str) -> Parameter:
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise KeyError(name)


_EVERYWHERE = frozenset(PATTERNS)
_WEIGHTS: frozenset[Role] = frozenset({"update", "gradient"})
_EXACT = Traits(float_format=True, aggregation="recode", patterns=_EVERYWHERE)
_ROUNDING = Parameter(
    "rounding", "stochastic", "nearest is biased, with half the error", choices=("stochastic", "nearest")
)
_SCALE = Parameter(
    "scale",
    "auto",
    "floor: OCP's; ceil: nothing saturates; auto: ceil if stochastic",
    choices=("auto", "floor", "ceil"),
)
_NEAREST = Parameter("rounding", "nearest", "stochastic is unbiased", choices=("stochastic", "nearest"))
_EDEN = (
    Parameter("biased", False, "least error instead of no bias"),
    Parameter("rotations", 1, "2 for vectors that are nearly all zeros", choices=(1, 2)),
    Parameter("feedback", False, "keep what was not sent and add it next time (the caller's error feedback)"),
)
_FEEDBACK = Parameter("feedback", False, "keep what was not sent and add it next time (the caller's error feedback)")


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
            _ROUNDING,
            _FEEDBACK,
            Parameter("scale", 16, "bits of a group's step", choices=(16, 32)),
        ),
    )


_LIST = [
    Declaration(
        "none", 0, "quantizers.casts:Plain", "the values themselves", "", replace(_EXACT, unbiased=True), each(32)
    ),
    Declaration(
        "fp16", 1, "quantizers.casts:Cast", "half precision; refuses values beyond 65504", "IEEE 754", _EXACT, each(16)
    ),
    Declaration("bf16", 2, "quantizers.casts:Cast", "the upper half of fp32, rounded to nearest", "", _EXACT, each(16)),
    _group(8),
    _group(4),
    _group(2),
    Declaration(
        "cocktail",
        6,
        "sparsifiers.cocktail:Cocktail",
        "random runs, the largest of them, few bits each; an entropy-coded mask",
        "CocktailSGD, Wang et al., ICML 2023",
        Traits(aggregation="gather", seed="shared", feedback=True, roles=_WEIGHTS),
        sizes.cocktail,
        (
            Parameter("random", 0.1, "share of the runs that a step offers", 0.001, 1.0),
            Parameter("top", 0.2, "share of the offered elements that is sent", 0.0001, 1.0),
            Parameter("bits", 4, "bits of a sent value", 1, 8),
            Parameter(
                "values",
                "linear",
                "equal steps, or log-spaced: 5 times less error",
                choices=("linear", "log"),
            ),
            Parameter(
                "mask",
                "auto",
                "how positions are written; auto: the shorter",
                choices=("auto", "bitmap", "rice"),
            ),
            Parameter("run", 64, "neighbours that are offered together", choices=(32, 64, 128)),
            _FEEDBACK,
        ),
    ),
    Declaration(
        "aqsgd",
        7,
        "stateful.aqsgd:Direct",
        "quantised change of each sample's activation since its last visit",
        "AQ-SGD, Wang et al., NeurIPS 2022",
        Traits(aggregation="gather", roles=frozenset({"activation"}), patterns=frozenset()),
        sizes.aqsgd,
        (
            Parameter("bits", 4, "bits of a change", 2, 8),
            Parameter("first_bits", 8, "bits of a sample's first visit", 2, 8),
            Parameter("group", 64, "neighbours that share a power-of-two step", 8, 4096),
        ),
    ),
]

_BLOCKS = (0, 256, 512, 1024, 2048, 4096, 8192)
_RECODE = Traits(unbiased=True, aggregation="recode")
_BIASED = Traits(feedback=True)
_PRIVATE = Traits(unbiased=True, aggregation="gather", seed="private")
_SUMMED = Traits(
    unbiased=True, aggregation="sum", patterns=frozenset({"publishers", "all_to_all", "two_level", "ring"})
)


def _block(default: int) -> Parameter:
    return Parameter(
        "block", default, "elements rotated together; 0: the largest power of two that fits", choices=_BLOCKS
    )


_LIST += [
    Declaration(
        "int8_tensor",
        8,
        "quantizers.affine:Affine",
        "8 bits, one scale and zero point",
        "torch DDP quantization hook",
        _BIASED,
        grouped(8, 0, 40),
        (_FEEDBACK,),
    ),
    Declaration(
        "int8_channel",
        9,
        "quantizers.affine:Affine",
        "8 bits, a scale and zero point per 512",
        "torch DDP quantization hook",
        _BIASED,
        grouped(8, 512, 40),
        (_FEEDBACK,),
    ),
    Declaration(
        "mxfp8",
        10,
        "quantizers.formats:Microscaling",
        "blocks of 32 8-bit floats, a power of two each",
        "OCP Microscaling 1.0",
        _RECODE,
        grouped(8, 32, 8),
        (Parameter("format", "e4m3", "exponent and mantissa", choices=("e4m3", "e5m2")), _ROUNDING, _SCALE, _FEEDBACK),
    ),
    Declaration(
        "mxfp6",
        11,
        "quantizers.formats:Microscaling",
        "blocks of 32 6-bit floats",
        "OCP Microscaling 1.0",
        _RECODE,
        grouped(6, 32, 8),
        (Parameter("format", "e2m3", "exponent and mantissa", choices=("e2m3", "e3m2")), _ROUNDING, _SCALE, _FEEDBACK),
    ),
    Declaration(
        "mxfp4",
        12,
        "quantizers.formats:Microscaling",
        "blocks of 32 4-bit floats",
        "OCP Microscaling 1.0",
        _RECODE,
        grouped(4, 32, 8),
        (_ROUNDING, _SCALE, _FEEDBACK),
    ),
    Declaration(
        "nvfp4",
        13,
        "quantizers.formats:NvFp4",
        "blocks of 16 4-bit floats, 8-bit scales",
        "NVIDIA NVFP4",
        _RECODE,
        grouped(4, 16, 8, 32),
        (
            _ROUNDING,
            _FEEDBACK,
            Parameter("scale", "up", "block scales, if stochastic: nearest can clip", choices=("up", "nearest")),
        ),
    ),
    Declaration(
        "nf4",
        14,
        "quantizers.formats:Nf4",
        "16 quantiles of the normal distribution",
        "QLoRA, Dettmers et al., 2023",
        _BIASED,
        grouped(4, "block", 16),
        (Parameter("block", 64, "neighbours that share a scale", 16, 4096), _FEEDBACK),
    ),
    Declaration(
        "qsgd",
        15,
        "quantizers.dithered:Qsgd",
        "equal levels of a bucket's norm, at random",
        "QSGD, Alistarh et al., NeurIPS 2017",
        _RECODE,
        grouped("bits", "bucket", 16),
        (
            Parameter("bits", 4, "sign included", 2, 8),
            Parameter("bucket", 512, "elements that share a norm; 0: all", choices=(0, 64, 128, 256, 512, 1024, 2048)),
            Parameter("norm", "max", "of a bucket", choices=("max", "l2")),
        ),
    ),
    Declaration(
        "terngrad",
        16,
        "quantizers.dithered:Terngrad",
        "-1, 0 or 1 times the largest, at random",
        "TernGrad, Wen et al., NeurIPS 2017",
        replace(_RECODE, contracts=False),
        grouped(1.6, 0, 32),
        (Parameter("clip", 0.0, "clip at so many standard deviations (a bias); 0: do not", 0.0, 100.0), _FEEDBACK),
    ),
    Declaration(
        "nuqsgd",
        17,
        "quantizers.dithered:Nuqsgd",
        "powers of two of a bucket's norm, at random",
        "NUQSGD, Ramezani-Kebrya et al., JMLR 2021",
        _RECODE,
        grouped("bits", "bucket", 16),
        (
            Parameter("bits", 4, "sign included", 2, 8),
            Parameter("bucket", 1024, "elements that share a norm; 0: all", choices=(0, 64, 128, 256, 512, 1024, 2048)),
            Parameter("norm", "max", "of a bucket", choices=("max", "l2")),
        ),
    ),
    Declaration(
        "natural",
        18,
        "quantizers.dithered:Natural",
        "sign and a power of two, 9 bits",
        "natural compression, Horváth et al., 2019",
        _RECODE,
        each(9),
    ),
    Declaration(
        "global_qsgd",
        19,
        "summable.summed:GlobalQsgd",
        "equal levels of the largest of all workers; added encoded",
        "Global-QSGD, Xin et al., 2023",
        _SUMMED,
        grouped("bits", 0, 32),
        (Parameter("bits", 8, "of one worker's code", 2, 8),),
    ),
    Declaration(
        "global_exp",
        20,
        "summable.summed:GlobalExponential",
        "powers of two of the largest of all workers; combined encoded, in a tree",
        "Global-QSGD exponential dithering, Xin et al., 2023",
        Traits(unbiased=True, aggregation="sum", patterns=frozenset({"publishers", "all_to_all"})),
        grouped(8, 0, 32),
    ),
    Declaration(
        "intsgd",
        21,
        "summable.summed:IntSgd",
        "integers of a scale that all know; added encoded",
        "IntSGD, Mishchenko et al., ICLR 2022",
        _SUMMED,
        grouped(8, 0, 32),
        (
            Parameter("rule", "norm", "what the scale comes from", choices=("norm", "max")),
            Parameter("gain", 1.0, "times the rule's scale", 0.001, 1000.0),
            _FEEDBACK,
        ),
    ),
    Declaration(
        "sign",
        22,
        "quantizers.dithered:Sign",
        "one bit and one size",
        "1-bit SGD, Seide et al., 2014; EF-signSGD, Karimireddy et al., 2019",
        _BIASED,
        sizes.sign,
        (Parameter("scale", "mean", "the size that is sent", choices=("mean", "rms", "two")), _FEEDBACK),
    ),
    Declaration(
        "drive",
        23,
        "quantizers.eden:Eden",
        "rotation and signs",
        "DRIVE, Vargaftik et al., NeurIPS 2021",
        _PRIVATE,
        rotated(1),
        (_block(4096), *_EDEN),
    ),
    Declaration(
        "eden",
        24,
        "quantizers.eden:Eden",
        "rotation and Lloyd-Max levels, any number of bits",
        "EDEN, Vargaftik et al., ICML 2022",
        _PRIVATE,
        rotated("bits"),
        (Parameter("bits", 4.0, "per coordinate, fractions too", 0.05, 8.0), _block(4096), *_EDEN),
    ),
    Declaration(
        "turboquant",
        25,
        "quantizers.turboquant:Turbo",
        "EDEN with the norm as its scale; prod adds the residual's signs",
        "TurboQuant, Zandieh et al., 2025",
        _PRIVATE,
        sizes.turboquant,
        (
            Parameter("bits", 4, "per coordinate", 1, 8),
            Parameter("kind", "mse", "mse is biased, prod is not", choices=("mse", "prod")),
            _block(4096),
            _FEEDBACK,
        ),
    ),
    Declaration(
        "quicfl",
        26,
        "quantizers.quicfl:QuicFl",
        "one rotation for all, outliers exact, the rest at random",
        "QUIC-FL, Basat et al., ICML 2024",
        replace(_RECODE, aggregation="gather", seed="both"),
        sizes.quicfl,
        (
            Parameter("bits", 4, "per coordinate", 1, 4),
            Parameter("shared", True, "shared randomness: half the error"),
            _block(4096),
        ),
    ),
    Declaration(
        "thc",
        27,
        "summable.thc:Thc",
        "one rotation for all, a table of integers; added encoded",
        "THC, Li et al., NSDI 2024",
        replace(_SUMMED, unbiased=False, feedback=True, seed="both"),
        sizes.thc,
        (
            Parameter("bits", 4, "of one worker's code", 2, 8),
            Parameter("granularity", 30, "largest integer of the table; 0: 2^bits - 1, equal steps", 0, 1024),
            Parameter("tail", 32, "one in so many coordinates is clamped", 4, 1 << 20),
            _block(0),
            _FEEDBACK,
        ),
    ),
    Declaration(
        "dynamiq",
        28,
        "summable.multihop:Dynamiq",
        "more bits where the sum has more energy; made for many hops",
        "DynamiQ, 2026",
        replace(_RECODE, patterns=_EVERYWHERE),
        sizes.hops,
        (Parameter("bits", 5.0, "per element, scales included", 2.8, 8.0),),
    ),
    Declaration(
        "rotq",
        29,
        "summable.multihop:RotQ",
        "rotated once, widths shared by all; hops stay rotated",
        "this project (docs/codecs.md)",
        replace(_RECODE, seed="both", patterns=_EVERYWHERE),
        sizes.hops,
        (Parameter("bits", 4.0, "per element, scales included", 2.2, 8.0),),
    ),
    Declaration(
        "avq",
        30,
        "quantizers.adaptive:Adaptive",
        "the levels that are best for this vector",
        "QUIVER, Ben Basat et al., NeurIPS 2024",
        replace(_RECODE, seed="shared"),
        sizes.adaptive,
        (
            Parameter("bits", 4, "per element", 1, 8),
            Parameter("method", "fast", "how the levels are found", choices=("fast", "exact")),
            Parameter("rotate", False, "rotate before"),
        ),
    ),
    Declaration(
        "topk",
        31,
        "sparsifiers.sparse:TopK",
        "the largest magnitudes",
        "",
        replace(_BIASED, roles=_WEIGHTS),
        sizes.topk,
        (
            Parameter("ratio", 0.01, "share that is sent", 1e-6, 1.0),
            Parameter("values", "fp32", "how values are written", choices=("fp32", "bf16")),
            _FEEDBACK,
        ),
    ),
    Declaration(
        "randomk",
        32,
        "sparsifiers.sparse:RandomK",
        "runs that all workers choose alike; added encoded",
        "",
        Traits(aggregation="sum", seed="shared", feedback=True, roles=_WEIGHTS, patterns=_EVERYWHERE),
        sizes.randomk,
        (
            Parameter("ratio", 0.01, "share that is sent", 1e-3, 1.0),
            Parameter("run", 64, "neighbours that are sent together", choices=(1, 32, 64, 128)),
            Parameter("scale", False, "times 1/ratio: unbiased"),
            _FEEDBACK,
        ),
    ),
    Declaration(
        "chunked_topk",
        33,
        "sparsifiers.sparse:ChunkedTopK",
        "the largest of each chunk of 4096, 12-bit places, few bits each",
        "SparseLoCo, Sarfi et al., 2025",
        replace(_BIASED, roles=_WEIGHTS),
        sizes.chunked_topk,
        (
            Parameter("k", 64, "kept of each 4096", 1, 4096),
            Parameter("bits", 2, "of a value, sign included", 1, 8),
            _FEEDBACK,
        ),
    ),
    Declaration(
        "demo",
        34,
        "sparsifiers.demo:Demo",
        "signs of the largest cosine coefficients of tiles of 64 x 64",
        "DeMo, Peng et al., 2024",
        replace(_BIASED, roles=_WEIGHTS),
        sizes.demo,
        (Parameter("k", 32, "coefficients of each 4096 elements", 1, 1024), _FEEDBACK),
    ),
    Declaration(
        "powersgd",
        35,
        "summable.lowrank:PowerSgd",
        "a matrix as the product of two thin ones",
        "PowerSGD, Vogels et al., NeurIPS 2019",
        Traits(aggregation="sum", seed="shared", feedback=True, roles=_WEIGHTS, patterns=_EVERYWHERE),
        sizes.powersgd,
        (
            Parameter("rank", 2, "columns of the factors", 1, 1024),
            Parameter("iterations", 1, "power steps of a single encode", 1, 100),
            _FEEDBACK,
        ),
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
            _NEAREST,
            _FEEDBACK,
        ),
    ),
    Declaration(
        "docofl",
        37,
        "quantizers.docofl:Entropy",
        "equal levels, Huffman coded to a budget; for corrections to an anchor",
        "DoCoFL, Dorfman et al., ICML 2023",
        _RECODE,
        sizes.budget,
        (Parameter("bits", 4.0, "budget per element", 1.0, 8.0),),
    ),
]

CODECS: dict[str, Declaration] = {declaration.name: declaration for declaration in _LIST}
