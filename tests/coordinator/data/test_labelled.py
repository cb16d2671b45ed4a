"""Texts and their classes become rows: from jsonl, csv and parquet, by names and numbers, whole, cut and filled up."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer as Rust
from tokenizers import models, pre_tokenizers, processors

from farflung.coordinator.data.rows.labelled import tokenise_labelled
from farflung.job.data.labelled import class_names, kinds_of, texts_of
from farflung.job.data.marks import targets_of, trained_in
from farflung.job.data.tokenizer_folder import load_tokenizer
from farflung.job.files import load_job
from farflung.job.passes import evaluated_by_steps
from farflung.job.schema import Job
from farflung.proto.errors import JobError

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "book")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tokenizer of a BERT, and a config.json that names its classes."""
    path = tmp_path_factory.mktemp("bert")
    rust = Rust(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    pair, special = "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    rust.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", pair, special)
    rust.save(str(path / "tokenizer.json"))
    config = {"model_type": "bert", "pad_token_id": 0, "vocab_size": 8, "id2label": {"0": "bad", "1": "good"}}
    (path / "config.json").write_text(json.dumps(config))
    return path


def read(folder, tmp_path, name, content, context=6, tokenizer=None, **keys):
    """(rows, what was told, how many are held out)."""
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    data = {"labelled": [str(tmp_path / name)], "tokenizer": str(tokenizer or folder), "validation": 0.0, **keys}
    model = {"pretrained": str(folder), "context": context}
    job = Job.model_validate({"model": model, "data": data, "train": {"task": "classification"}})
    told = []
    made = tokenise_labelled(job, load_tokenizer(job.data.tokenizer), context, tmp_path / "made", told.append)
    assert made.packed and made.trained == made.samples
    rows = np.fromfile(made.path, "<u4").reshape(-1, context + 1)
    assert (trained_in(rows) == 1).all() and (np.fromfile(f"{made.path}.counts", "<u4") == 1).all()
    return rows, [one["message"] for one in told if one["event"] == "notice"], made.validation_samples


def labels_of(rows):
    return targets_of(rows)[:, -1].tolist()


def test_a_text_is_filled_up_and_a_pair_has_two_kinds(folder, tmp_path):
    rows, told, _ = read(
        folder, tmp_path, "a.jsonl", '{"text": "good film", "label": 1}\n{"text": "bad book", "label": "bad"}\n'
    )
    assert texts_of(rows).tolist() == [[2, 4, 6, 3, 0, 0], [2, 5, 7, 3, 0, 0]]
    assert kinds_of(rows).tolist() == [[1, 1, 1, 1, 0, 0]] * 2
    assert labels_of(rows) == [1, 0]
    assert told == ["data.labelled: 2 samples: bad 1, good 1"]
    rows, told, _ = read(
        folder, tmp_path, "b.jsonl", '{"text": "good film film film", "b": "bad", "label": 0}\n', pair="b"
    )
    assert texts_of(rows).tolist() == [[2, 4, 6, 3, 5, 3]]
    assert kinds_of(rows).tolist() == [[1, 1, 1, 1, 2, 2]]
    assert told[1] == "data.labelled: 1 texts are longer than model.context = 6: the rest is cut off"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'sentence,label\n"good, film",good\nbad,0\n'),
        ("a.tsv", "sentence\tlabel\ngood , film\t1\nbad\tbad\n"),
        ("a.json", '[{"sentence": "good , film", "label": 1.0}, {"sentence": "bad", "label": "0"}]'),
        ("a.parquet", None),
    ],
)
def test_tables_of_every_kind(folder, tmp_path, name, content):
    if content is None:
        table = pyarrow.table({"sentence": ["good , film", "bad"], "label": [1, 0], "other": [0, 0]})
        pyarrow.parquet.write_table(table, tmp_path / name)
        content = (tmp_path / name).read_bytes()
    rows, _, _ = read(folder, tmp_path, name, content, field="sentence")
    assert texts_of(rows).tolist() == [[2, 4, 1, 6, 3, 0], [2, 5, 3, 0, 0, 0]]
    assert labels_of(rows) == [1, 0]


def test_bytes_need_no_tokenizer_and_a_part_is_held_out(folder, tmp_path):
    lines = "".join(json.dumps({"text": f"{number}", "q": "é", "label": number % 2}) + "\n" for number in range(10))
    rows, _, held = read(folder, tmp_path, "a.jsonl", lines, tokenizer="bytes", validation=0.2, pair="q")
    assert held == 2 and len(rows) == 10
    assert kinds_of(rows)[0].tolist() == [1, 2, 2, 2, 0, 0]
    assert bytes(texts_of(rows)[0, :4].tolist()).decode() == "0\né"


