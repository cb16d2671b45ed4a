"""``farflung.Trainer``: trains a transformers model on token sequences in memory, with an API like transformers'."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..cli.screen.events.event import Event
from ..proto.errors import FarflungError, JobError
from .callbacks import Callbacks
from .library import Trained, train
from .resumed import begin_or_go_on, digests, keep
from .rows import Collator, rows_of


def check_model(model: Any) -> None:
    """FarflungError for a model that is no causal language model (BERT, a classifier)."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as DECODERS

    from ..node.models.decoders.families import check_decoder

    name, family = type(model).__name__, str(getattr(getattr(model, "config", None), "model_type", ""))
    if name in DECODERS.values():
        check_decoder(family, f"the Trainer's model {name}")
        return
    raise FarflungError(
        f"the Trainer trains causal language models of transformers; {name} is none",
        "a loop of your own trains any torch module: farflung.group (docs/how-to/own-loop.md)",
    )


@dataclass
class Arguments:
    """The arguments that transformers' TrainingArguments and a run have in common, under transformers' names.

    ``max_length``: tokens per training sample; by default the model's own limit, at most 1024.
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
    fp16: bool = False
    gradient_checkpointing: bool = False
    eval_steps: int = 0
    save_steps: int = 500
    seed: int = 42
    max_length: int | None = None


class Trainer:
    """Trains ``model`` in place.

    Args:
        model: a transformers causal language model.
        train_dataset, eval_dataset: sequences of ``{"input_ids": [...]}`` (or of the lists themselves). They are
            concatenated and cut into samples: add an end-of-text token to each row if that matters. Without
            ``eval_dataset`` a twentieth of the training samples is held out. A token with the label -100, or with 0 in
            a ``loss_mask``, ``completion_mask`` or ``assistant_masks``, is context and does not count in the loss; each
            row is then a separate document, which does not attend to others.
        processing_class: the tokenizer that made the rows.
        nodes: node processes on this machine, at least one. others, listen, advertise, offload_folder: as for
            :func:`farflung.train`; the first three are for more nodes on other machines.
        job: further tables of a job file, such as ``{"updates": {"codec": "none"}}``. Without ``updates`` and
            ``activations``, updates and activations are compressed as by ``farflung job init``.

        data_collator: called with each row alone, as a batch of one; returns ``input_ids`` and ``labels``.
        callbacks: transformers' TrainerCallbacks, called at steps, evaluations and checkpoints.

    The model is trained to predict the next token: ``labels`` that are neither ``input_ids`` nor -100 are refused.
    Padding that an ``attention_mask`` marks is left out; padding without a mask is refused.
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
        others: int = 0,
        listen: str | None = None,
        advertise: str | None = None,
        job: Mapping[str, Mapping[str, Any]] | None = None,
        on_event: Callable[[Event], None] | None = None,
        data_collator: Collator | None = None,
        callbacks: Sequence[Any] = (),
        offload_folder: Path | str | None = None,
    ) -> None:
        if processing_class is None:
            raise FarflungError("the Trainer has no tokenizer", "Trainer(..., processing_class=tokenizer)")
        if args is not None and not isinstance(args, Arguments):
            raise FarflungError(
                f"the Trainer takes farflung.Arguments and not {type(args).__name__}",
                "farflung.Arguments(...) takes what both have under the same names: max_steps, learning_rate, ...",
            )
        self.model, self.args, self.processing_class = model, args or Arguments(), processing_class
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.result: Trained | None = None
        self._nodes, self._job, self._on_event = nodes, job or {}, on_event
        self._others, self._listen, self._advertise = others, listen, advertise
        self._collator, self._callbacks, self._offload_folder = data_collator, callbacks, offload_folder

    def train(self) -> Trained:
        """Trains, and loads the result into ``model``. Errors as :func:`farflung.train`.

        The run's folder is ``args.output_dir``: a Trainer with the same weights, rows, arguments and tokenizer resumes
        an interrupted run there; with others it is refused.
        """
        check_model(self.model)
        listener = self._listener()
        folder = Path(self.args.output_dir)
        start = folder / "start"
        pad, end = (getattr(self.processing_class, name, None) for name in ("pad_token_id", "eos_token_id"))
        rows = rows_of(self.train_dataset, pad, end, self._collator)
        held = None if self.eval_dataset is None else rows_of(self.eval_dataset, pad, end, self._collator)
        parts = {"train": rows} if held is None else {"train": rows, "eval": held}
        plain = all(one.is_plain for one in parts.values())
        names = {part: folder / (f"{part}.npy" if plain else f"{part}.jsonl") for part in parts}
        data: dict[str, Any] = {"tokens" if plain else "chat": [str(names["train"])]}
        if held is not None:
            data["validation"] = [str(names["eval"])]
        tables = self._tables(start, data)
        arguments = {**asdict(self.args), "nodes": self._nodes + self._others, "job": self._job}
        del arguments["output_dir"]
        handed = {"rows": rows.digested, "rows to evaluate": None if held is None else held.digested}
        given = digests(self.model, self.processing_class, handed, arguments)
        if begin_or_go_on(folder, given):
            shutil.rmtree(start, ignore_errors=True)  # files of an interrupted start
            start.mkdir(parents=True)
            self.model.save_pretrained(start)
            self.processing_class.save_pretrained(start)
            keep(folder, given)
        for part, one in parts.items():
            if plain:
                np.save(names[part], one.tokens)
            else:
                one.write(names[part])
        self.result = train(
            tables,
            nodes=self._nodes,
            others=self._others,
            listen=self._listen,
            advertise=self._advertise,
            state=folder,
            on_event=self._on_event,
            listener=listener,
            offload_folder=self._offload_folder,
        )
        self._load()
        return self.result

    def _listener(self) -> Callable[[Event], None] | None:
        if not self._callbacks:
            return None
        return Callbacks(self._callbacks, asdict(self.args), self.model, self.processing_class).told

    def evaluate(self) -> dict[str, float]:
        """``eval_loss`` in nats per token after training. FarflungError: not trained yet, or nothing was held out."""
        if self.result is None or self.result.eval_loss is None:
            raise FarflungError("there is no evaluation yet", "call train() first, with an eval_dataset")
        return {"eval_loss": self.result.eval_loss}

    def save_model(self, output_dir: Path | str) -> None:
        """Writes model and tokenizer with ``save_pretrained``."""
        self.model.save_pretrained(output_dir)
        self.processing_class.save_pretrained(output_dir)

    def _tables(self, start: Path, data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        args = self.args
        length = {"steps": args.max_steps} if args.max_steps > 0 else {"epochs": args.num_train_epochs}
        batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * (self._nodes + self._others)
        decays = {one: one for one in ("cosine", "linear", "inverse_sqrt")}
        decays |= dict.fromkeys(("constant", "constant_with_warmup"), "none")
        if args.lr_scheduler_type not in decays:
            message = f"lr_scheduler_type = {args.lr_scheduler_type!r} is not one that a run has"
            raise JobError(message, f"allowed: {', '.join(decays)}")
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
                "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
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
