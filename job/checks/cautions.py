"""What a job may ask for and should know: sentences that a run's start warns of."""

from __future__ import annotations

from collections.abc import Iterator

from ..schema import UNAGREED, Job, Train

MUON_MOMENTUM = 0.95
"""Of `node.state.optimizers.muon`."""
SHORT = 0.7
"""An outer momentum m swings where a round has fewer steps than this times m times the local momentum's memory. With a
memory of 10 steps that is 4.9 at m = 0.7, 5.6 at 0.8 and 6.3 at 0.9: where the table of docs/quality.md falls off."""
FORGETTING = 10
"""An outer momentum should have forgotten so many times before the run ends."""


def cautions(job: Job, steps: int) -> Iterator[str]:
    """Sentences about a run of ``steps`` steps, whose every is chosen if the plan chooses it."""
    if not job.updates.agreed:
        yield f"updates.agreed = false: {UNAGREED}"
    if job.updates.mode == "delta" and job.updates.every != "auto":
        yield from _outer_momentum(job, steps)


def _outer_momentum(job: Job, steps: int) -> Iterator[str]:
    """The outer momentum m beside the local optimiser's, and beside the run's length.

    The local momentum goes on after a round, in the direction from which the outer step came. If a round is shorter
    than its memory, the two swing: for a quadratic loss, one member, local momentum 0.9, outer rate 0.7 and m = 0.9 the
    largest stable learning rate is a thousandth of that of plain averaging with rounds of 1, 2 and 5 steps, and 0.8 of
    it with 8 (docs/quality.md). And some errors decay by no more than about the square root of m a round.
    """
    updates, momentum = job.updates, job.updates.outer_optimizer.momentum
    memory, rounds = 1 / (1 - local_momentum(job.train)), steps // updates.period
    if momentum > 0.5 and updates.period < SHORT * momentum * memory:
        yield (
            f"updates.outer has momentum {momentum:g} and a round every {updates.period} steps, which is less than the "
            f"local optimiser's momentum lasts ({memory:.0f} steps): the two swing, and training may diverge; write "
            f"every = {round(memory)} or more, or momentum=0.5"
        )
    elif momentum > 0.5 and rounds < (enough := round(FORGETTING / (1 - momentum))):
        yield (
            f"updates.outer has momentum {momentum:g}, which pays over {enough} rounds and more, and this run has "
            f"{rounds}: write a smaller momentum"
        )


def local_momentum(train: Train) -> float:
    """The local optimiser's momentum; 0 where it has none, or it is not known (the owner's own optimiser)."""
    if train.optimizer == "muon":
        return MUON_MOMENTUM
    if train.optimizer == "sgd":
        return train.momentum
    return 0.0 if ":" in train.optimizer or train.optimizer == "adafactor" else train.betas[0]