@pytest.mark.parametrize(
    ("line", "keys", "message"),
    [
        ('{"text": "a", "label": 2}', {}, r"a.jsonl:1 has the class 2, which is none of 0 \(bad\), 1 \(good\)"),
        ('{"text": "a", "label": "fine"}', {}, r"has the class 'fine', which is none of"),
        ('{"text": "a", "label": -1}', {}, r"has the class -1, which is none of"),
        ('{"text": "a", "label": NaN}', {}, r"has the class nan, which is none of"),
        ('{"text": "a", "label": Infinity}', {}, r"has the class inf, which is none of"),
        ('{"text": "a", "label": "%s"}' % ("9" * 400), {}, r"has the class '9999"),
        ('{"text": "a", "stars": 1}', {}, r"has no class under 'label'; it has: text, stars"),
        ('{"body": "a", "label": 1}', {}, r"no text under 'text'; it has: body, label"),
        ('{"text": "a", "label": 1}', {"pair": "b"}, r"no text under 'b'; it has: text, label"),
        ("[1]\n[2]", {}, "not JSON"),
        ("", {}, "no row to learn in"),
    ],
)
def test_what_is_no_row_is_refused_with_its_line(folder, tmp_path, line, keys, message):
    with pytest.raises(JobError, match=message):
        read(folder, tmp_path, "a.jsonl", line, **keys)


def test_a_csv_with_more_values_than_names(folder, tmp_path):
    with pytest.raises(JobError, match=r"a.csv:2: 3 values where the first line names 2"):
        read(folder, tmp_path, "a.csv", "text,label\ngood, film,1\n")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'text,label\ngood,1\n"bad,0\ngood,1\n"bad,0\ngood,1\n'),
        ("a.csv", 'text,label\ngood,1\n"bad,0\ngood,1\n'),
        ("a.tsv", 'text\tlabel\n"goo\nd"\t1\n"good" film\t1\n'),
        ("a.csv", f"text,label\ngood,1\n{'x' * 200_000},1\n"),
    ],
)
def test_a_quote_that_is_not_closed_takes_no_rows_with_it(folder, tmp_path, name, content):
    line = 4 if name == "a.tsv" else 3
    with pytest.raises(JobError, match=rf"{name}:{line}: not csv: "):
        read(folder, tmp_path, name, content)


def test_classes_are_the_jobs_or_the_folders_or_two():
    assert class_names({"id2label": {"10": "k", "2": "b"}}, None) == ("b", "k")
    assert class_names({"id2label": {"0": "a"}}, ["x", "y"]) == ("x", "y")
    assert class_names({}, None) == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize("named", [{"a": "x", "b": "y"}, {"0": "x"}, {"-1": "x", "1": "y"}])
def test_a_folder_that_does_not_name_classes_by_numbers(named):
    assert class_names({"id2label": named}, ["x", "y"]) == ("x", "y")
    with pytest.raises(JobError, match=r"id2label in its config.json has to name two classes or more by numbers"):
        class_names({"id2label": named}, None)


def test_an_evaluation_after_each_pass():
    words = {"model": {"family": "gpt2"}, "data": {"text": ["none"]}, "train": {"batch": 8, "eval_epochs": 1}}
    assert evaluated_by_steps(Job.model_validate(words), 100).train.eval_every == 13
    words["train"]["eval_epochs"] = 0
    assert evaluated_by_steps(Job.model_validate(words), 100).train.eval_every == 50


@pytest.mark.parametrize(
    ("data", "train", "message"),
    [
        ('labelled = "a.csv"', "", 'write task = "classification" under'),
        ('text = "a.csv"\nclasses = ["a", "b"]', "", "data.classes is for data.labelled"),
        ('text = "a.csv"', 'task = "classification"', "needs data.labelled"),
        ('labelled = "a.csv"\nclasses = ["a", "b", "a"]', 'task = "classification"', "data.classes names 'a' twice"),
    ],
)
def test_what_does_not_go_together(tmp_path, data, train, message):
    (tmp_path / "a.csv").write_text("text,label\na,0\n")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    model = '[model]\npretrained = "."'
    (tmp_path / "job.toml").write_text(f"[run]\nsteps = 1\n{model}\n[data]\n{data}\n[train]\n{train}\n")
    with pytest.raises(JobError, match=message):
        load_job(tmp_path / "job.toml")
