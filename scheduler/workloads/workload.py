"""What has to be computed, held and sent: the numbers of a job that the scheduler needs, without the job's models."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import PlanError
from .schedules import SCHEDULES

PATTERNS = ("publishers", "all_to_all", "two_level", "auto", "ring")


def settled_pattern(pattern: str, members: int) -> str:
    """The pattern of a round inside one region; ``auto`` is settled by the number of members.

    All-to-all for two members: it costs the same bytes as publishers and needs no second encoding. Publishers for
    more, because all-to-all costs (members / 2) times their bytes.
    """
    return pattern if pattern != "auto" else "all_to_all" if members <= 2 else "publishers"


@dataclass(frozen=True, slots=True)
class Layer:
    """One indivisible piece of the model.

    flops: floating point operations of one sample's forward pass (a backward counts twice that).
    activation: elements of one sample's output, what a stage boundary after this layer sends.
    stored: elements of one sample that the backward pass needs kept (0: a guess of 8 times `activation`).
    frozen: weights beside the parameters that do not train, 4 bytes each. copies: elements that are kept for each
    microbatch, however many samples it has (weights in another precision). working: elements of one sample that are
    there beside what is kept while the layer computes.
    """

    name: str
    parameters: int
    flops: float
    activation: int
    stored: int = 0
    frozen: int = 0
    copies: int = 0
    working: int = 0


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
"""Steps between rounds among which a plan chooses where the job says "auto"; job/schema.py has the same."""


@dataclass(frozen=True, slots=True)
class Interval:
    """So many steps between two rounds, and what follows from it: fields of Workload with these names."""

    every: int
    overlap: int
    update_bits: float | tuple[float, ...]
    update_ladder: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Size:
    """So many samples of a microbatch, and what follows from it: fields of Workload with these names."""

    microbatch: int
    efficiency: float
    activation_bits: float
    gradient_bits: float
    codecs: tuple[CodecChoice, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """One step of a job, in numbers.

    batch, microbatch: samples. stages, pipelines: a wish, or None for the scheduler's choice.
    update_bits: bits that an update costs on the wire for each parameter, at all positions or at each one.
    activation_bits, gradient_bits: bits for each element that crosses a stage boundary, forward and backward. every:
    steps between the beginnings of two rounds, overlap: steps that one may be in flight.
    optimizer_bytes: bytes a parameter takes on a device (weights, gradient, moments, reference).
    movable_bytes: of those, what train.offload would move to main memory; 0 where that is done, or is no use.
    round_bytes: bytes a parameter that rounds take beside, where a stage has several holders (errors kept).
    codec_seconds: device seconds for each element that the activation codec takes at one end, forward and backward.
    codecs: the codecs that a link may be given; empty where the job's own codec is used on every link.
    efficiency: the part of a device's tflops that training reaches (1 where tflops is a measured training rate).
    update_ladder: (codec, bits for each parameter), the least lossy first, among which the plan chooses for updates;
    empty where the job names one and an overlap. auto_overlap: the plan chooses the overlap too. reached: the part of
    their tflops that devices were seen to reach, for that choice alone.
    intervals, schedules, auto_recompute, sizes: what the job leaves to the plan (planning/choose_settings.py): the
    numbers of steps between rounds, rarer ones last; the schedules, the plainest first; whether forwards are computed
    again; the microbatches, smaller ones first.
    critical_batch: samples, of the job; see ``counts``.
    chosen: keys of the job with what was chosen for them.
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
    pattern: str = "publishers"
    activation_bits: float = 16.0
    gradient_bits: float = 16.0
    optimizer_bytes: float = 16.0
    movable_bytes: float = 0.0
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
    chosen: tuple[tuple[str, int | bool], ...] = ()

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
    def counts(self) -> float:
        """The part of a step's tokens that counts: 1 / (1 + batch / critical batch), 1 where no job says the latter.

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
