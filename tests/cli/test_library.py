"""farflung from Python: a job given as a mapping, and the Trainer for a model and a dataset in memory."""

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from quick_start import Nursery
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.tensorboard import SummaryWriter
from transformers.integrations import TensorBoardCallback

import farflung
from farflung.api.callbacks import Callbacks
from farflung.api.library import job_text
from farflung.api.rows import rows_of
from farflung.coordinator.data.chat.rows import conversations
from farflung.job.files import load_job
from farflung.proto.errors import FarflungError, JobError

DEFAULT_CODEC = "eden:bits=1,biased=true"
TEXT = "to be or not to be that is the question " * 200
WORDS = sorted(set(TEXT.split()))


@pytest.mark.usefixtures("forks")
def test_a_job_from_a_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    events: list[dict[str, Any]] = []
    job = {
        "run": {"name": "small", "steps": 3},
        "model": {"family": "gpt2", "layers": 1, "width": 16, "heads": 2, "context": 16},
        "data": {"text": ["text.txt"]},
        "train": {"batch": 4, "microbatch": 2},
    }
    trained = farflung.train(job, nodes=1, on_event=events.append)
    assert (trained.steps, trained.samples) == (3, 12)
    assert trained.eval_loss is not None and 0 < trained.eval_loss < 8
    assert isinstance(trained.checkpoint, Path) and trained.checkpoint.is_dir()
    assert trained.state == Path("runs/small")
    assert {"joined", "view", "step", "done"} <= {event["event"] for event in events}
    [view] = [event for event in events if event["event"] == "view"]
    assert view["codecs"]["updates"].startswith("eden") and view["dense_rounds"] == 20, "as job init writes it"
    model = transformers.AutoModelForCausalLM.from_pretrained(trained.export("model"))
    assert model.config.n_embd == 16


def test_a_table_that_a_mapping_has_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farflung.api.library.run_here", lambda plan, show: 4)
    shape = {"family": "gpt2", "layers": 1, "width": 16, "heads": 2, "context": 16}
    (tmp_path / "text.txt").write_text(TEXT)
    job = {"run": {"steps": 3}, "model": shape, "data": {"text": [str(tmp_path / "text.txt")]}}
    for tables in (job, {**job, "updates": {"codec": "none"}}):
        with pytest.raises(FarflungError):
            farflung.train(tables, state=tmp_path / "state")
        read = load_job(tmp_path / "state" / "job.toml")
        said = "updates" in tables
        assert (read.updates.codec, read.updates.dense_rounds) == (("none", 0) if said else (DEFAULT_CODEC, 20))
        assert (read.activations.forward, read.activations.backward) == ("auto", "int8")


def test_the_nodes_of_a_call_get_the_folder_for_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Any] = []
    monkeypatch.setattr("farflung.api.library.run_here", lambda plan, show: plans.append(plan) or 4)
    shape = {"family": "gpt2", "layers": 1, "width": 16, "heads": 2, "context": 16}
    (tmp_path / "text.txt").write_text(TEXT)
    job = {"run": {"steps": 3}, "model": shape, "data": {"text": [str(tmp_path / "text.txt")]}}
    for folder in (None, str(tmp_path / "nvme")):
        with pytest.raises(FarflungError):
            farflung.train(job, state=tmp_path / "state", offload_folder=folder)
    assert [plan.offload_folder for plan in plans] == [None, tmp_path / "nvme"]


def test_wrong_jobs_are_errors_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobError, match=r"unknown key run\.stepz"):
        farflung.train({"run": {"stepz": 3}})
    with pytest.raises(JobError, match="is no table"):
        farflung.train({"run": 3})  # type: ignore[dict-item]
    with pytest.raises(JobError, match="there is no job file"):
        farflung.train("nowhere.toml")


def test_paths_of_a_mapping_start_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = job_text(
        {
            "data": {"text": ["a.txt", "s3://b/c"], "tokenizer": "bytes", "validation": 0.5},
            "checkpoint": {"options": {"endpoint_url": "http://e", "client": {"n": 3}}},
            "model": {"pretrained": "m", "family": None},
        }
    )
    assert text == (
        f'[data]\ntext = ["{tmp_path}/a.txt", "s3://b/c"]\ntokenizer = "bytes"\nvalidation = 0.5\n'
        '[checkpoint]\noptions = {"endpoint_url" = "http://e", "client" = {"n" = 3}}\n'
        f'[model]\npretrained = "{tmp_path}/m"\n'
    )


