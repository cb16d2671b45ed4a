"""Codecs that round each element at random, and those whose codes add up."""

from __future__ import annotations

from dataclasses import replace

from .. import sizes
from ..sizes import each, grouped
from ..traits import Parameter, Traits
from .declaration import BIASED, FEEDBACK, RECODE, SUMMED, Declaration

CODECS = [
    Declaration(
        "qsgd",
        15,
        "quantizers.dithered:Qsgd",
        "equal levels of a bucket's norm, at random",
        "QSGD, Alistarh et al., NeurIPS 2017",
        RECODE,
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
        replace(RECODE, contracts=False),
        grouped(1.6, 0, 32),
        (Parameter("clip", 0.0, "clip at so many standard deviations (a bias); 0: do not", 0.0, 100.0), FEEDBACK),
    ),
    Declaration(
        "nuqsgd",
        17,
        "quantizers.dithered:Nuqsgd",
        "powers of two of a bucket's norm, at random",
        "NUQSGD, Ramezani-Kebrya et al., JMLR 2021",
        RECODE,
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
        RECODE,
        each(9),
    ),
    Declaration(
        "sign",
        22,
        "quantizers.dithered:Sign",
        "one bit and one size",
        "1-bit SGD, Seide et al., 2014; EF-signSGD, Karimireddy et al., 2019",
        BIASED,
        sizes.sign,
        (Parameter("scale", "mean", "the size that is sent", choices=("mean", "rms", "two")), FEEDBACK),
    ),
    Declaration(
        "global_qsgd",
        19,
        "summable.summed:GlobalQsgd",
        "equal levels of the largest of all workers; added encoded",
        "Global-QSGD, Xin et al., 2023",
        SUMMED,
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
        SUMMED,
        grouped(8, 0, 32),
        (
            Parameter("rule", "norm", "what the scale comes from", choices=("norm", "max")),
            Parameter("gain", 1.0, "times the rule's scale", 0.001, 1000.0),
            FEEDBACK,
        ),
    ),
]
