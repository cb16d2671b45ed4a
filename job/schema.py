"""The job: what to train. One pydantic model for each table of the job file, same keys, same meaning.

A job travels to nodes as JSON (``Job.model_dump_json`` / ``Job.model_validate_json``); a job file is read
by ``job.files.load_job``, which names every mistake with file, line and key.
A field's description is the sentence that an error shows as "allowed".
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from .outer import WORDS, Outer, parse_outer
from .robust import ROBUST_WORDS, Robust, parse_robust
from .sampling import Mixture

FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "gpt_neox")
CheckCodec = Callable[[str, str], object]
"""``check(spec, role)``: ValueError when the codec does not exist or does not fit the role, one of
"update", "difference", "gradient", "activation", "activation_gradient"."""


def _choice(*allowed: str, later: tuple[str, ...] = (), never: Mapping[str, str] | None = None) -> BeforeValidator:
    """One word of ``allowed``; words of ``later`` (``x*``: anything that begins with x) are refused as "not yet", words
    of ``never`` with their reason."""

    def check(value: Any) -> Any:
        if not isinstance(value, str) or value in allowed:
            return value
        if never and value in never:
            context = {"value": repr(value), "reason": never[value], "allowed": ", ".join(allowed)}
            raise PydanticCustomError("choice", "{value} {reason}; allowed: {allowed}", context)
        for word in later:
            if value == word or (word.endswith("*") and value.startswith(word[:-1])) or (word == ":" and ":" in value):
                message = "not yet: {value} is not supported by this version; allowed now: {allowed}"
                raise PydanticCustomError("not_yet", message, {"value": repr(value), "allowed": ", ".join(allowed)})
        near = difflib.get_close_matches(value, allowed, 1, 0.5)
        nearest = f"; did you mean {near[0]!r}?" if near else ""
        message = "{value} is not one of {allowed}{nearest}"
        context = {"value": repr(value), "allowed": ", ".join(allowed), "nearest": nearest}
        raise PydanticCustomError("choice", message, context)

    return BeforeValidator(check)


def _outer(value: Any) -> Any:
    """Refuses an outer optimiser that means nothing."""
    if isinstance(value, str):
        try:
            parse_outer(value)
        except ValueError as error:
            raise PydanticCustomError("choice", "{problem}", {"problem": str(error)}) from None
    return value


def _robust(value: Any) -> Any:
    """Refuses a robust average that means nothing."""
    if isinstance(value, str):
        try:
            parse_robust(value)
        except ValueError as error:
            raise PydanticCustomError("choice", "{problem}", {"problem": str(error)}) from None
    return value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Count = Annotated[int, Field(ge=1)]
Code = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
Files = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]


SOURCES = ("text", "jsonl", "parquet", "webdataset", "tokens", "chat")
"""Keys of ``[data]`` that name files, of which a job has one."""


class Table(BaseModel):
    """A table of the job file: no unknown keys, no silent conversions (``"4"`` is not 4), not changed after reading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Run(Table):
    """``[run]``: the name, the seed, how long."""

    name: str = Field(
        default="", pattern=r"^[\w.-]*$", description="letters, digits, '.', '_' and '-' (default: the job file's name)"
    )
    seed: int = Field(default=1, ge=0, lt=2**63, description="a whole number, 0 or more")
    epochs: Count | None = Field(default=None, description="a whole number of passes over the data (or give steps)")
    steps: Count | None = Field(default=None, description="a whole number of steps (or give epochs)")


class Lora(Table):
    """``[model.lora]``: small matrices beside some of a pretrained model's train; nothing else does, or travels."""

    rank: Count = Field(default=8, description="a whole number: the inner dimension of an adapter")
    alpha: float = Field(
        default=16.0, gt=0, allow_inf_nan=False, description="a number above 0: adapters count alpha / rank"
    )
    rslora: bool = Field(default=False, description="true or false: adapters count alpha / sqrt(rank)")
    base: Annotated[Literal["fp32", "bf16"], _choice("fp32", "bf16", later=("int8", "nf4"))] = Field(
        default="fp32", description='fp32, bf16 (with train.precision = "bf16"): what the frozen matrices are kept in'
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="0, for now")
    targets: Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)] | None = Field(
        default=None, description='names of a block\'s matrices, ["q_proj", "v_proj"] (default: what peft takes)'
    )