@pytest.fixture
def tokenizer() -> Any:
    rust = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=rust)


def small_model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_embd=16, n_layer=1, n_head=2, n_positions=32, bos_token_id=None, eos_token_id=None
    )
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.usefixtures("forks")
def test_trainer(tmp_path: Path, tokenizer: Any) -> None:
    model = small_model()
    rows = [{"input_ids": tokenizer(TEXT)["input_ids"]}] * 2
    arguments = farflung.Arguments(
        output_dir=tmp_path / "run", max_steps=30, per_device_train_batch_size=4, learning_rate=0.02, max_length=16
    )
    trainer = farflung.Trainer(
        model, arguments, rows, rows[:1], tokenizer, nodes=1, on_event=lambda event: None, job={"train": {"clip": 0.5}}
    )
    with pytest.raises(FarflungError, match="no evaluation yet"):
        trainer.evaluate()
    trainer.train()
    ids = torch.tensor([rows[0]["input_ids"][:33]])
    with torch.no_grad():
        logits = model(ids[:, :32]).logits
    loss = float(torch.nn.functional.cross_entropy(logits[0], ids[0, 1:]))
    assert loss < 0.6 * torch.tensor(float(len(WORDS))).log()  # the words follow each other in one way, nearly
    assert abs(trainer.evaluate()["eval_loss"] - loss) < 0.5
    trainer.save_model(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert all(torch.equal(one, other) for one, other in zip(again.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("name", ["BertForMaskedLM", "GPT2ForSequenceClassification", "Linear"])
def test_a_model_that_goes_on_with_no_text_is_refused_in_a_sentence(name: str, tmp_path: Path, tokenizer: Any) -> None:
    if name == "Linear":
        model: Any = torch.nn.Linear(2, 2)
    else:
        small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        kind = transformers.BertConfig if name.startswith("Bert") else transformers.GPT2Config
        model = getattr(transformers, name)(kind(vocab_size=20, **small))
    trainer = farflung.Trainer(model, farflung.Arguments(output_dir=tmp_path / "run"), [[1, 2]], None, tokenizer)
    with pytest.raises(FarflungError, match=f"causal language models of transformers; {name} is none") as caught:
        trainer.train()
    assert "farflung.group" in caught.value.hint and not (tmp_path / "run").exists()


@pytest.mark.usefixtures("forks")
def test_nodes_of_other_machines_join_a_trainer(tmp_path: Path, tokenizer: Any, nursery: Nursery) -> None:
    rows = [{"input_ids": tokenizer(TEXT)["input_ids"]}] * 2
    arguments = farflung.Arguments(
        output_dir=tmp_path / "run", max_steps=4, per_device_train_batch_size=4, max_length=16, save_steps=100
    )
    began: list[Any] = []
    joined: set[str] = set()

    def show(event: dict[str, Any]) -> None:
        if event["event"] == "listening":  # whoever reads the line pastes it elsewhere
            words = ["join", event["link"], "--name", "elsewhere", "--cache", str(tmp_path / "cache"), "--json"]
            began.append(nursery.start(*words, out=tmp_path / "out", errors=tmp_path / "errors"))
        if event["event"] == "joined":
            joined.add(event["node"])

    trainer = farflung.Trainer(
        small_model(), arguments, rows, None, tokenizer, nodes=1, others=1, listen="127.0.0.1:0", on_event=show
    )
    try:
        trained = trainer.train()
    finally:
        for process in began:
            process.kill()
    assert joined == {"node-1", "elsewhere"}
    assert (trained.steps, trained.samples) == (4, 4 * 8), "a batch has four samples of each node"


def test_trainer_refuses_what_it_would_not_do(tmp_path: Path, tokenizer: Any) -> None:
    arguments = farflung.Arguments(output_dir=tmp_path / "run")
    rows: list[Any] = [{"input_ids": [1, 2], "labels": [3, 2]}]
    with pytest.raises(JobError, match="labels that are neither its input_ids nor -100"):
        farflung.Trainer(small_model(), arguments, rows, processing_class=tokenizer).train()
    with pytest.raises(JobError, match="has no tokens"):
        farflung.Trainer(small_model(), arguments, [], processing_class=tokenizer).train()
    with pytest.raises(FarflungError, match="no tokenizer"):
        farflung.Trainer(small_model(), arguments, rows)
    arguments.lr_scheduler_type = "polynomial"
    with pytest.raises(JobError, match="polynomial"):
        farflung.Trainer(small_model(), arguments, [[1, 2]], processing_class=tokenizer).train()


def test_another_model_does_not_get_the_weights_of_the_run_in_its_folder(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr("farflung.api.trainer.train", lambda tables, **keys: started.append(tables))
    monkeypatch.setattr(farflung.Trainer, "_load", lambda self: None)
    rows: list[Any] = [{"input_ids": tokenizer(TEXT)["input_ids"]}]
    tokenizer.add_special_tokens({"eos_token": WORDS[0]})

    def trainer(model: Any, rows: Any = rows, **changed: Any) -> farflung.Trainer:
        arguments: dict[str, Any] = {"output_dir": tmp_path / "run", "max_steps": 2, "max_length": 16, **changed}
        return farflung.Trainer(
            model, farflung.Arguments(**arguments), rows, None, tokenizer, nodes=1, on_event=lambda event: None
        )

    trainer(small_model()).train()
    trainer(small_model()).train()  # with the same weights: it goes on
    assert len(started) == 2
    other = small_model()
    with torch.no_grad():
        other.transformer.wte.weight[0, 0] += 1
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(FarflungError, match=r"run has a run that began with something else: weights \("):
        trainer(other).train()
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    with pytest.raises(FarflungError, match=r"something else: rows \("):
        trainer(small_model(), [rows[0]["input_ids"][1:]]).train()
    with pytest.raises(FarflungError, match=r"something else: argument learning_rate \(") as refused:
        trainer(small_model(), learning_rate=0.1).train()
    assert "output_dir" in str(refused.value.hint)
    tokenizer.add_special_tokens({"eos_token": WORDS[1]})
    with pytest.raises(FarflungError, match=r"something else: tokenizer \("):
        trainer(small_model()).train()


def test_padding_is_not_trained_on() -> None:
    masked = {"input_ids": [9, 9, 1, 2, 9], "attention_mask": [0, 0, 1, 1, 0], "labels": [-100, -100, 1, 2, -100]}
    found = rows_of([masked, [4, 5]])
    assert found.tokens.tolist() == [1, 2, 4, 5] and found.is_plain
    assert rows_of([[1, 2, 9]], pad=9, end=9).tokens.tolist() == [1, 2, 9]  # it ends a text
    assert rows_of([[], [1, 2]]).tokens.tolist() == [1, 2]
    for rows, why in [
        ([[1, 2, 9, 9]], "filled up with the padding token 9"),
        ([[9, 9, 1, 2]], "filled up"),
        ([{"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}], "zeros between ones"),
        ([{"input_ids": [1, 2, 3], "attention_mask": [1, 1]}], "another length"),
        ([{"input_ids": [1, 2, 3], "completion_mask": [0, 1]}], "completion_mask of another length"),
        ([{"input_ids": [1, 2, 3], "labels": [3, 2, 3]}], "labels that are neither"),
        ([{"text": "no ids"}], "has no input_ids; it has: text"),
    ]:
        with pytest.raises(JobError, match=why):
            rows_of(rows, pad=9, end=9)
    with pytest.raises(JobError, match="filled up"):
        rows_of([[1, 2, 9]], pad=9, end=0)


def test_labels_and_masks_say_what_is_learnt(tmp_path: Path) -> None:
    rows = [{"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}, {"input_ids": [4, 5], "completion_mask": [0, 1]}]
    found = rows_of(rows)
    assert not found.is_plain and found.trains.tolist() == [False, True, True, False, True]
    found.write(tmp_path / "rows.jsonl")
    read = [one.tokens for one in conversations(str(tmp_path / "rows.jsonl"))]
    assert read == [([1, 2, 3], [False, True, True]), ([4, 5], [False, True])]
    other = rows_of([rows[0], {"input_ids": [4, 5]}])
    assert found.digested.tobytes() != other.digested.tobytes()

    def collator(batch: list[Any]) -> dict[str, torch.Tensor]:
        ids = torch.tensor([batch[0]["text"]])
        return {"input_ids": ids, "labels": torch.where(ids > 1, ids, -100), "attention_mask": torch.ones_like(ids)}

    assert rows_of([{"text": [1, 2, 3]}], collator=collator).trains.tolist() == [False, True, True]


def test_collators_of_transformers(tokenizer: Any) -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, pad_token=WORDS[1])
    row = {"input_ids": [2, 3, 4], "labels": [-100, 3, 4]}
    for collator in (
        transformers.default_data_collator,
        transformers.DataCollatorForSeq2Seq(tokenizer),
        transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False, pad_to_multiple_of=8),
    ):
        given = {"input_ids": row["input_ids"]}
        assert rows_of([given], tokenizer.pad_token_id, None, collator).tokens.tolist() == [2, 3, 4]
    collator = transformers.DataCollatorForSeq2Seq(tokenizer)
    assert rows_of([row], collator=collator).trains.tolist() == [False, True, True]


def test_callbacks_of_transformers_hear_how_far_the_run_is(tmp_path: Path) -> None:
    heard: list[Any] = []

    class Hears(transformers.TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            heard.append(("begin", state.max_steps, args.logging_first_step))

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            heard.append((state.global_step / state.max_steps, state.epoch))
            control.should_training_stop = True

    one = {"event": "step", "loss": 1.0, "tokens_per_second": 5.0, "steps": 4}
    events = [{"event": "view"}, *({**one, "step": number} for number in (1, 2)), {"event": "eval", "loss": 0.5}]
    kinds = [Hears, transformers.PrinterCallback, transformers.ProgressCallback, TensorBoardCallback]
    for steps, epochs in ((-1, [0.5, 1.0]), (4, [0.0, 0.0])):
        arguments = asdict(farflung.Arguments(output_dir=tmp_path, num_train_epochs=2, max_steps=steps))
        callbacks = Callbacks([*kinds, transformers.DefaultFlowCallback], arguments, small_model(), None)
        with pytest.warns(UserWarning, match="a callback asked the run to stop"):
            for event in [*events, {"event": "checkpoint"}, {"event": "done"}]:
                callbacks.told(event)
        assert heard == [("begin", 4, False), (0.25, epochs[0]), (0.5, epochs[1])]
        heard.clear()


@pytest.mark.usefixtures("forks")
def test_trainer_learns_what_labels_say_and_tells_callbacks(tmp_path: Path, tokenizer: Any) -> None:
    """The last 5 of a row's 20 words are learnt: their tokens alone are counted."""
    ids = tokenizer(TEXT)["input_ids"]
    pieces = [ids[at : at + 20] for at in range(0, 800, 10)]
    rows = [{"input_ids": piece, "labels": [-100] * 15 + piece[15:]} for piece in pieces]
    heard: list[Any] = []

    class Hears(transformers.TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            heard.append(("begin", args.to_dict()["max_steps"], more["model"] is model))

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            heard.append((state.global_step, sorted(logs)))

        def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            heard.append("end")

    model = small_model()
    before = model.transformer.wte.weight.clone()
    arguments = farflung.Arguments(output_dir=tmp_path / "run", max_steps=2, max_length=32, learning_rate=0.01)
    events: list[dict[str, Any]] = []
    board = TensorBoardCallback(SummaryWriter(str(tmp_path / "board")))
    trainer = farflung.Trainer(
        model, arguments, rows, rows[:6], tokenizer, nodes=1, on_event=events.append, callbacks=[Hears, board]
    )
    trained = trainer.train()
    assert trained.eval_loss is not None and not torch.equal(model.transformer.wte.weight, before)
    steps = [event for event in events if event["event"] == "step"]
    for event in steps:  # 5 of a row's 20, one row in each sample of 32
        assert event["tokens_per_second"] * event["seconds"] == pytest.approx(8 * 5, rel=0.01)
    assert heard[0] == ("begin", 2, True) and heard[-1] == "end"
    assert (1, ["loss", "tokens_per_second"]) in heard and (2, ["eval_loss"]) in heard
    assert list((tmp_path / "board").iterdir())


def test_importing_farflung_imports_nothing_heavy() -> None:
    code = "import sys, farflung; assert not {'torch', 'grpc', 'pydantic'} & set(sys.modules); farflung.train"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
