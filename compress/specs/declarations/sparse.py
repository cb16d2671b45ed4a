"""Codecs that send few elements, or few numbers of a matrix."""

from __future__ import annotations

from dataclasses import replace

from .. import sizes
from ..traits import Parameter, Traits
from .declaration import BIASED, FEEDBACK, WEIGHTS, Declaration

CODECS = [
    Declaration(
        "cocktail",
        6,
        "sparsifiers.cocktail:Cocktail",
        "random runs, the largest of them, few bits each; an entropy-coded mask",
        "CocktailSGD, Wang et al., ICML 2023",
        Traits(aggregation="gather", seed="shared", feedback=True, roles=WEIGHTS),
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
            FEEDBACK,
        ),
    ),
    Declaration(
        "topk",
        31,
        "sparsifiers.sparse:TopK",
        "the largest magnitudes",
        "",
        replace(BIASED, roles=WEIGHTS),
        sizes.topk,
        (
            Parameter("ratio", 0.01, "share that is sent", 1e-6, 1.0),
            Parameter("values", "fp32", "how values are written", choices=("fp32", "bf16")),
            FEEDBACK,
        ),
    ),
    Declaration(
        "randomk",
        32,
        "sparsifiers.sparse:RandomK",
        "runs that all workers choose alike; added encoded",
        "",
        Traits(aggregation="sum", seed="shared", feedback=True, roles=WEIGHTS),
        sizes.randomk,
        (
            Parameter("ratio", 0.01, "share that is sent", 1e-3, 1.0),
            Parameter("run", 64, "neighbours that are sent together", choices=(1, 32, 64, 128)),
            Parameter("scale", False, "times 1/ratio: unbiased"),
            FEEDBACK,
        ),
    ),
    Declaration(
        "chunked_topk",
        33,
        "sparsifiers.sparse:ChunkedTopK",
        "the largest of each chunk of 4096, 12-bit places, few bits each",
        "SparseLoCo, Sarfi et al., 2025",
        replace(BIASED, roles=WEIGHTS),
        sizes.chunked_topk,
        (
            Parameter("k", 64, "kept of each 4096", 1, 4096),
            Parameter("bits", 2, "of a value, sign included", 1, 8),
            FEEDBACK,
        ),
    ),
    Declaration(
        "demo",
        34,
        "sparsifiers.demo:Demo",
        "signs of the largest cosine coefficients of tiles of 64 x 64",
        "DeMo, Peng et al., 2024",
        replace(BIASED, roles=WEIGHTS),
        sizes.demo,
        (Parameter("k", 32, "coefficients of each 4096 elements", 1, 1024), FEEDBACK),
    ),
    Declaration(
        "powersgd",
        35,
        "summable.lowrank:PowerSgd",
        "a matrix as the product of two thin ones",
        "PowerSGD, Vogels et al., NeurIPS 2019",
        Traits(aggregation="sum", seed="shared", feedback=True, roles=WEIGHTS),
        sizes.powersgd,
        (
            Parameter("rank", 2, "columns of the factors", 1, 1024),
            Parameter("iterations", 1, "power steps of a single encode", 1, 100),
            FEEDBACK,
            Parameter("factors", 32, "bits of a factor's number; 16: bfloat16", choices=(32, 16)),
            Parameter("rate", 1.0, "a matrix whose factors have not so many times fewer bits is sent whole", 1.0, 1e4),
        ),
    ),
]
