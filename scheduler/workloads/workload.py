"""What a step computes, holds and sends: the numbers of a job that the scheduler needs, without the model itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import PlanError
from .early import EarlyRounds
from .schedules import SCHEDULES

PATTERNS = ("publishers", "all_to_all", "two_level", "auto", "ring")


def settled_pattern(pattern: str, members: int) -> str:
    """The pattern of a round inside one region; for ``auto`` the number of members decides.

    All-to-all for two members: it costs the same bytes as publishers and needs no second encoding. Publishers for
    more, because all-to-all costs (members / 2) times their bytes.
    """
    return pattern if pattern != "auto" else "all_to_all" if members <= 2 else "publishers"


@dataclass(frozen=True, slots=True)
class Layer:
    """One indivisible piece of the model.

    flops: floating point operations of one sample's forward pass (a backward counts twice that).
    activation: elements of one sample's output, what a stage boundary after this layer sends.
    stored: elements of one sample that are kept for the backward pass (0: a guess of 8 times `activation`). frozen:
    weights that do not train and are not in `parameters`, 4 bytes each. copies: elements kept once for each microbatch,
    independent of its number of samples (weights in another precision). working: elements of one sample that exist only
    while the layer computes. temporary: elements that exist only while it decodes its largest matrix, independent of
    the number of samples. decoding: elements of one sample beside them where the layer is computed again.

    A layer that begins with another piece (the embedding) has ``entry``: elements of one sample that go from it into
    the block. One that ends with another piece (the head), which is never computed again, has ``after``,
    ``after_copies`` and ``after_working``: that piece's stored, copied and working elements. largest: elements of its
    largest trained matrix (0: not known).
    """

    name: str
    parameters: int
    flops: float
    activation: int
    stored: int = 0
    frozen: int = 0
    copies: int = 0
    working: int = 0
    temporary: int = 0
    decoding: int = 0
    entry: int = 0
    after: int = 0
    after_working: int = 0
    after_copies: int = 0
    largest: int = 0


@dataclass(frozen=True, slots=True)
class CodecChoice:
    """A codec that a link between stages may use.

    forward, backward: bits on the wire for each element of an activation and of its gradient. seconds: device seconds
    that coding an element takes at one end, both directions together, as measured on the device.
    """

    name: str
    forward: float
    backward: float
    seconds: float = 0.0


EVERY = (1, 2, 5, 10, 20, 50, 100)
"""The numbers of steps between rounds among which a plan chooses where the job says "auto"; equal to those of
job/schema.py."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A number of steps between two rounds and the values that follow from it; the fields are fields of Workload."""

    every: int
    overlap: int
    update_bits: float | tuple[float, ...]
    update_ladder: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Size:
    """A number of samples of a microbatch and the values that follow from it; the fields are fields of Workload."""

    microbatch: int
    efficiency: float
    activation_bits: float
    gradient_bits: float
    codecs: tuple[CodecChoice, ...] = ()


@dataclass(frozen=True, slots=True)
class Offload:
    """What of the state lies in main memory, and the values that follow from it; the fields are fields of Workload."""

    kind: str
    optimizer_bytes: float
    round_bytes: float
    block_bytes: float | None = None
    main_bytes: float = 0.0

    @property
    def fields(self) -> dict[str, Any]:
        """Field of Workload -> its value with this kind."""
        return {
            "offload": self.kind,
            "optimizer_bytes": self.optimizer_bytes,
            "round_bytes": self.round_bytes,
            "block_bytes": self.block_bytes,
            "main_bytes": self.main_bytes,
        }


