"""The facts: what the coordinator finds out about a job's data and model and sends to every node."""

from __future__ import annotations

from pydantic import BaseModel

from .own_code import OwnCode
from .sampling import Mixture


class LayerProfile(BaseModel):
    """The costs of one layer: parameters; flops of forward and backward for one sample; elements of its output."""

    name: str
    parameters: int
    frozen: int = 0
    """Weights that do not train and are not in ``parameters``, in units of fp32 elements (a bf16 weight counts
    half)."""
    flops_per_sample: float
    activation_elements_per_sample: int
    stored_elements_per_sample: int = 0
    """Elements kept for the backward pass of one sample, in units of fp32 elements; 0: not known."""
    copied_elements: int = 0
    """Elements kept once for each microbatch, independent of its samples: weights in the precision of computing."""
    working_elements_per_sample: int = 0
    """Further elements of one sample that exist only while the layer computes: logits and their gradient."""
    temporary_elements: int = 0
    """Elements that exist only while the layer decodes its largest matrix, independent of its samples."""
    decoding_elements_per_sample: int = 0
    """Elements of one sample beside them where the layer is computed again."""
    entry_elements_per_sample: int = 0
    """Of a layer that begins with the embedding: elements of one sample that go from there into its block."""
    after_elements_per_sample: int = 0
    """Of a layer that ends with the head: elements that the head keeps for the backward pass of one sample."""
    after_working_elements_per_sample: int = 0
    """Of such a layer: the head's working elements."""
    after_copied_elements: int = 0
    """Of such a layer: elements that the head keeps once for each microbatch."""
    largest_elements: int = 0
    """Elements of the layer's largest trained parameter; 0: not known."""


class Profile(BaseModel):
    """The result of ``python -m farflung.node.models.profiling.cost``: the model's profile, and the size of ``build``
    data."""

    layers: list[LayerProfile]
    tied: bool
    family: str
    documents: bool = True
    """Whether the model can keep several documents of a sample apart."""
    balance: float = 0.0
    """Weight of the balance loss of a mixture's routers."""
    shares: int = 0
    """The most devices of one node that can share the blocks' matrices, as each divisor of it can; 0: none can."""
    samples: int | None = None
    """Training samples of ``data.build``; None for text."""
    validation_samples: int | None = None
    own: OwnCode | None = None
    """The person's own code that the job calls; None where it calls none."""


class Facts(BaseModel):
    """The facts about data and model; every node gets them with its JoinReply.

    Text: the artifact ``data/tokens`` is a matrix of ``samples + validation_samples`` rows of ``context + 1`` tokens
    (little-endian ``token_dtype``, nothing else in the file): training sample i is row i, validation sample j is row
    ``samples + j``. A row's inputs are its first ``context`` tokens, its targets its last. Neighbouring windows of the
    text share one token; which windows are held out depends on the data alone, never on the seed or the cluster.
    ``tokens_digest`` is the sha256 (hex) of that file, empty where the data are no text (then also no ``data/tokens``).
    ``vocabulary`` is the model's: ``model.vocabulary`` or else the tokenizer's (256 for "bytes").
    ``artifacts``: name -> sha256 (hex): ``data/tokens``, ``model/FILE`` (pretrained), ``tokenizer/FILE``.
    With ``data.where = "node"`` there is no ``data/tokens`` and ``samples`` is the number that the whole run draws; for
    each id a node uses a sample of its own (node/data/dataset.py). ``end_of_text``: the token that ends a document of
    text; None without one. ``token_dtype`` "marked32": rows of `job/data/marks.py`, whose tokens are uint32 with marks;
    ``data/counts`` (uint32, one for each row) says how many tokens of each row train, and with ``packed`` the documents
    of a row must not attend to each other. ``trained``: tokens of all training samples that train (0: every token).
    ``mix``: for each source of a mixture (training samples, positions of a block): see `sampling.Mixture`. ``sets``:
    the names of ``eval.sets`` and how many samples each has. Their rows lie one set after the other in the artifact
    ``data/eval`` (``sets_dtype``, ``sets_packed`` and ``data/eval_counts`` as for ``data/tokens``); their ids come
    after those of the validation samples. ``layout``: "labelled" for rows of job/data/labelled.py, which are also
    ``packed``; else empty. ``order``: the `sampling.ORDER` with which the run began; older facts do not have it.
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
    sets: list[tuple[str, int]] = []
    sets_dtype: str = ""
    sets_packed: bool = False
    layout: str = ""

    @property
    def evaluated(self) -> int:
        """Samples of an evaluation."""
        return self.validation_samples + sum(samples for _, samples in self.sets)

    @property
    def drawn(self) -> int | Mixture:
        """The sources of the stream's positions, an argument of `sampling.sample_ids`."""
        return Mixture(tuple(self.mix)) if self.mix else self.samples
