"""``farflung.Trainer``: a transformers model and token sequences in memory, trained with the habits of its Trainer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..cli.screen.story import Event
from ..proto.errors import FarflungError, JobError
from .library import Trained, train


@dataclass
class Arguments:
    """The arguments that transformers' TrainingArguments and a run share, under the names that they have there.

    ``max_length``: tokens a training sample is predicted on; the model's own limit, at most 1024, unless given.
    """

    output_dir: Path | str = "runs/trainer"
    num_train_epochs: int = 3
    max_steps: int = -1
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    learning_rate: float = 5e-5
    weight_decay: float = 0.0
    warmup_steps: int = 0
    lr_scheduler_type: str = "cosine"
    max_grad_norm: float = 1.0
    bf16: bool = False
    gradient_checkpointing: bool = False
    eval_steps: int = 0
    save_steps: int = 500
    seed: int = 42
    max_length: int | None = None


class Trainer:
    """Trains ``model`` in place.

    Args:
        model: a transformers causal language model of a family that farflung knows.
        train_dataset, eval_dataset: sequences of ``{"input_ids": [...]}`` (or of the lists themselves). They are laid
            end to end and cut into samples: add an end-of-text token to each where that matters. Without
            ``eval_dataset`` a twentieth of the training samples is held out.
        processing_class: the tokenizer that made them.
        nodes: node processes on this machine.
        job: tables of a job file that say more, ``{"updates": {"codec": "none"}}``.

    A language model learns to go on with the text here: ``labels`` other than ``input_ids`` are refused.
    """

    def __init__(
        self,
        model: Any,
        args: Arguments | None = None,
        train_dataset: Iterable[Any] = (),
        eval_dataset: Iterable[Any] | None = None,
        processing_class: Any = None,
        *,
        nodes: int = 2,
        job: Mapping[str, Mapping[str, Any]] | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        if processing_class is None:
            raise FarflungError("the Trainer has no tokenizer", "Trainer(..., processing_class=tokenizer)")
        self.model, self.args, self.processing_class = model, args or Arguments(), processing_class
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.result: Trained | None = None
        self._nodes, self._job, self._on_event = nodes, job or {}, on_event

    def train(self) -> Trained:
        """Trains, and loads the result into ``model``. Errors as :func:`farflung.train`.

        The run's folder is ``args.output_dir``: the same Trainer goes on where an interrupted one stopped.
        """
        folder = Path(self.args.output_dir)
        start = folder / "start"
        if not start.exists():  # a resumed run began from these weights, and its checkpoint has what came after
            start.mkdir(parents=True)
            self.model.save_pretrained(start)
            self.processing_class.save_pretrained(start)
        data: dict[str, Any] = {"tokens": [_written(folder / "train.npy", self.train_dataset)]}
        if self.eval_dataset is not None:
            data["validation"] = [_written(folder / "eval.npy", self.eval_dataset)]
        tables = self._tables(start, data)
        self.result = train(tables, nodes=self._nodes, state=folder, on_event=self._on_event)
        self._load()
        return self.result

    def evaluate(self) -> dict[str, float]:
        """``eval_loss`` in nats per token after training. FarflungError: not trained yet, or nothing was held out."""
        if self.result is None or self.result.eval_loss is None:
            raise FarflungError("there is no evaluation yet", "call train() first, with an eval_dataset")
        return {"eval_loss": self.result.eval_loss}

    def save_model(self, output_dir: Path | str) -> None:
        """Writes model and tokenizer as transformers does."""
        self.model.save_pretrained(output_dir)
        self.processing_class.save_pretrained(output_dir)

    def _tables(self, start: Path, data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        args = self.args
        length = {"steps": args.max_steps} if args.max_steps > 0 else {"epochs": args.num_train_epochs}
        batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * self._nodes
        decays = {"cosine": "cosine", "constant": "none", "constant_with_warmup": "none"}
        if args.lr_scheduler_type not in decays:
            allowed = ", ".join(decays)
            raise JobError(f"lr_scheduler_type = {args.lr_scheduler_type!r} is not known", f"allowed: {allowed}")
        tables: dict[str, dict[str, Any]] = {
            "run": {"name": "trainer", "seed": args.seed, **length},
            "model": {"pretrained": str(start), "context": args.max_length},
            "data": {**data, "tokenizer": str(start)},
            "train": {
                "batch": batch,
                "learning_rate": args.learning_rate,
                "weight_decay": args.weight_decay,
                "warmup_steps": args.warmup_steps,
                "decay": decays[args.lr_scheduler_type],
                "clip": args.max_grad_norm,
                "precision": "bf16" if args.bf16 else "fp32",
                "recompute": args.gradient_checkpointing,
                "eval_every": args.eval_steps,
            },
            "checkpoint": {"every": args.save_steps},
        }
        for table, keys in self._job.items():
            tables[table] = {**tables.get(table, {}), **keys}
        return tables

    def _load(self) -> None:
        assert self.result is not None
        with tempfile.TemporaryDirectory(prefix="farflung-") as folder:
            exported = self.result.export(Path(folder) / "model")
            trained = type(self.model).from_pretrained(exported, dtype=torch.float32)
        self.model.load_state_dict(trained.state_dict())


def _written(path: Path, dataset: Iterable[Any]) -> str:
    """The token sequences of a dataset as one .npy file. JobError: no tokens, or labels of another kind of training."""
    pieces: list[npt.NDArray[Any]] = []
    for number, item in enumerate(dataset):
        ids = np.asarray(item["input_ids"] if isinstance(item, Mapping) else item)
        labels = item.get("labels") if isinstance(item, Mapping) else None
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or (ids.size and ids.min() < 0):
            raise JobError(f"item {number} of the dataset is no row of token ids: {ids.dtype} {ids.shape}")
        if labels is not None and not np.array_equal(np.asarray(labels), ids):
            raise JobError(
                f"item {number} of the dataset has labels that are not its input_ids",
                "leave labels out: every token is predicted from those before it",
            )
        pieces.append(ids)
    tokens = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    if not tokens.size:
        raise JobError("the dataset has no tokens", "give items with input_ids")
    np.save(path, tokens.astype(np.uint16 if tokens.max() < 2**16 else np.uint32))
    return str(path)
