"""What a tokenizer folder is, and what of it changes the tokens that are trained on."""

import json

import numpy as np
import pytest

from farflung.coordinator.data import data
from farflung.job.data.tokenizer_folder import load_tokenizer, tokenizer_files
from farflung.job.schema import Job
from farflung.proto.errors import JobError

WORDS = {"[UNK]": 0, "</s>": 1, "to": 2, "be": 3, "or": 4, "not": 5}
END = "<|endoftext|>"


def letters(dropout=None, end=None, **vocabulary):
    """A byte-pair tokenizer of "abab...": with its merge, n times "ab" are n tokens."""
    from tokenizers import Tokenizer, models

    pairs = {"a": 0, "b": 1, "ab": 2, **vocabulary}
    rust = Tokenizer(models.BPE(vocab=pairs, merges=[("a", "b")], dropout=dropout))
    if end:
        rust.add_special_tokens([end])
    return rust


def words(ids=None):
    from tokenizers import Tokenizer, models, pre_tokenizers

    rust = Tokenizer(models.WordLevel(ids or WORDS, unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    return rust


def saved(folder, rust, **configs):
    """``rust`` as FOLDER/tokenizer.json, and other files by stem."""
    folder.mkdir(exist_ok=True)
    rust.save(str(folder / "tokenizer.json"))
    for stem, content in configs.items():
        (folder / f"{stem}.json").write_text(json.dumps(content))
    return str(folder)


def job(text, tokenizer="bytes", **model):
    shape = model or {"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 8}
    data_ = {"text": [str(text)], "validation": 0.0, "tokenizer": tokenizer}
    return Job.model_validate({"run": {"steps": 1}, "model": shape, "data": data_})


def tokens_of(tmp_path, folder, text, tell=lambda event: None):
    (tmp_path / "x.txt").write_text(text)
    made = data.tokenise(job(tmp_path / "x.txt", folder), load_tokenizer(folder), 8, tmp_path / "made", tell)
    return np.fromfile(made.path, made.dtype).reshape(-1, 9)[:, :8].ravel()


def test_truncation_saved_in_the_tokenizer_cuts_nothing(tmp_path):
    rust = words()
    rust.enable_truncation(64)
    rust.enable_padding(length=100)
    told = []
    folder = saved(tmp_path / "tokenizer", rust)
    tokens = tokens_of(tmp_path, folder, "to be or not " * 2500, told.append)
    assert len(tokens) == 9992 and tokens[:4].tolist() == [2, 3, 4, 5]
    assert len(load_tokenizer(folder).prompt("to be " * 100)) == 200
    said = next(event["message"] for event in told if event["event"] == "notice")
    assert "32,500 bytes in 1 document are 10,000 tokens, 0.308 tokens per byte; no token ends a document" in said
    assert "truncation to 64 tokens, saved in the tokenizer, is left out" in said


def test_dropout_saved_in_the_tokenizer_makes_no_reading_another(tmp_path):
    tokenizer = load_tokenizer(saved(tmp_path / "tokenizer", letters(dropout=0.5)))
    for _ in range(3):
        assert tokenizer.encode([("ab" * 500, True)])[0].tolist() == [2] * 500
    assert tokenizer.notes == ["dropout = 0.5, saved in the tokenizer, is left out"]


@pytest.mark.parametrize(("unit", "many"), [("z" * 400, 250), ("ab", 6000)])
def test_a_ratio_that_no_text_has_is_a_warning(tmp_path, unit, many):
    """A word of 400 letters is one token (unknown); a vocabulary without "ab" has two for it, and one more each."""
    rust = words()
    if unit == "ab":
        from tokenizers import Tokenizer, decoders, models, normalizers

        rust = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
        rust.normalizer, rust.decoder = normalizers.Replace("b", "ba"), decoders.Fuse()
    told = []
    tokens_of(tmp_path, saved(tmp_path / "tokenizer", rust), (unit + (" " if unit != "ab" else "")) * many, told.append)
    said = [event["message"] for event in told if event["event"] == "warning"]
    assert any("tokens per byte is far from what text has" in one for one in said)


def test_much_that_the_tokenizer_does_not_know_is_a_warning(tmp_path):
    told = []
    folder = saved(tmp_path / "tokenizer", words())
    tokens_of(tmp_path, folder, "to be sein oder nicht sein " * 500, told.append)
    said = [event["message"] for event in told if event["event"] == "warning"]
    assert len(said) == 1 and "67% of the tokens are the one of what the tokenizer does not know" in said[0]
    told.clear()
    tokens_of(tmp_path, folder, "to be or not to be " * 1000, told.append)
    assert "warning" not in {event["event"] for event in told}


def test_ids_are_looked_at_and_not_counted(tmp_path):
    """240 entries, of which one is number 1000: in uint8 that would be another token."""
    ids = {**WORDS, **{f"w{number}": number for number in range(6, 239)}, "far": 1000}
    folder = saved(tmp_path / "tokenizer", words(ids))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.vocabulary == 1001
    assert tokens_of(tmp_path, folder, "to far " * 50)[:4].tolist() == [2, 1000, 2, 1000]
    shape = {"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 8, "vocabulary": 300}
    with pytest.raises(JobError, match=r"model\.vocabulary = 300 is less than the 1001 tokens"):
        data.model_sizes(job("x", folder, **shape), tokenizer)


@pytest.mark.parametrize(
    ("files", "has"),
    [
        (["tokenizer.json"], True),
        (["vocab.json", "merges.txt"], True),
        (["tokenizer.model"], True),
        (["vocab.txt"], True),
        (["vocab.json"], False),
        (["tokenizer_config.json", "chat_template.jinja"], False),
        (["config.json"], False),
    ],
)
def test_what_a_tokenizer_folder_is(tmp_path, files, has):
    for name in files:
        (tmp_path / name).write_text("")
    assert [path.name for path in tokenizer_files(tmp_path)] == (files if has else [])


CASES = {
    "the tokenizer's word": ({"tokenizer_config": {"eos_token": "b"}, "config": {"eos_token_id": 0}}, 1),
    "as an object": ({"special_tokens_map": {"eos_token": {"content": "b"}}}, 1),
    "a word that it has not": ({"tokenizer_config": {"eos_token": "?"}, "config": {"eos_token_id": 1}}, 1),
    "gpt2's own layout": ({"tokenizer_config": {"model_max_length": 1024}, "config": {"eos_token_id": 3}}, 3),
    "several": ({"generation_config": {"eos_token_id": [9, 1]}, "config": {"eos_token_id": 0}}, 1),
    "the class's default": ({"tokenizer_config": {"tokenizer_class": "GPT2TokenizerFast"}}, 3),
    "alone": ({}, 3),
}


@pytest.mark.parametrize(("configs", "end"), CASES.values(), ids=CASES)
def test_what_ends_a_document(tmp_path, configs, end):
    tokenizer = load_tokenizer(saved(tmp_path / "tokenizer", letters(end=END), **configs))
    assert tokenizer.end == end
    assert tokenizer.ending == f"{['a', 'b', 'ab', END][end]} ({end})"
    assert tokenizer.encode([("a", True), ("ab", False)])[0].tolist() == [0, end]


def test_a_prompt_has_the_special_tokens_of_training_which_are_none(tmp_path):
    from tokenizers import processors

    rust = letters(end=END)
    rust.post_processor = processors.TemplateProcessing(f"{END} $A {END}", special_tokens=[(END, 3)])
    tokenizer = load_tokenizer(saved(tmp_path / "tokenizer", rust))
    assert tokenizer.prompt("abab") == [2, 2]


def test_bytes_are_no_tokens_of_a_model_with_a_vocabulary_of_its_own(tmp_path):
    from farflung.node.generation.byte_tokenizer import write_byte_tokenizer

    config = {"model_type": "gpt2", "n_positions": 64, "vocab_size": 300}
    (tmp_path / "config.json").write_text(json.dumps(config))
    wanted = job("x", pretrained=str(tmp_path))
    with pytest.raises(JobError, match="has a vocabulary of its own, of 300 tokens") as refused:
        data.model_sizes(wanted, load_tokenizer("bytes"))
    assert "folder of the model's tokenizer" in refused.value.hint
    saved(tmp_path, letters())
    with pytest.raises(JobError, match="of its own") as refused:
        data.model_sizes(wanted, load_tokenizer("bytes"))
    assert refused.value.hint == f'write tokenizer = "{tmp_path}"'
    write_byte_tokenizer(tmp_path, 64)
    assert data.model_sizes(wanted, load_tokenizer("bytes")) == (64, 300)


def test_a_sentencepiece_model_without_the_package_says_which(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(JobError, match="needs the package sentencepiece") as caught:
        load_tokenizer(str(tmp_path))
    assert "pip install sentencepiece" in caught.value.hint


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"generation_config.json": "{"}, r"generation_config\.json can't be read"),
        ({"tokenizer_config.json": "{"}, r"tokenizer_config\.json can't be read"),
        ({"special_tokens_map.json": ""}, r"special_tokens_map\.json can't be read"),
        ({"generation_config.json": '{"eos_token_id": "x"}'}, r"generation_config\.json says eos_token_id = 'x'"),
        ({"config.json": '{"eos_token_id": [null]}'}, r"config\.json says eos_token_id = \[None\]"),
        ({"config.json": '{"eos_token_id": -1}'}, r"config\.json says eos_token_id = -1"),
    ],
)
def test_a_broken_file_beside_a_tokenizer_is_named(tmp_path, files, said):
    letters().save(str(tmp_path / "tokenizer.json"))
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(JobError, match=said) as caught:
        load_tokenizer(str(tmp_path))
    assert caught.value.hint


def test_a_vocabulary_that_does_not_say_what_it_is(tmp_path):
    (tmp_path / "vocab.txt").write_text("[UNK]\na\n")
    with pytest.raises(JobError, match="does not say of which kind of tokenizer it is"):
        load_tokenizer(str(tmp_path))