class Model(Table):
    """``[model]``: exactly one of ``family`` (with its shape), ``pretrained`` (a folder), ``build`` (a function) and
    ``parameters`` (the members' own model)."""

    family: Annotated[str | None, _choice(*FAMILIES)] = Field(default=None, description=", ".join(FAMILIES))
    layers: Count | None = Field(default=None, description="a whole number of transformer blocks")
    width: Count | None = Field(default=None, description="the hidden size, a multiple of heads")
    heads: Count | None = Field(default=None, description="a whole number of attention heads")
    context: Annotated[int, Field(ge=2)] | None = Field(
        default=None, description="tokens a training sample is predicted on, 2 or more"
    )
    vocabulary: Count | None = Field(
        default=None, description="a whole number, at least the tokenizer's (default: the tokenizer's)"
    )
    kv_heads: Count | None = Field(default=None, description="a divisor of heads (families with grouped queries)")
    pretrained: str | None = Field(
        default=None,
        description='a folder with config.json and *.safetensors, or a name on the hub: "org/name@revision"',
    )
    build: Code | None = Field(default=None, description='"package.module:function"')
    parameters: Count | None = Field(
        default=None, description="how many the model has that members bring with farflung.group"
    )
    tie: bool | None = Field(default=None, description="true or false (default: the family's own)")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="a number from 0 to less than 1")
    router_loss: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="a number, 0 or more: the weight of the balance loss of a mixture's routers (default: what "
        "config.json says where it has output_router_logits)",
    )
    lora: Lora | None = Field(default=None, description="a table of its own, with pretrained: train adapters only")


class Mixed(Table):
    """``[[data.mix]]``: one source of a mixture, and how much of the samples come from it."""

    weight: Annotated[float, Field(strict=False, gt=0, allow_inf_nan=False)] = Field(
        description="a number above 0: sources are drawn in proportion to their weights"
    )
    text: Files | None = Field(default=None, description='file names or patterns, ["data/*.txt"]')
    jsonl: Files | None = Field(default=None, description='file names or patterns, ["data/*.jsonl"]')
    parquet: Files | None = Field(default=None, description='file names or patterns, ["data/*.parquet"]')
    webdataset: Files | None = Field(default=None, description='shards with *.txt or *.json in them, ["shards/*.tar"]')
    tokens: Files | None = Field(default=None, description='files of tokens, ["*.bin"]')
    chat: Files | None = Field(default=None, description='rows of messages: jsonl or parquet, ["chats/*.jsonl"]')
    field: str = Field(default="text", min_length=1, description="the jsonl key or parquet column that holds the text")

    def sources(self) -> dict[str, list[str]]:
        """The keys that name files, and their patterns."""
        return {name: getattr(self, name) for name in SOURCES if getattr(self, name) is not None}


