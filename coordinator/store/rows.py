"""The rows of a run's database: frozen values, one class a table."""

from __future__ import annotations

import json
import math
from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True)
class NodeRow:
    """A node that is or was in the run. ``left_at`` None: still in. ``device`` is JSON of proto Device.

    ``dials_out``: nobody can dial it at ``address``.
    """

    name: str
    session: str
    secret_hash: str
    key_hash: str
    address: str
    device: str
    _: KW_ONLY
    joined: float
    left_at: float | None = None
    why: str = ""
    dials_out: bool = False
    ticket: str = ""
    """The number of the one that it joined with."""


@dataclass(frozen=True)
class Ticket:
    """A ticket: ``expires`` seconds since the epoch or None, ``uses`` left or None for any number."""

    number: str
    secret_hash: str
    created: float
    expires: float | None
    uses: int | None
    revoked: bool


@dataclass(frozen=True)
class ViewRow:
    """A view as announced: plan and members as JSON, where the training stream stands, why it was made."""

    number: int
    plan: str
    members: str
    step: int
    cursor: int
    redo: str
    _: KW_ONLY
    checkpoint: int
    why: str
    time: float


@dataclass(frozen=True)
class StepRow:
    """A finished step, summed over all nodes; ``loss`` in nats per token, None when no last stage reported it."""

    step: int
    view: int
    loss: float | None
    samples: int
    tokens: int
    seconds: float
    _: KW_ONLY
    bytes_updates: int
    bytes_activations: int
    bytes_other: int
    bytes_dense: int
    bytes_dense_updates: int
    notes: str
    time: float

    @property
    def hit_rate(self) -> float | None:
        """The part of AQ-SGD's samples that were sent as a change, as a mean over links; None where no link has it.

        The notes are as nodes wrote them: values that are not numbers from 0 to 1 are ignored.
        """
        notes = json.loads(self.notes or "{}").values()
        said = [note.get("aqsgd_hit_rate") for note in notes if isinstance(note, dict)]
        rates = [float(rate) for rate in said if isinstance(rate, (int, float)) and 0 <= rate <= 1]
        return sum(rates) / len(rates) if rates else None


@dataclass(frozen=True)
class EvalRow:
    """An evaluation: ``loss`` in nats per token (or sample), ``accuracy`` None where nothing is counted."""

    step: int
    loss: float
    tokens: int
    accuracy: float | None
    time: float


@dataclass(frozen=True)
class SetRow:
    """An evaluation's result on one of ``eval.sets``: loss in nats per token, and the part of tokens predicted
    correctly."""

    step: int
    name: str
    loss: float
    accuracy: float
    tokens: int

    @property
    def shown(self) -> dict[str, float | None]:
        """Loss, perplexity (None where it would overflow) and accuracy, with the names in events and ``status``."""
        perplexity = math.exp(self.loss) if self.loss < _MOST_NATS else None
        return {"loss": self.loss, "perplexity": perplexity, "accuracy": self.accuracy}


_MOST_NATS = 700.0
"""For a larger loss the exponential overflows a float."""


@dataclass(frozen=True)
class CheckpointRow:
    """A complete checkpoint and where the training stream stands after its step."""

    step: int
    path: str
    cursor: int
    redo: str
    time: float


@dataclass(frozen=True)
class WorkRow:
    """A node's work: the steps in which it took part, and the samples that the plans gave its pipelines in them."""

    node: str
    samples: int
    steps: int
    time: float


@dataclass(frozen=True)
class ScoreRow:
    """The scores that one judge gave one node, summed over ``count`` contributions."""

    node: str
    judge: str
    count: int
    own: float
    held: float
    score: float
    _: KW_ONLY
    time: float
