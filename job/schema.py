"""The job: what to train. One pydantic model for each table of the job file, same keys, same meaning.

A job travels to nodes as JSON (``Job.model_dump_json`` / ``Job.model_validate_json``); a job file is read
by ``job.files.load_job``, which names every mistake with file, line and key.
A field's description is the sentence that an error shows as "allowed".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from .tables.data import Data
from .tables.evaluation import Eval
from .tables.kinds import Count, Table, choice, parsed_by
from .tables.model import Model
from .tables.outer import WORDS, Outer, parse_outer
from .tables.robust import ROBUST_WORDS, Robust, parse_robust

CheckCodec = Callable[[str, str], object]
"""``check(spec, role)`` raises ValueError when the codec does not exist or can't have the role: one of "update",
"difference", "gradient", "activation", "activation_gradient"."""


class Run(Table):
    """``[run]``: the name, the seed, how long."""

    name: str = Field(
        default="", pattern=r"^[\w.-]*$", description="letters, digits, '.', '_' and '-' (default: the job file's name)"
    )
    seed: int = Field(default=1, ge=0, lt=2**63, description="a whole number, 0 or more")
    epochs: Count | None = Field(default=None, description="a whole number of passes over the data (or give steps)")
    steps: Count | None = Field(default=None, description="a whole number of steps (or give epochs)")


_ZERO_ONE_ADAM = (
    "takes steps of its own between exchanges and rebuilds the momentum from them, so its nodes have no common weights "
    "after a step: mode gradient needs those, and mode delta averages weights, not momentum; onebit_adam has both, and "
    "farflung.compress.optimizers.ZeroOneAdam runs under DDP"
)


_OFFLOAD_WORDS = {True: "moments", False: "none"}


class Train(Table):
    """``[train]``: batch, optimiser and its schedule. ``clip = 0``: no clipping; ``eval_every = 0``: at the end."""

    task: Annotated[Literal["language", "classification", "dpo"], choice("language", "classification", "dpo")] = Field(
        default="language",
        description="what is learnt: language (the next token), classification (data.labelled), dpo (data.preferences)",
    )
    dpo_beta: float = Field(
        default=0.1, gt=0, allow_inf_nan=False, description="a number above 0: how far dpo keeps to the base"
    )
    batch: Count = Field(default=32, description="a whole number of samples a step, over all pipelines")
    microbatch: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        default=0, description='a divisor of batch (default: the largest one up to 4), or "auto"'
    )
    critical_batch: Count | None = Field(
        default=None, description="a whole number of samples: the batch from which on a larger one helps less than half"
    )
    optimizer: Annotated[
        str,
        choice(
            "adamw",
            "sgd",
            "lamb",
            "lion",
            "muon",
            "adafactor",
            "onebit_adam",
            never={"zero_one_adam": _ZERO_ONE_ADAM},
            code=True,
        ),
    ] = Field(
        default="adamw",
        description="adamw, sgd, lamb, lion, muon (delta mode), adafactor, onebit_adam (gradient mode), or a function "
        'that makes one of torch.optim, "package.module:function" (delta mode)',
    )
    moments: Annotated[Literal["fp32", "bf16"], choice("fp32", "bf16")] = Field(
        default="fp32", description="fp32, bf16 (adamw, lamb): what the optimiser's moments are kept in"
    )
    offload: (
        Annotated[
            Literal["auto", "none", "moments", "optimizer", "parameters"],
            choice("auto", "none", "moments", "optimizer", "parameters"),
        ]
        | bool
    ) = Field(
        default=False,
        description='false or "none", true or "moments", "optimizer", "parameters": what of a GPU\'s memory lies in '
        'main memory; "auto": as little as fits',
    )
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False, description="a number above 0")
    min_learning_rate_ratio: float = Field(
        default=0.0, ge=0, le=1, description="a number from 0 to 1: where the decay ends"
    )
    warmup_steps: int = Field(default=0, ge=0, description="a whole number, 0 or more")
    decay: Annotated[
        Literal["cosine", "linear", "wsd", "inverse_sqrt", "none"],
        choice("cosine", "linear", "wsd", "inverse_sqrt", "none"),
    ] = Field(default="cosine", description="cosine, linear, wsd, inverse_sqrt, none")
    cooldown_steps: int = Field(
        default=0,
        ge=0,
        description="a whole number of last steps in which the rate falls to its end (wsd: a tenth of all; none, "
        "inverse_sqrt)",
    )
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False, description="a number, 0 or more")
    betas: Annotated[tuple[float, float], Field(strict=False)] = Field(
        default=(0.9, 0.95), description="two numbers from 0 to less than 1"
    )
    eps: float = Field(default=1e-8, gt=0, allow_inf_nan=False, description="a number above 0")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="a number from 0 to less than 1 (sgd)")
    clip: float = Field(
        default=1.0, ge=0, allow_inf_nan=False, description="the largest global gradient norm; 0: no clipping"
    )
    precision: Annotated[Literal["fp32", "bf16", "fp16"], choice("fp32", "bf16", "fp16", later=("fp8",))] = Field(
        default="fp32", description="fp32, bf16, fp16 (with a dynamic loss scale)"
    )
    loss_scale_steps: Count = Field(
        default=2000, description="a whole number of steps without an overflow, after which fp16's loss scale doubles"
    )
    recompute: Literal["auto"] | bool = Field(
        default=False, description='true, false, or "auto": where memory is short'
    )
    compile: bool = Field(
        default=False, description="true or false: layers through torch.compile; the first step takes longer"
    )
    eval_every: int = Field(default=50, ge=0, description="a whole number of steps; 0: only at the end")
    eval_epochs: int = Field(
        default=0, ge=0, description="a whole number of passes over the data, in place of eval_every; 0: eval_every"
    )

    @model_validator(mode="before")
    @classmethod
    def _default_microbatch(cls, data: Any) -> Any:
        if isinstance(data, dict) and "microbatch" not in data:
            batch = data.get("batch", 32)
            if isinstance(batch, int) and not isinstance(batch, bool) and batch >= 1:
                data = {**data, "microbatch": max(size for size in range(1, 5) if batch % size == 0)}
        return data

    @property
    def offload_kind(self) -> str:
        """``offload`` as a word."""
        return self.offload if isinstance(self.offload, str) else _OFFLOAD_WORDS[self.offload]

    @property
    def microbatch_size(self) -> int:
        """``microbatch`` of a job with a plan's choices (job/chosen.py). ValueError while it is "auto"."""
        if isinstance(self.microbatch, str):
            raise ValueError('train.microbatch = "auto" is chosen by the plan of a view')
        return self.microbatch

    @property
    def microbatches(self) -> int:
        """Microbatches of a step, over all pipelines. ValueError while ``microbatch`` is "auto"."""
        return self.batch // self.microbatch_size

    @property
    def most_microbatches(self) -> int:
        """The most microbatches that a step may have, whatever a plan chooses."""
        return self.batch if self.microbatch == "auto" else self.microbatches


