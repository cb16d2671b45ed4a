"""What the coordinator finds out about a job's data and model, and tells every node."""

from __future__ import annotations

from pydantic import BaseModel

from .sampling import Mixture


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
    documents: bool = True
    """Whether a sample may have several documents that do not see each other."""
    balance: float = 0.0
    """Weight of the balance loss of a mixture's routers."""
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
    ``token_dtype`` "marked32": rows of `job/data/marks.py`, whose tokens are uint32 with marks; ``data/counts``
    (uint32, one for each row) says how many tokens of each row train, and with ``packed`` rows have documents that must
    not see each other; ``trained`` of all training samples together (0: every token).
    ``mix``: of each source of a mixture its training samples, and how often it is drawn: `sampling.Mixture`.
    ``sets``: the names of ``eval.sets`` and how many samples each has. Their rows lie one set after the other in the
    artifact ``data/eval`` (``sets_dtype``, ``sets_packed`` and ``data/eval_counts`` as for ``data/tokens``); their ids
    come after those of the validation samples.
    ``layout``: what rows are where they are not plain text: "labelled" (job/data/labelled.py); then ``packed``, too.
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
        """What positions of the stream draw from: see `sampling.sample_ids`."""
        return Mixture(tuple(self.mix)) if self.mix else self.samples
