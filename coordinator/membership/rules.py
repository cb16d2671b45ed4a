"""The constants of a run's membership, from its job and the options of its start."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from ...job.data.sampling import Mixture
from .resuming.handovers import Residuals


@dataclass(frozen=True)
class Rules:
    """The constants of a run's membership. Times in seconds.

    ``wanted`` nodes are needed for the first view, ``wanted_why`` says where the number comes from. A checkpoint is due
    every ``checkpoint_every`` steps (0: never), unless the job was changed. Pipelines of ``delta`` mode meet in a round
    every ``round_every`` steps (0: nobody waits for others). An evaluation is due every ``eval_every`` steps (0: at the
    end alone), unless the job was changed, and has the samples of ``evaluation`` steps. ``samples`` are the
    training samples, ``layers`` the model's layers, ``base`` the model folder whose frozen weights adapters stand
    beside. A node without heartbeat for ``doubt_s`` is dialled and out if it does not answer; one that answers (an
    overloaded machine does) is out after ``silence_s``. From its join to its first hello a node has ``arrive_s``, to
    hand over its last contribution when it is told to ``leave_s``.

    Whatever moves bytes or computes is waited for by progress (proto/connections/patience.py): for an answer to the
    flush until nothing has moved for ``flush_s`` (``first_s`` while nobody knows how long a step takes), for a node
    that prepares or catches up ``prepare_s``, for the last checkpoint ``last_checkpoint_s``, and for the one that a
    coordinator wants before it ends ``save_s``; more where the link is slow, or a step takes long. A trainer may do
    nothing for ``hung_s`` while it trains (``first_s`` in its first step), or 10 steps. A needed connection may be
    down for ``down_s`` and some round trips before it costs a view change.
    """

    mode: str
    batch: int
    microbatch: int
    seed: int
    samples: int | Mixture
    layers: int
    _: KW_ONLY
    wanted: int = 1
    wanted_why: str = "one node"
    checkpoint_every: int = 0
    round_every: int = 0
    base: str = ""
    residuals: Residuals | None = None
    """That nodes hold what they have learnt and not sent."""
    settle_s: float = 1.0
    measure_s: float = 15.0
    arrive_s: float = 120.0
    flush_s: float = 120.0
    first_s: float = 600.0
    hung_s: float = 120.0
    prepare_s: float = 120.0
    last_checkpoint_s: float = 120.0
    doubt_s: float = 3.0
    silence_s: float = 15.0
    return_s: float = 5.0
    leave_s: float = 30.0
    save_s: float = 15.0
    eval_every: int = 0
    evaluation: float = 0.0
    give_up: bool = False
    """The run is done without its last checkpoint where that does not come."""
    down_s: float = 5.0
    layer_bytes: tuple[float, ...] = ()
    """Of each layer, what a node fetches that is to hold it: weights and what moves them. Empty: not known."""
    data_bytes: float = 0.0
    """What a node fetches of the data before its first step, at most."""
