"""Every codec: its name, its number on the wire, its parameters and its traits. No torch here.

The order of a codec's parameters and their defaults are part of its wire format: add at the end, change nothing.
"""

from __future__ import annotations

from dataclasses import replace

from .spec import PATTERNS, Declaration, Parameter, Role, Spec, Traits

_EVERYWHERE = frozenset(PATTERNS)
_ACTIVATIONS: frozenset[Role] = frozenset({"activation", "activation_gradient"})
_WEIGHTS: frozenset[Role] = frozenset({"update", "gradient"})
_EXACT = Traits(float_format=True, aggregation="recode", patterns=_EVERYWHERE)
_ROUNDING = Parameter(
    "rounding", "stochastic", "nearest is biased, with half the error", choices=("stochastic", "nearest")
)
_FEEDBACK = Parameter("feedback", False, "keep what was not sent and add it next time (the caller's error feedback)")


def _group(bits: int) -> Declaration:
    return Declaration(
        f"int{bits}",
        {8: 3, 4: 4, 2: 5}[bits],
        "groups:Group",
        f"{bits}-bit integers, one 16-bit step per group",
        "group-wise absmax quantisation",
        Traits(unbiased=True, aggregation="recode", contracts=bits > 2),
        (
            Parameter("group", 128, "neighbours that share a step", 8, 65536),
            _ROUNDING,
            _FEEDBACK,
        ),
    )


_LIST = [
    Declaration("none", 0, "casts:Plain", "the values themselves", "", replace(_EXACT, unbiased=True)),
    Declaration("fp16", 1, "casts:Cast", "half precision; refuses values beyond 65504", "IEEE 754", _EXACT),
    Declaration("bf16", 2, "casts:Cast", "the upper half of fp32, rounded to nearest", "", _EXACT),
    _group(8),
    _group(4),
    _group(2),
    Declaration(
        "cocktail",
        6,
        "cocktail:Cocktail",
        "random runs, the largest of them, few bits each; an entropy-coded mask",
        "CocktailSGD, Wang et al., ICML 2023",
        Traits(aggregation="gather", seed="shared", feedback=True, roles=_WEIGHTS),
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
        "aqsgd:Direct",
        "quantised change of each sample's activation since its last visit",
        "AQ-SGD, Wang et al., NeurIPS 2022",
        Traits(aggregation="gather", roles=frozenset({"activation"}), patterns=frozenset()),
        (
            Parameter("bits", 4, "bits of a change", 2, 8),
            Parameter("first_bits", 8, "bits of a sample's first visit", 2, 8),
            Parameter("group", 64, "neighbours that share a power-of-two step", 8, 4096),
        ),
    ),
]

CODECS: dict[str, Declaration] = {declaration.name: declaration for declaration in _LIST}


def refine(spec: Spec) -> Traits:
    """The declared traits, as the parameters change them."""
    traits = CODECS[spec.name].traits
    values = dict(spec.values)
    if values.get("rounding") == "nearest":
        traits = replace(traits, unbiased=False, feedback=True, contracts=True)
    return traits