class Data(Table):
    """``[data]``: exactly one of ``text``, ``jsonl``, ``parquet``, ``webdataset``, ``tokens``, ``chat``, ``build`` and
    ``samples``."""

    text: Files | None = Field(default=None, description='file names or patterns, ["data/*.txt"]')
    jsonl: Files | None = Field(default=None, description='file names or patterns, ["data/*.jsonl"]')
    parquet: Files | None = Field(default=None, description='file names or patterns, ["data/*.parquet"]')
    webdataset: Files | None = Field(default=None, description='shards with *.txt or *.json in them, ["shards/*.tar"]')
    tokens: Files | None = Field(default=None, description='uint16 tokens of the tokenizer, as nanoGPT has, ["*.bin"]')
    chat: Files | None = Field(
        default=None, description='rows of messages, or of prompt and completion: jsonl or parquet, ["chats/*.jsonl"]'
    )
    mix: Annotated[list[Mixed], Field(min_length=1)] | None = Field(
        default=None, description="tables [[data.mix]], each with a weight and one of the sources above"
    )
    turns: Annotated[Literal["all", "last", "each"], _choice("all", "last", "each")] = Field(
        default="all",
        description="which turns of the assistant are learnt (chat): all, the last, or each as the end of a sample",
    )
    pack: bool = Field(
        default=True, description="true or false: several conversations in a sample, none of which sees another (chat)"
    )
    field: str = Field(default="text", min_length=1, description="the jsonl key or parquet column that holds the text")
    token_type: Annotated[Literal["auto", "uint16", "uint32"], _choice("auto", "uint16", "uint32")] = Field(
        default="auto",
        description="what tokens are in files that do not say it: auto (uint32 for more than 65,536), uint16, uint32",
    )
    build: Code | None = Field(default=None, description='"package.module:function"')
    samples: Count | None = Field(default=None, description="how many training samples members of a group have")
    tokenizer: str = Field(default="bytes", min_length=1, description='"bytes", or a folder that AutoTokenizer loads')
    validation: Annotated[float, Field(ge=0, lt=1)] | Files = Field(
        default=0.05, description="the part held out, a number from 0 to less than 1; or files of the same kind"
    )
    cache_gb: float = Field(
        default=50.0,
        gt=0,
        allow_inf_nan=False,
        description="gigabytes of tokens that a node, or the coordinator, keeps on its disk at most",
    )
    where: Annotated[Literal["coordinator", "node"], _choice("coordinator", "node")] = Field(
        default="coordinator",
        description='"coordinator", or "node": files below the folder that each node joined with (--data)',
    )

    def sources(self) -> dict[str, list[str]]:
        """The keys that name files, and their patterns."""
        given = {name: getattr(self, name) for name in SOURCES}
        return {name: patterns for name, patterns in given.items() if patterns is not None}

    def raw_kind(self, vocabulary: int) -> str:
        """The numpy type of tokens in files that do not say it."""
        if self.token_type == "auto":
            return "<u4" if vocabulary > 2**16 else "<u2"
        return "<u4" if self.token_type == "uint32" else "<u2"

    def parts(self) -> list[Data]:
        """The sources of a mixture, each as data of its own."""
        given = [{name: getattr(one, name) for name in SOURCES} | {"field": one.field} for one in self.mix or ()]
        return [self.model_copy(update={"mix": None, **one}) for one in given]

    def held_out(self) -> list[str]:
        """The patterns of ``validation``; none where it is a part of the training files."""
        return self.validation if isinstance(self.validation, list) else []

    @property
    def is_text(self) -> bool:
        """Whether samples are windows of tokens, which the coordinator makes."""
        return self.build is None and self.samples is None

    def source(self) -> tuple[str, list[str]]:
        """The one key that names files, and its patterns (where the data are text)."""
        ((name, patterns),) = self.sources().items()
        return name, patterns


_ZERO_ONE_ADAM = (
    "takes steps of its own between exchanges and rebuilds the momentum from them, so its nodes have no common weights "
    "after a step: mode gradient needs those, and mode delta averages weights, not momentum; onebit_adam has both, and "
    "farflung.compress.optimizers.ZeroOneAdam runs under DDP"
)
_ADAFACTOR = (
    "keeps a row and a column of each matrix's squares, and a stage keeps moments as vectors as long as its weights; "
    'moments = "bf16" with adamw takes 4 bytes a weight'
)


