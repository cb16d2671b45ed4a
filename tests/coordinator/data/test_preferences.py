"""Pairs of answers become rows of two halves: texts, messages, and whole conversations that begin alike."""

import json

import numpy as np
import pytest

from farflung.coordinator.data.rows.preferences import pair, tokenise_preferences
from farflung.job.data.marks import FIRST, TRAINED, targets_of, tokens_of, trained_in
from farflung.job.data.tokenizer_folder import load_tokenizer
from farflung.job.files import load_job
from farflung.job.schema import Job
from farflung.proto.errors import JobError

USER, GOOD, BAD = (
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
    {"role": "assistant", "content": "go"},
)


def read(tmp_path, *rows, context=16):
    """(rows, what was told)."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"preferences": [str(tmp_path / "a.jsonl")], "validation": 0.0}
    model = {"pretrained": "none", "context": context, "lora": {}}
    job = Job.model_validate({"model": model, "data": data, "train": {"task": "dpo"}})
    told = []
    made = tokenise_preferences(job, load_tokenizer("bytes"), context, tmp_path / "made", told.append)
    assert made.packed and (np.fromfile(f"{made.path}.counts", "<u4") == 1).all() and made.trained == made.samples
    return np.fromfile(made.path, "<u4").reshape(-1, context + 1), [one["message"] for one in told if "message" in one]


def test_the_answers_of_a_pair_have_a_half_each_and_alone_train(tmp_path):
    rows, told = read(tmp_path, {"prompt": "ab", "chosen": "cd", "rejected": "xyzxyzxyz"})
    (row,) = rows
    assert bytes(tokens_of(row)[:8].tolist()) == b"abcd\0\0\0\0"
    assert bytes(tokens_of(row)[8:16].tolist()) == b"abxyzxyz"
    assert (row[:16] & TRAINED > 0).tolist() == [False, False, True, True, *[False] * 4, False, False, *[True] * 6]
    assert [at for at in range(17) if row[at] & FIRST] == [0, 4, 8, 16]
    targets = targets_of(row[None])[0]
    assert targets[7] == -100, "no half goes on into the other"
    assert trained_in(rows).tolist() == [8]
    assert told == [
        "data.preferences: 1 pairs, 8 tokens for each answer with its prompt",
        "data.preferences: 1 answers are longer than half of model.context: the rest is cut off",
    ]


def test_a_pair_with_nothing_to_learn_is_left_out(tmp_path):
    long = {"prompt": "abcdefgh", "chosen": "c", "rejected": "r"}
    rows, told = read(tmp_path, {"prompt": "a", "chosen": "c", "rejected": "r"}, long)
    assert len(rows) == 1
    assert "2 answers have nothing to learn before the sample's end: their pairs are left out" in told[-1]


def test_a_pair_of_equal_answers_is_left_out(tmp_path):
    equal, cut = ({"prompt": "a", "chosen": "c" * 8 + end, "rejected": "c" * 8} for end in ("", "d"))
    rows, told = read(tmp_path, {"prompt": "a", "chosen": "c", "rejected": "r"}, equal, cut)
    assert len(rows) == 1
    assert told[-1].endswith("2 pairs have the same tokens twice within their halves, and are left out")


def test_where_no_pair_is_left_it_says_why(tmp_path):
    long = {"prompt": "abcdefgh", "chosen": "c", "rejected": "r"}
    equal = {"prompt": "a", "chosen": "c", "rejected": "c"}
    with pytest.raises(JobError, match=r"no pair to learn .*2 answers have nothing .*a.jsonl:1; 1 pairs have the same"):
        read(tmp_path, long, equal)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": "hi", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    ],
)
def test_messages_of_every_form(row):
    chosen, rejected = pair("a:1", row)
    assert (chosen.begin, rejected.begin) == (1, 1)
    assert [one["content"] for one in (*chosen.messages, *rejected.messages)] == ["hi", "hello", "hi", "go"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a", "chosen": "b"}, "a:1 has prompt, chosen"),
        ({"chosen": "b", "rejected": "c"}, "chosen and rejected are texts, and prompt is not"),
        ({"prompt": "a", "chosen": "b", "rejected": [BAD]}, "not both texts, or both lists"),
        ({"prompt": "a", "chosen": 1, "rejected": 2}, "not both texts, or both lists"),
        ({"prompt": "a", "chosen": BAD, "rejected": GOOD}, "not both texts, or both lists"),
        ([1], "a:1 has list"),
    ],
)
def test_what_is_no_pair_is_refused(row, message):
    with pytest.raises(JobError, match=message):
        pair("a:1", row)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ('[data]\npreferences = "a.jsonl"\n', 'data.preferences has pairs of answers; write task = "dpo"'),
        ('[data]\npreferences = "a.jsonl"\n[train]\ntask = "dpo"\n', "needs model.lora: answers are measured against"),
        ('[data]\ntext = "a.jsonl"\n[train]\ndpo_beta = 0.3\n', 'train.dpo_beta is for task = "dpo"'),
        ('[data]\ntext = "a.jsonl"\n[train]\ntask = "dpo"\n', "needs data.preferences"),
    ],
)
def test_what_does_not_go_together(tmp_path, words, message):
    (tmp_path / "a.jsonl").write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "job.toml").write_text(f'[run]\nsteps = 1\n[model]\npretrained = "."\n{words}')
    with pytest.raises(JobError, match=message):
        load_job(tmp_path / "job.toml")
