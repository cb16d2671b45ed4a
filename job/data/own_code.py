"""Code of a person's own that a job calls, as it was when a run began, and whether a later start has the same."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from ...proto.errors import JobError


class OwnCode(BaseModel):
    """What the coordinator found of the job's own functions, to compare with what a later start or a node finds.

    ``sources``: for each module that the job names, the sha256 of its source and of the modules beside it that it uses.
    ``moments``: what the optimiser keeps for each weight; None where it is none of the person's own. ``model``: the
    sha256 of the names and shapes of ``model.build``'s parameters; ``samples``: of what ``data.build`` gives.
    """

    sources: dict[str, str] = {}
    moments: list[str] | None = None
    model: str = ""
    samples: str = ""


_HINT = "go back to the code that the run began with, or start another run with another --state"
_HERE = "give this node the modules that the coordinator has"
BEGAN, THERE = "when the run began", "at the coordinator"
"""With what a start compares its code, and with what a node does."""


def check_own_code(before: OwnCode | None, now: OwnCode | None, then: str = BEGAN) -> Iterator[str]:
    """A sentence for each module whose code differs from that of ``before`` and whose state still fits. JobError where
    it does not fit: moments would begin with zeros, or weights be others than the run's. ``then``: BEGAN or THERE."""
    if before is None or now is None:
        return
    hint = _HINT if then == BEGAN else _HERE
    if before.moments is not None and now.moments is not None and before.moments != now.moments:
        raise JobError(
            f"train.optimizer: the function's optimiser keeps {_listed(now.moments)} here, and {then} "
            f"{_listed(before.moments)}: its state would begin with zeros",
            hint,
        )
    if before.model and now.model and before.model != now.model:
        raise JobError(f"model.build: the function's parameters have other names or shapes here than {then}", hint)
    for module, digest in before.sources.items():
        if now.sources.get(module, digest) != digest:
            follows = "the run goes on by the new code, with the state of the old" if then == BEGAN else hint
            yield f"the code of {module}, or of a module beside it, is another here than {then}: {follows}"
    if before.samples and now.samples and before.samples != now.samples:
        yield f"data.build: the function gives other samples here than {then}, and the run trains on these from here on"


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "nothing"
