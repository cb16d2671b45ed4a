"""What a node's owner was promised, checked by the node itself: the coordinator is not trusted with it."""

from __future__ import annotations

import math

from pydantic import ValidationError

from ..job.schema import Facts, Job
from ..proto import border
from ..proto.border import Hostile

_MOST = 1 << 53
"""Numbers up to here are whole in every language, and far beyond what a run has."""
_PREFIXES = ("model", "tokenizer")


def read_job(text: str) -> Job:
    """The job that a coordinator sent. Hostile: it is none."""
    try:
        return Job.model_validate_json(text)
    except ValidationError as error:
        raise Hostile(f"the coordinator's job makes no sense: {_first(error)}", _SAME_VERSION) from None


def read_facts(text: str) -> Facts:
    """What a coordinator says of data and model. Hostile: numbers out of range, digests or names that are none."""
    try:
        facts = Facts.model_validate_json(text)
    except ValidationError as error:
        raise Hostile(f"what the coordinator says of the data makes no sense: {_first(error)}", _SAME_VERSION) from None
    for name, least in (("samples", 0), ("validation_samples", 0), ("context", 0), ("vocabulary", 0), ("steps", 0)):
        border.whole(getattr(facts, name), least, _MOST, f"number of {name}")
    if facts.tokens_digest:
        border.digest(facts.tokens_digest)
    for name, digest in facts.artifacts.items():
        kind, _, file = name.partition("/")
        if name != "data/tokens" and (kind not in _PREFIXES or not border.is_file_name(file)):
            raise Hostile(f"{border.quoted(name)} is no name for an artifact", "leave this run")
        border.digest(digest)
    for layer in facts.profile.layers:
        sizes = (layer.parameters, layer.frozen, layer.activation_elements_per_sample)
        if not all(0 <= size <= _MOST for size in sizes) or not 0 <= layer.flops_per_sample < math.inf:
            raise Hostile(f"the layer {border.quoted(layer.name)} has impossible sizes", "leave this run")
    return facts


_SAME_VERSION = "has the coordinator the same version of farflung?"


def _first(error: ValidationError) -> str:
    """What is wrong first, and where."""
    wrong = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return border.printable(f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}")
