"""The constants of a run's membership, from its job and the options of its start."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from ...job.data.sampling import Mixture
from .resuming.handovers import Residuals


@dataclass(frozen=True)
class Rules:
    """The constants of a run's membership. Times in seconds.

    ``wanted`` nodes are needed for the first view; ``wanted_why`` says where the number comes from. A checkpoint is due
    every ``checkpoint_every`` steps (0: never), unless the job was changed. In ``delta`` mode the pipelines have a
    round every ``round_every`` steps (0: no node waits for others). An evaluation is due every ``eval_every`` steps (0:
    only at the end), unless the job was changed, and has as many samples as ``evaluation`` steps. ``samples`` are the
    training samples, ``layers`` the model's layers, ``base`` the model folder with the frozen weights to which adapters
    belong. A node without a heartbeat for ``doubt_s`` is dialled and removed if it does not answer; one that answers
    (as an overloaded machine does) is removed after ``silence_s``. A node has ``arrive_s`` from its join to its first
    hello, and ``leave_s`` for its last contribution after it was asked for it.

    Waits for transfers and computations are limited by progress (proto/connections/patience.py): they end when nothing
    has moved for ``flush_s`` (an answer to the flush; ``first_s`` while no step's time is known), ``prepare_s`` (a node
    that prepares or catches up), ``last_checkpoint_s`` (the last checkpoint) or ``save_s`` (the checkpoint before a
    coordinator ends); longer where the link is slow or a step takes long. While it trains, a trainer may do nothing for
    ``hung_s`` (``first_s`` in its first step) or 10 steps. A needed connection may be down for ``down_s`` and some
    round trips before it costs a view change.
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
    """Which residuals nodes hold; None: none."""
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
    """Whether the run ends without its last checkpoint where that does not arrive."""
    down_s: float = 5.0
    layer_bytes: tuple[float, ...] = ()
    """For each layer, the bytes that a node fetches for it: weights and the state that moves them. Empty: not known."""
    data_bytes: float = 0.0
    """The most bytes of data that a node fetches before its first step."""
