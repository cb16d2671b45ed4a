"""Codecs whose levels, or what they encode, depend on what is known already."""

from __future__ import annotations

from dataclasses import replace

from .. import sizes
from ..traits import Parameter, Traits
from .declaration import RECODE, Declaration

CODECS = [
    Declaration(
        "avq",
        30,
        "fitted.adaptive:Adaptive",
        "the levels that are best for this vector",
        "QUIVER, Ben Basat et al., NeurIPS 2024",
        replace(RECODE, seed="shared"),
        sizes.adaptive,
        (
            Parameter("bits", 4, "per element", 1, 8),
            Parameter("method", "fast", "how the levels are found", choices=("fast", "exact")),
            Parameter("rotate", False, "rotate before"),
        ),
    ),
    Declaration(
        "docofl",
        37,
        "fitted.docofl:Entropy",
        "equal levels, Huffman coded to a budget",
        "DoCoFL, Dorfman et al., ICML 2023",
        RECODE,
        sizes.budget,
        (Parameter("bits", 4.0, "budget per element", 1.0, 8.0),),
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