INSIDE = ("ddp", "fsdp", "tp", "fsdp+tp")
"""The ways in which devices of an island share their node's stages, the cheapest first."""


class Parallel(Table):
    """``[parallel]``: the cluster's shape. ``min_nodes``: the run starts when this many nodes have joined."""

    stages: Literal["auto"] | Count = Field(default="auto", description='"auto" or a whole number')
    pipelines: Literal["auto"] | Count = Field(default="auto", description='"auto" or a whole number')
    schedule: Annotated[
        Literal["gpipe", "1f1b", "interleaved", "auto"], choice("gpipe", "1f1b", "interleaved", "auto")
    ] = Field(
        default="1f1b",
        description="gpipe, 1f1b, interleaved (a node has up to 4 stages of its pipeline), auto (1f1b or interleaved)",
    )
    min_nodes: Count = Field(default=1, description="a whole number of nodes")
    inside: Annotated[Literal["ddp", "fsdp", "tp", "fsdp+tp", "auto"], choice(*INSIDE, "auto")] = Field(
        default="ddp",
        description="ddp, fsdp, tp, fsdp+tp, auto: how devices of an island (join --island) share their node's stages",
    )


EVERY = (1, 2, 5, 10, 20, 50, 100)
"""The values that a plan may choose for ``updates.every``."""
SECURE_MEMBERS = 3
"""Least members of a group whose sum hides their contributions: each of two members could subtract its own."""
UNAGREED = (
    "between evaluations, checkpoints and the end nodes have no common weights: there is no exact log of rounds, so no "
    "join by replay (who joins takes a neighbour's weights), and no fingerprint tells who went astray"
)
"""What a run does not have without ``updates.agreed``."""


