"""Tokenising once: samples, the fixed validation part, clear errors; and no torch anywhere."""

import asyncio
import hashlib
import io
import json
import subprocess
import sys
import tarfile

import fsspec
import numpy as np
import pytest

from farflung.coordinator.data import data, facts
from farflung.coordinator.serve.starting.resumed import prepare_or_restore
from farflung.job.checks.counts import check_samples
from farflung.job.data.tokenizer_folder import load_tokenizer
from farflung.job.forward import settled, too_few
from farflung.job.schema import Job
from farflung.proto.errors import JobError


def job(seed=1, validation=0.1, model=None, **keys):
    return Job.model_validate(
        {
            "run": {"steps": 1, "seed": seed},
            "model": model or {"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 8},
            "data": {"validation": validation, **keys},
        }
    )


def test_bytes(tmp_path):
    text = "".join(chr(97 + index % 26) for index in range(1000)) + "\n"
    (tmp_path / "b.txt").write_text(text[:600])
    (tmp_path / "c.txt").write_text(text[600:])
    made = data.tokenise(job(text=[str(tmp_path / "*.txt")]), load_tokenizer("bytes"), 8, tmp_path / "a")
    tokens = np.frombuffer((text[:600] + "\n" + text[600:]).encode(), np.uint8)
    windows = (len(tokens) - 1) // 8
    assert made.samples + made.validation_samples == windows == 125
    assert made.validation_samples == 12
    raw = made.path.read_bytes()
    assert hashlib.sha256(raw).hexdigest() == made.digest == made.path.name
    rows = np.frombuffer(raw, np.uint8).reshape(-1, 9)
    held, kept = data.split(windows, 0.1)
    assert not set(held) & set(kept)
    for row, window in zip(rows, [*kept, *held], strict=True):
        assert np.array_equal(row, tokens[window * 8 : window * 8 + 9])
    again = data.tokenise(job(seed=7, text=[str(tmp_path / "*.txt")]), load_tokenizer("bytes"), 8, tmp_path / "a")
    assert again == made
    assert [path.name for path in (tmp_path / "a").iterdir()] == [made.digest]


def test_a_forward_codec_of_auto_falls_back_where_samples_come_once():
    job = Job.model_validate_json(
        '{"run": {"steps": 10}, "model": {"family": "gpt2", "layers": 2, "width": 8, "heads": 2, "context": 8}, '
        '"data": {"text": ["x"]}, "train": {"batch": 8}, "activations": {"forward": "auto"}}'
    )
    twice, note = settled(job, 40, 10)
    assert twice.activations.forward == "aqsgd:bits=4" and not note
    once, note = settled(job, 60, 10)
    assert once.activations.forward == "int8" and "1.3 times" in note and "aqsgd" in note
    alone = job.model_copy(update={"parallel": job.parallel.model_copy(update={"stages": 1})})
    assert settled(alone, 60, 10)[1] == "", "nothing goes from stage to stage"
    aqsgd = alone.model_copy(update={"activations": alone.activations.model_copy(update={"forward": "aqsgd"})})
    check_samples(aqsgd, 60, 10)
    assert settled(aqsgd, 60, 10) == (aqsgd, "")
    assert "7 training samples, and a batch takes 8" in too_few(job, 7) and not too_few(job, 8)


def test_too_few_visits_for_aqsgd_are_refused_without_the_profile(tmp_path):
    """The profile here never ends, so that a start that waits for it would never refuse."""
    (tmp_path / "a.txt").write_text("word " * 100)
    once = job(text=[str(tmp_path / "a.txt")])
    once = once.model_copy(update={"activations": once.activations.model_copy(update={"forward": "aqsgd:bits=4"})})
    endless = (sys.executable, "-c", "import time; time.sleep(3600)")
    with pytest.raises(JobError, match="aqsgd sends changes"):
        asyncio.run(asyncio.wait_for(facts.prepare(once, tmp_path / "tokens", endless), 120))


def test_jsonl(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(json.dumps({"body": "word " * 4}) for _ in range(10)) + "\n\n")
    made = data.tokenise(job(jsonl=[str(path)], field="body"), load_tokenizer("bytes"), 8, tmp_path / "a")
    assert made.samples + made.validation_samples == (10 * 21 - 1) // 8
    with pytest.raises(JobError, match=r"x.jsonl:1: no text under 'text'; it has: body"):
        data.tokenise(job(jsonl=[str(path)]), load_tokenizer("bytes"), 8, tmp_path / "a")
    path.write_text('{"text": "a"}\n{"text": ')
    with pytest.raises(JobError, match=r"x.jsonl:2: not JSON"):
        data.tokenise(job(jsonl=[str(path)]), load_tokenizer("bytes"), 8, tmp_path / "a")


def made_of(tmp_path, **keys):
    """The tokens of a whole job, as text, in the order of its windows."""
    made = data.tokenise(job(validation=0.0, **keys), load_tokenizer("bytes"), 8, tmp_path / "tokens")
    return np.frombuffer(made.path.read_bytes(), np.uint8).reshape(-1, 9)[:, :8].tobytes().decode()


TEXTS = [f"document number {number}, the end" for number in range(30)]
JOINED = "".join(text + "\n" for text in TEXTS)


def test_parquet(tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = str(tmp_path / "x.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"body": TEXTS, "n": list(range(30))}), path, row_group_size=7)
    assert JOINED.startswith(made_of(tmp_path, parquet=[path], field="body"))
    with pytest.raises(JobError, match="no column 'text'; it has: body, n"):
        made_of(tmp_path, parquet=[path])
    with pytest.raises(JobError, match="holds int, not text"):
        made_of(tmp_path, parquet=[path], field="n")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(JobError, match=r"x.parquet: not parquet"):
        made_of(tmp_path, parquet=[path])


def test_webdataset(tmp_path):
    for shard in range(3):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as file:
            for number, text in enumerate(TEXTS[shard * 10 : shard * 10 + 10]):
                kind, content = ("txt", text) if number % 2 else ("json", json.dumps({"text": text}))
                for suffix, raw in ((kind, content.encode()), ("jpg", b"\xff\xd8")):
                    member = tarfile.TarInfo(f"{shard}-{number}.{suffix}")
                    member.size = len(raw)
                    file.addfile(member, io.BytesIO(raw))
    assert JOINED.startswith(made_of(tmp_path, webdataset=[str(tmp_path / "*.tar")]))
    (tmp_path / "1.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(JobError, match=r"1.tar: not a tar file"):
        made_of(tmp_path, webdataset=[str(tmp_path / "*.tar")])


def test_token_files(tmp_path):
    path = tmp_path / "train.bin"
    tokens = np.frombuffer(JOINED.encode(), np.uint8).astype("<u2")
    path.write_bytes(tokens.tobytes())
    assert JOINED.startswith(made_of(tmp_path, tokens=[str(path)]))
    path.write_bytes(tokens.tobytes()[:-1])
    with pytest.raises(JobError, match="ends in half a token"):
        made_of(tmp_path, tokens=[str(path)])
    path.write_bytes(np.append(tokens, np.uint16(256)).astype("<u2").tobytes())
    with pytest.raises(JobError, match="has the token 256"):
        made_of(tmp_path, tokens=[str(path)])


def test_token_arrays(tmp_path):
    path = tmp_path / "train.npy"
    np.save(path, np.frombuffer(JOINED.encode(), np.uint8).astype(np.uint32))
    assert JOINED.startswith(made_of(tmp_path, tokens=[str(path)]))
    np.save(path, np.zeros(50))
    with pytest.raises(JobError, match="holds float64"):
        made_of(tmp_path, tokens=[str(path)])
    np.save(path, np.array([{}, {}], dtype=object), allow_pickle=True)
    with pytest.raises(JobError, match="holds object"):
        made_of(tmp_path, tokens=[str(path)])
    path.write_bytes(b"no array")
    with pytest.raises(JobError, match=r"train.npy: the magic string is not correct"):
        made_of(tmp_path, tokens=[str(path)])


def test_validation_files(tmp_path):
    (tmp_path / "train.txt").write_text(JOINED)
    (tmp_path / "held.txt").write_text("these are held out" * 3)
    keys = {"text": [str(tmp_path / "train.txt")], "validation": [str(tmp_path / "held.txt")]}
    made = data.tokenise(job(**keys), load_tokenizer("bytes"), 8, tmp_path / "tokens")
    assert (made.samples, made.validation_samples) == ((len(JOINED) - 1) // 8, 54 // 8)
    rows = np.frombuffer(made.path.read_bytes(), np.uint8).reshape(-1, 9)[:, :8]
    assert JOINED.startswith(rows[: made.samples].tobytes().decode())
    assert ("these are held out" * 3).startswith(rows[made.samples :].tobytes().decode())


def test_files_anywhere_fsspec_reaches(tmp_path):
    with fsspec.open("memory://corpus/a.jsonl", "w") as file:
        file.write("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    assert JOINED.startswith(made_of(tmp_path, jsonl=["memory://corpus/*.jsonl"]))
    with pytest.raises(JobError, match="there is no file memory://other"):
        made_of(tmp_path, jsonl=["memory://other/*.jsonl"])
    with pytest.raises(JobError, match="nowhere://x"):
        made_of(tmp_path, jsonl=["nowhere://x"])


def test_bad_texts(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("")
    with pytest.raises(JobError, match="the text is empty"):
        data.tokenise(job(text=[str(path)]), load_tokenizer("bytes"), 8, tmp_path)
    path.write_text("short")
    with pytest.raises(JobError, match="too short: 6 tokens"):
        data.tokenise(job(text=[str(path)]), load_tokenizer("bytes"), 8, tmp_path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JobError, match="UTF-8"):
        data.tokenise(job(text=[str(path)]), load_tokenizer("bytes"), 8, tmp_path)


@pytest.fixture
def folder(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, "</s>": 1, "to": 2, "be": 3, "or": 4, "not": 5}
    rust = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    made = tmp_path / "tokenizer"
    made.mkdir()
    rust.save(str(made / "tokenizer.json"))
    (made / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return made


def test_tokenizer_folder(tmp_path, folder):
    (tmp_path / "x.txt").write_text("to be or not to be\n" * 3)
    tokenizer = load_tokenizer(str(folder))
    made = data.tokenise(job(text=[str(tmp_path / "x.txt")], validation=0.0), tokenizer, 6, tmp_path / "a")
    rows = np.fromfile(made.path, made.dtype).reshape(-1, 7)
    assert rows.tolist() == [[2, 3, 4, 5, 2, 3, 2], [2, 3, 4, 5, 2, 3, 2], [2, 3, 4, 5, 2, 3, 1]]


def test_tokenizer_folder_without_tokenizer(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(JobError, match="has no tokenizer"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(JobError, match="cannot load the tokenizer"):
        load_tokenizer(str(tmp_path))


def test_sizes(tmp_path, folder):
    bytes_, words = load_tokenizer("bytes"), load_tokenizer(str(folder))
    assert data.model_sizes(job(text=["x"]), bytes_) == (8, 256)
    shape = {"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 8, "vocabulary": 5}
    with pytest.raises(JobError, match=r"model\.vocabulary = 5 is less than the 6 tokens"):
        data.model_sizes(job(text=["x"], model=shape), words)
    config = {"model_type": "gpt2", "n_positions": 64, "vocab_size": 256}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert data.model_sizes(job(text=["x"], model={"pretrained": str(tmp_path)}), bytes_) == (64, 256)
    with pytest.raises(JobError, match="more than the 64 positions"):
        data.model_sizes(job(text=["x"], model={"pretrained": str(tmp_path), "context": 65}), bytes_)


def test_validation_split():
    for windows, validation, held in [(1, 0.5, 0), (2, 0.01, 1), (100, 0.0, 0), (100, 0.05, 5)]:
        first, rest = data.split(windows, validation)
        assert len(first) == held
        assert sorted([*first, *rest]) == list(range(windows))
    assert data.split(100, 0.05)[0].tolist() == [10, 30, 50, 70, 90]  # evenly: every part of the text has its share


def test_a_run_that_began_with_another_order_of_samples_is_refused(tmp_path):
    old = facts.Facts(
        samples=10,
        validation_samples=0,
        context=8,
        vocabulary=256,
        token_dtype="uint8",
        steps=1,
        tokens_digest="",
        profile=facts.Profile(layers=[], tied=False, family="gpt2"),
        artifacts={},
    )
    stored = old.model_dump_json(exclude={"order"})  # as they were before the order had a version
    with pytest.raises(JobError, match=r"began with another order of samples \(1\) than this version's \(2\)"):
        asyncio.run(prepare_or_restore(job(text=["x"]), stored, tmp_path, (), False, lambda event: None))


def test_room_never_imports_torch():
    code = (
        "import pkgutil, importlib, sys, farflung.coordinator as room\n"
        "[importlib.import_module(m.name) for m in pkgutil.walk_packages(room.__path__, room.__name__ + '.')]\n"
        "from farflung.job import files, schema; from farflung.proto import errors\n"
        "from farflung.proto.words import link\n"
        "from farflung.job.data import tokenizer_folder; tokenizer_folder.load_tokenizer('bytes'); import tokenizers\n"
        "bad = {'torch', 'transformers', 'farflung.compress.codec', 'farflung.node'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
