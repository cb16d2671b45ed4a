"""Hints that are right for the run that they are about."""

import errno
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.cli.jobs.job_init import write
from farflung.cli.next_words import following, load_line
from farflung.cli.screen.output import explain
from farflung.job.tables.model import Model
from farflung.proto.errors import FarflungError, JobError

GPT2 = Model.model_validate({"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 8})
LORA = Model.model_validate({"pretrained": "m", "context": 8, "lora": {"rank": 8}})
OWN = Model.model_validate({"parameters": 12})


def test_the_next_command_fits_the_model_and_a_name_that_is_free(tmp_path: Path) -> None:
    assert following("runs/a", GPT2, tmp_path) == (
        'next: farflung export runs/a model, or farflung generate runs/a "Once upon a time"'
    )
    (tmp_path / "model").mkdir()
    assert "export runs/a model-2," in following("runs/a", GPT2, tmp_path)
    assert "the adapter, with --merge the whole model" in following("runs/a", LORA, tmp_path)
    assert "adapter and head, for peft" in following("runs/a", LORA, tmp_path, "classification")
    own = following("runs/a", OWN, tmp_path)
    assert "load_state_dict" in own and "generate" not in own


def test_how_to_load_an_export_depends_on_what_is_in_it(tmp_path: Path) -> None:
    assert load_line(tmp_path).startswith("model.load_state_dict(safetensors.torch.load_file(")
    (tmp_path / "config.json").write_text("{}")
    assert load_line(tmp_path).startswith("transformers.AutoModelForCausalLM")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert load_line(tmp_path).startswith("peft.") and "--merge" in load_line(tmp_path)


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, "Permission denied", "/x"),
        OSError(errno.EROFS, "Read-only file system", "/x"),
        OSError(errno.ENOSPC, "No space left on device", "/x"),
        sqlite3.OperationalError("attempt to write a readonly database"),
        sqlite3.OperationalError("unable to open database file"),
    ],
)
def test_a_folder_that_takes_nothing_names_the_options_for_another(error: Exception) -> None:
    message, hint, status = explain(error)
    assert status == 2 and "--state" in hint and "--cache" in hint and "\n" not in message
    assert explain(FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"))[1] == ""


def test_a_name_on_the_hub_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FarflungError) as caught:
        write(tmp_path / "job.toml", Path("openai-community/gpt2"))
    assert "hf download openai-community/gpt2 --local-dir gpt2" in caught.value.hint


def test_hints_about_tables_in_python_name_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from farflung.api.library import train

    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobError) as caught:
        train({"run": {"stepz": 3}, "train": {"batch": "x"}})
    said = f"{caught.value.message} {caught.value.hint}"
    assert "job.toml" not in said and "run.stepz" in said and "train.batch" in said


def test_what_transformers_own_trainer_takes_gets_a_sentence() -> None:
    from transformers import EarlyStoppingCallback

    from farflung.api.trainer import Arguments, Trainer

    class TrainingArguments(SimpleNamespace):
        pass

    class GPT2LMHeadModel(SimpleNamespace):
        pass

    tokenizer: Any = object()
    model: Any = GPT2LMHeadModel(config=SimpleNamespace(model_type="gpt2"))
    with pytest.raises(FarflungError, match="TrainingArguments") as caught:
        Trainer(model, TrainingArguments(), [], processing_class=tokenizer)  # type: ignore[arg-type]
    assert "farflung.Arguments" in caught.value.hint
    with pytest.raises(JobError) as other:
        Trainer(model, Arguments(lr_scheduler_type="cosine_with_restarts"), [[1]], processing_class=tokenizer).train()
    assert other.value.hint == "allowed: cosine, linear, inverse_sqrt, constant, constant_with_warmup"
    stops = [EarlyStoppingCallback(2)]
    with pytest.raises(FarflungError, match="callbacks of the Trainer can't stop a run") as early:
        Trainer(model, Arguments(), [[1]], processing_class=tokenizer, callbacks=stops).train()
    assert "patience" in early.value.hint


def test_a_run_on_a_wan_has_the_name_that_its_job_says(tmp_path: Path) -> None:
    from farflung.cli.local.run import run_name

    (tmp_path / "a.txt").write_text("to be or not to be " * 100)
    text = '[run]\nname = "mine"\nsteps = 1\n[model]\nfamily = "gpt2"\nlayers = 1\nwidth = 8\nheads = 2\ncontext = 8\n'
    (tmp_path / "job.toml").write_text(text + '[data]\ntext = ["a.txt"]\n')
    assert run_name(tmp_path / "job.toml") == "mine"


def test_sizes_have_a_unit_that_shows() -> None:
    from farflung.scheduler.search.shapes import size_text

    sizes = [size_text(one) for one in (0, 4096, 3.21e6, 4.5e9, 1.25e12)]
    assert sizes == ["0 B", "4.1 kB", "3.21 MB", "4.5 GB", "1250 GB"]