class Train(Table):
    """``[train]``: batch, optimiser and its schedule. ``clip = 0``: no clipping; ``eval_every = 0``: at the end."""

    batch: Count = Field(default=32, description="a whole number of samples a step, over all pipelines")
    microbatch: Annotated[int, Field(ge=0)] = Field(
        default=0, description="a divisor of batch (default: the largest one up to 4)"
    )
    optimizer: Annotated[
        Literal["adamw", "sgd", "lamb", "lion", "muon", "onebit_adam"],
        _choice(
            "adamw",
            "sgd",
            "lamb",
            "lion",
            "muon",
            "onebit_adam",
            later=(":",),
            never={"zero_one_adam": _ZERO_ONE_ADAM, "adafactor": _ADAFACTOR},
        ),
    ] = Field(default="adamw", description="adamw, sgd, lamb, lion, muon (delta mode), onebit_adam (gradient mode)")
    moments: Annotated[Literal["fp32", "bf16"], _choice("fp32", "bf16")] = Field(
        default="fp32", description="fp32, bf16 (adamw, lamb): what the optimiser's moments are kept in"
    )
    offload: bool = Field(default=False, description="true or false: the moments of a GPU's weights in main memory")
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False, description="a number above 0")
    min_learning_rate_ratio: float = Field(
        default=0.0, ge=0, le=1, description="a number from 0 to 1: where the decay ends"
    )
    warmup_steps: int = Field(default=0, ge=0, description="a whole number, 0 or more")
    decay: Annotated[
        Literal["cosine", "linear", "wsd", "inverse_sqrt", "none"],
        _choice("cosine", "linear", "wsd", "inverse_sqrt", "none"),
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
    precision: Annotated[Literal["fp32", "bf16"], _choice("fp32", "bf16", later=("fp16", "fp8"))] = Field(
        default="fp32", description="fp32, bf16"
    )
    recompute: bool = Field(default=False, description="true or false")
    eval_every: int = Field(default=50, ge=0, description="a whole number of steps; 0: only at the end")

    @model_validator(mode="before")
    @classmethod
    def _default_microbatch(cls, data: Any) -> Any:
        if isinstance(data, dict) and "microbatch" not in data:
            batch = data.get("batch", 32)
            if isinstance(batch, int) and not isinstance(batch, bool) and batch >= 1:
                data = {**data, "microbatch": max(size for size in range(1, 5) if batch % size == 0)}
        return data

    @property
    def microbatches(self) -> int:
        """How many microbatches a step has, over all pipelines."""
        return self.batch // self.microbatch


class Parallel(Table):
    """``[parallel]``: the cluster's shape. ``min_nodes``: the run starts when so many nodes are in."""

    stages: Literal["auto"] | Count = Field(default="auto", description='"auto" or a whole number')
    pipelines: Literal["auto"] | Count = Field(default="auto", description='"auto" or a whole number')
    schedule: Annotated[Literal["gpipe", "1f1b", "interleaved"], _choice("gpipe", "1f1b", "interleaved")] = Field(
        default="1f1b", description="gpipe, 1f1b, interleaved (a node has up to 4 stages of its pipeline)"
    )
    min_nodes: Count = Field(default=1, description="a whole number of nodes")


SECURE_MEMBERS = 3
"""Members that a group needs before a sum hides what went into it: each of two could take off its own."""
UNAGREED = (
    "between evaluations, checkpoints and the end nodes have no common weights: there is no exact log of rounds, so no "
    "join by replay (who joins takes a neighbour's weights), and no fingerprint tells who went astray"
)
"""What is lost without ``updates.agreed``."""


class Updates(Table):
    """``[updates]``: how the nodes of a group agree on weights."""

    mode: Annotated[Literal["gradient", "delta"], _choice("gradient", "delta")] = Field(
        default="gradient", description="gradient, delta"
    )
    every: Count = Field(default=1, description="a whole number of steps between rounds (1 in gradient mode)")
    fragments: Count = Field(
        default=1, description="a divisor of every: pieces of the weights that go one after another, each every steps"
    )
    overlap: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        default=0,
        description='steps that a round may be in flight, up to every / fragments (0 in gradient mode), or "auto"',
    )
    pattern: Annotated[
        Literal["auto", "publishers", "all_to_all", "two_level", "gossip", "async"],
        _choice("auto", "publishers", "all_to_all", "two_level", "gossip", "async"),
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
    outer: Annotated[str, BeforeValidator(_outer)] = Field(default="average", description=WORDS)
    robust: Annotated[str, BeforeValidator(_robust)] = Field(default="none", description=ROBUST_WORDS)
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
    block: int = Field(
        default=65536, ge=256, le=2**26, multiple_of=8, description="elements of a block, a multiple of 8"
    )

    @property
    def interval(self) -> int:
        """Steps between the beginnings of two rounds."""
        return self.every // self.fragments

    @property
    def outer_optimizer(self) -> Outer:
        return parse_outer(self.outer)

    @property
    def robust_average(self) -> Robust:
        return parse_robust(self.robust)


class Activations(Table):
    """``[activations]``: the codecs between stages."""

    forward: str = Field(default="none", min_length=1, description='a codec for activations, or "auto"')
    backward: str = Field(default="none", min_length=1, description="a codec for gradients of activations")
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
        exclude=True,  # may hold credentials: they go neither to nodes, nor to the database, nor into manifests
        description='what fsspec needs for the address, {endpoint_url = "https://..."}',
    )