@dataclass(frozen=True, slots=True)
class Workload:
    """One step of a job, in numbers.

    batch, microbatch: samples. stages, pipelines: a wish, or None for the scheduler's choice.
    update_bits: bits that an update costs on the wire for each parameter, at all positions or at each one.
    activation_bits, gradient_bits: bits for each element that crosses a stage boundary, forward and backward. every:
    steps between the beginnings of two rounds, overlap: steps that one may be in flight. fragments: parts of the
    weights that take turns in rounds, each with a round every ``every`` * ``fragments`` steps.
    optimizer_bytes: bytes a parameter takes on a device (weights, gradient, moments, reference).
    movable_bytes: the part of them that train.offload would move to main memory; 0 where the job does so already,
    or where it would save nothing. block_bytes: bytes a parameter of a block takes on the device if its weights are
    there only while it computes; None: as many as elsewhere. main_bytes: bytes a parameter takes in main memory where
    its weights lie there; 0: it is not counted. round_bytes: further bytes a parameter takes for
    rounds (residuals, server errors), where a stage has several holders. codec_seconds: device seconds for each
    element that the activation codec takes at one end, forward and backward. codecs: the codecs that a link may be
    given; empty where the job's own codec is used on every link. efficiency: the part of a device's tflops that
    training reaches (1 where tflops is a measured training rate). update_ladder: (codec, bits for each parameter),
    the least lossy first, among which the plan chooses for updates; empty where the job names both a codec and an
    overlap. auto_overlap: the plan chooses the overlap too. reached: the part of their tflops that devices reached
    in steps so far; used only for the choice of codec and overlap. intervals, schedules, auto_recompute, sizes:
    what the job leaves to the plan (planning/choose_settings.py): the numbers of steps between rounds, rarer ones
    last; the schedules, the plainest first; whether forwards are computed again; the microbatches, smaller ones
    first. critical_batch: samples, from the job, or None; see ``counts``. chosen: (key of the job, the value chosen
    for it). insides: the ways in which devices of one node may share a stage, the cheapest first; empty: nodes are
    single devices, or their memory is that of all. auto_inside: the plan chooses among them. shares: devices may
    share the blocks' matrices if their number divides this; 0: they can't. offload: the kind of train.offload.
    offloads: those among which the plan chooses, the least first. lesser: those with less on the device than the job's,
    of which a refusal may speak; empty where nobody knows whether there is the main memory. early: how rounds that
    begin within the last backward pass are divided; None: they begin after it. See ``early_rounds``.
    """

    layers: tuple[Layer, ...]
    batch: int
    microbatch: int = 1
    stages: int | None = None
    pipelines: int | None = None
    schedule: str = "1f1b"
    chunks: int = 1
    mode: str = "delta"
    update_bits: float | tuple[float, ...] = 16.0
    every: int = 1
    overlap: int = 0
    fragments: int = 1
    pattern: str = "publishers"
    activation_bits: float = 16.0
    gradient_bits: float = 16.0
    optimizer_bytes: float = 16.0
    movable_bytes: float = 0.0
    block_bytes: float | None = None
    main_bytes: float = 0.0
    round_bytes: float = 0.0
    activation_bytes: float = 4.0
    recompute: bool = False
    tied: bool = False
    tokens_per_sample: int = 1
    efficiency: float = 1.0
    codec_seconds: float = 0.0
    codecs: tuple[CodecChoice, ...] = ()
    update_ladder: tuple[tuple[str, float], ...] = ()
    auto_overlap: bool = False
    reached: float = 1.0
    intervals: tuple[Interval, ...] = ()
    schedules: tuple[str, ...] = ()
    auto_recompute: bool = False
    sizes: tuple[Size, ...] = ()
    critical_batch: int | None = None
    chosen: tuple[tuple[str, int | bool | str], ...] = ()
    insides: tuple[str, ...] = ()
    auto_inside: bool = False
    shares: int = 0
    offload: str = "none"
    offloads: tuple[Offload, ...] = ()
    lesser: tuple[Offload, ...] = ()
    early: EarlyRounds | None = None

    def __post_init__(self) -> None:
        if not self.layers:
            raise PlanError("the model has no layers")
        if self.microbatch < 1 or self.batch < 1:
            raise PlanError(f"batch {self.batch} and microbatch {self.microbatch} must be at least 1")
        if self.batch % self.microbatch:
            raise PlanError(f"microbatch {self.microbatch} does not divide batch {self.batch}")
        if self.schedule not in SCHEDULES:
            raise PlanError(f"unknown schedule {self.schedule!r}: it is one of {', '.join(SCHEDULES)}")
        if self.pattern not in PATTERNS:
            raise PlanError(f"unknown pattern {self.pattern!r}: it is one of {', '.join(PATTERNS)}")
        for name, wish in (("stages", self.stages), ("pipelines", self.pipelines)):
            if wish is not None and wish < 1:
                raise PlanError(f"{name} must be at least 1, not {wish}")
        if self.stages is not None and self.stages > len(self.layers):
            raise PlanError(f"{self.stages} stages can't be: the model has {len(self.layers)} layers")
        if self.pipelines is not None and self.pipelines > self.microbatches:
            raise PlanError(f"{self.pipelines} pipelines can't be: a batch has {self.microbatches} microbatches")
        if self.every < 1 or not 0 <= self.overlap <= self.every:
            raise PlanError(f"overlap {self.overlap} must be from 0 to every ({self.every})")

    @property
    def microbatches(self) -> int:
        """Microbatches of a batch, over all pipelines."""
        return self.batch // self.microbatch

    @property
    def early_rounds(self) -> EarlyRounds | None:
        """``early``, as far as it applies: only a round of each step, which ends in it, begins within its pass."""
        return self.early if self.mode == "gradient" and self.every == 1 and not self.overlap else None

    @property
    def counts(self) -> float:
        """The part of a step's tokens that count: 1 / (1 + batch / critical batch); 1 where the job has no critical
        batch.

        To a loss that needs E tokens in small batches a training with batch B needs E (1 + B / B_crit) of them
        (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", 2.3).
        """
        return 1.0 if self.critical_batch is None else 1.0 / (1.0 + self.batch / self.critical_batch)

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def backward_ratio(self) -> float:
        """A backward's time in forwards: 2, and 3 where the forward is computed again."""
        return 3.0 if self.recompute else 2.0