class Updates(Table):
    """``[updates]``: how the nodes of a group agree on weights."""

    mode: Annotated[Literal["gradient", "delta"], choice("gradient", "delta")] = Field(
        default="gradient", description="gradient, delta"
    )
    every: Literal["auto"] | Count = Field(
        default=1, description='a whole number of steps between rounds (1 in gradient mode), or "auto"'
    )
    fragments: Count = Field(
        default=1, description="a divisor of every: pieces of the weights that go one after another, each every steps"
    )
    overlap: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        default=0,
        description='steps that a round may be in flight, up to every / fragments (0 in gradient mode), or "auto"',
    )
    pattern: Annotated[
        Literal["auto", "publishers", "all_to_all", "two_level", "gossip", "async"],
        choice("auto", "publishers", "all_to_all", "two_level", "gossip", "async"),
    ] = Field(
        default="auto", description="auto, publishers, all_to_all, two_level; gossip, async (with agreed = false)"
    )
    agreed: bool = Field(
        default=True, description="true or false: whether nodes hold one reference (not in gossip, async)"
    )
    codec: str = Field(
        default="none", min_length=1, description='a codec, `name` or `name:key=value,key=value`, or "auto"'
    )
    dense_rounds: int = Field(default=0, ge=0, description="a whole number of first rounds with codec none")
    outer: Annotated[str, parsed_by(parse_outer)] = Field(default="average", description=WORDS)
    robust: Annotated[str, parsed_by(parse_robust)] = Field(default="none", description=ROBUST_WORDS)
    audit: float = Field(
        default=0.01, ge=0, le=1, description="the part of a publisher's traffic that checks of its sums may take"
    )
    judge: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="the part of a member's computing that goes into judging what others' contributions do to the loss",
    )
    secure: bool = Field(
        default=False, description="true or false: contributions are masked, only their sums are seen (codec intsgd)"
    )
    residual: Annotated[Literal["fp32", "bf16"], choice("fp32", "bf16")] = Field(
        default="fp32",
        description="fp32, bf16: what error feedbacks and server errors are kept in (not what stays in the weights)",
    )
    block: int = Field(
        default=65536, ge=256, le=2**26, multiple_of=8, description="elements of a block, a multiple of 8"
    )

    @property
    def interval(self) -> int:
        """Steps between the beginnings of two rounds."""
        return self.period // self.fragments

    @property
    def period(self) -> int:
        """``every`` of a job with a plan's choices (job/chosen.py). ValueError while it is "auto"."""
        if isinstance(self.every, str):
            raise ValueError('updates.every = "auto" is chosen by the plan of a view')
        return self.every

    @property
    def outer_optimizer(self) -> Outer:
        return parse_outer(self.outer)

    @property
    def robust_average(self) -> Robust:
        return parse_robust(self.robust)


class Activations(Table):
    """``[activations]``: the codecs between stages."""

    forward: str = Field(default="none", min_length=1, description='a codec for activations, or "auto"')
    backward: str = Field(default="none", min_length=1, description='a codec for gradients of activations, or "auto"')
    by_link: bool = Field(
        default=False,
        description="true or false: each link has the gentlest codec that keeps the pace, forward and backward at most",
    )
    disk_gb: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="gigabytes of a node's disk for AQ-SGD, beside its memory"
    )


class Checkpoint(Table):
    """``[checkpoint]``. ``to`` is relative to the run's state folder; ``every = 0``: only at the end."""

    every: int = Field(default=100, ge=0, description="a whole number of steps; 0: only at the end")
    keep: Count = Field(default=3, description="a whole number of checkpoints")
    to: str = Field(
        default="checkpoints",
        min_length=1,
        description="a folder, relative to the state folder; or an address, s3://BUCKET/PATH",
    )
    options: dict[str, Any] = Field(
        default={},
        exclude=True,  # may hold credentials, so it is not sent to nodes, nor stored in the database or manifests
        description='what fsspec needs for the address, {endpoint_url = "https://..."}',
    )


class Job(Table):
    """A whole job file. After reading from a file, its paths are absolute (except ``checkpoint.to``)."""

    run: Run = Run()
    model: Model
    data: Data
    train: Train = Train(microbatch=4)
    parallel: Parallel = Parallel()
    updates: Updates = Updates()
    activations: Activations = Activations()
    checkpoint: Checkpoint = Checkpoint()
    eval: Eval = Eval()

    @property
    def calls(self) -> list[str]:
        """The owner's code that the job names: functions, "module:function", and codecs, "module.codec:key=value"."""
        codecs = (self.updates.codec, self.activations.forward, self.activations.backward)
        own = [spec for spec in codecs if "." in spec.partition(":")[0]]
        return [*self._builds, *own]

    @property
    def modules(self) -> set[str]:
        """The modules of ``calls``."""
        builds, codecs = self._builds, self.calls[len(self._builds) :]
        names = [spec.partition(":")[0].rpartition(".")[0] for spec in codecs]
        return {*(spec.partition(":")[0] for spec in builds), *names}

    @property
    def _builds(self) -> list[str]:
        own = self.train.optimizer if ":" in self.train.optimizer else None
        return [spec for spec in (self.model.build, self.data.build, own) if spec]

    def steps(self, samples: int) -> int:
        """Steps of the whole run with ``samples`` training samples; the last batch may reach into a further epoch."""
        if self.run.steps is not None:
            return self.run.steps
        return math.ceil((self.run.epochs or 1) * samples / self.train.batch)