class Job(Table):
    """A whole job file. Paths in it are absolute once it was read from a file (except ``checkpoint.to``)."""

    run: Run = Run()
    model: Model
    data: Data
    train: Train = Train(microbatch=4)
    parallel: Parallel = Parallel()
    updates: Updates = Updates()
    activations: Activations = Activations()
    checkpoint: Checkpoint = Checkpoint()

    @property
    def calls(self) -> list[str]:
        """The code of its owner's that it names: functions, "module:function", and codecs, "module.codec:key=value"."""
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
        return [spec for spec in (self.model.build, self.data.build) if spec]

    def steps(self, samples: int) -> int:
        """Steps of the whole run with ``samples`` training samples; the last batch may reach into a further epoch."""
        if self.run.steps is not None:
            return self.run.steps
        return math.ceil((self.run.epochs or 1) * samples / self.train.batch)


class LayerProfile(BaseModel):
    """What one layer costs: weights, flops of forward and backward for one sample, elements that it hands on."""

    name: str
    parameters: int
    frozen: int = 0
    """Weights that do not train, beside ``parameters``, in fp32 elements: of bf16 half as many."""
    flops_per_sample: float
    activation_elements_per_sample: int
    stored_elements_per_sample: int = 0
    """What the backward pass needs kept, in fp32 elements; 0: not known."""
    copied_elements: int = 0
    """What is kept for each microbatch however many samples it has: weights in the precision of computing."""
    working_elements_per_sample: int = 0
    """What is there beside that while the layer computes: logits and their gradient."""


class Profile(BaseModel):
    """What ``python -m farflung.node.models.profiling.cost`` found out about the model (and about ``build`` data)."""

    layers: list[LayerProfile]
    tied: bool
    family: str
    samples: int | None = None
    """Training samples of ``data.build``; None for text."""
    validation_samples: int | None = None


class Facts(BaseModel):
    """What the coordinator found out about data and model; every node gets it with its JoinReply.

    Text: the artifact ``data/tokens`` is a matrix of ``samples + validation_samples`` rows of ``context + 1`` tokens
    (little-endian ``token_dtype``, nothing else in the file): training sample i is row i, validation sample j is row
    ``samples + j``. A row's inputs are its first ``context`` tokens, its targets its last. Neighbouring windows of the
    text share one token; which windows are held out depends on the data alone, never on the seed or the cluster.
    ``tokens_digest`` is the sha256 (hex) of that file, empty where the data are no text (then also no ``data/tokens``).
    ``vocabulary`` is the model's: ``model.vocabulary`` or else the tokenizer's (256 for "bytes").
    ``artifacts``: name -> sha256 (hex): ``data/tokens``, ``model/FILE`` (pretrained), ``tokenizer/FILE``.
    With ``data.where = "node"`` there is no ``data/tokens`` and ``samples`` counts what the whole run draws: every node
    takes its own samples for the ids that it is given (node/data/dataset.py).
    ``end_of_text``: the token that ends a document of text; None without one.
    ``token_dtype`` "marked32": rows of `job/marks.py`, whose tokens are uint32 with marks; ``data/counts`` (uint32, one
    for each row) says how many tokens of each row train, and with ``packed`` rows have documents that must not see
    each other; ``trained`` of all training samples together (0: every token).
    ``mix``: of each source of a mixture its training samples, and how often it is drawn: `sampling.Mixture`.
    ``order`` is the `sampling.ORDER` that the run began with; facts of before there were several do not name it.
    """

    samples: int
    validation_samples: int
    context: int
    vocabulary: int
    token_dtype: str
    steps: int
    tokens_digest: str
    profile: Profile
    artifacts: dict[str, str]
    end_of_text: int | None = None
    order: int = 1
    packed: bool = False
    trained: int = 0
    mix: list[tuple[int, int]] = []

    @property
    def drawn(self) -> int | Mixture:
        """What positions of the stream draw from: see `sampling.sample_ids`."""
        return Mixture(tuple(self.mix)) if self.mix else self.samples
