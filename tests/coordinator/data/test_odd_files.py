"""Files as people have them: names with brackets, byte order marks, headers, pointers, and rows that are no text."""

import json

import numpy as np
import pytest

from farflung.coordinator.data import data
from farflung.job.data.tokenizer_folder import load_tokenizer
from farflung.job.files import load_job
from farflung.job.schema import Job
from farflung.proto.errors import JobError

WORDS = "To be, or not to be, that is the question.\n" * 20
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def made_of(tmp_path, **keys):
    """The tokens of a whole job, as text."""
    shape = {"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 8}
    job = Job.model_validate({"run": {"steps": 1}, "model": shape, "data": {"validation": 0.0, **keys}})
    made = data.tokenise(job, load_tokenizer("bytes"), 8, tmp_path / "made")
    return np.frombuffer(made.path.read_bytes(), np.uint8).reshape(-1, 9)[:, :8].tobytes().decode(errors="replace")


def llm_c(count, magic=20240520, version=1, kind="<u2"):
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, count
    return header.tobytes() + np.frombuffer(WORDS.encode(), np.uint8).astype(kind).tobytes()


@pytest.mark.parametrize(("magic", "version", "kind"), [(20240520, 1, "<u2"), (20240801, 7, "<u4")])
def test_the_header_of_a_token_file_is_not_trained_on(tmp_path, magic, version, kind):
    (tmp_path / "train.bin").write_bytes(llm_c(len(WORDS), magic, version, kind))
    assert WORDS.startswith(made_of(tmp_path, tokens=[str(tmp_path / "train.bin")]))
    (tmp_path / "train.bin").write_bytes(llm_c(len(WORDS) + 5, magic, version, kind))
    with pytest.raises(JobError, match=f"says {len(WORDS) + 5} tokens, and {len(WORDS)} are there"):
        made_of(tmp_path, tokens=[str(tmp_path / "train.bin")])


def test_an_array_under_another_name_and_a_header_that_is_not_known(tmp_path):
    path = tmp_path / "train.bin"
    with path.open("wb") as file:
        np.save(file, np.frombuffer(WORDS.encode(), np.uint8).astype(np.uint16))
    assert WORDS.startswith(made_of(tmp_path, tokens=[str(path)]))
    path.write_bytes(llm_c(len(WORDS), 3, 9))
    with pytest.raises(JobError, match="has the token"):
        made_of(tmp_path, tokens=[str(path)])


def test_brackets_in_names_are_names(tmp_path):
    folder = tmp_path / "corpus [2024]"
    folder.mkdir()
    (folder / "part[1].txt").write_text(WORDS)
    (folder / "b.txt").write_text("x")
    assert WORDS.startswith(made_of(tmp_path, text=[str(folder / "part[1].txt")]))
    assert WORDS.startswith(made_of(tmp_path, text=[str(folder / "p*.txt")]))
    (folder / "c.txt").write_text(WORDS)
    assert WORDS.startswith(made_of(tmp_path, text=[str(folder / "[c].txt")]))  # no such file: a pattern
    text = '[model]\nfamily="gpt2"\nlayers=1\nwidth=8\nheads=2\ncontext=8\n[data]\ntext="*.txt"\n[run]\nsteps=1\n'
    (folder / "job (1).toml").write_text(text, encoding="utf-8-sig")
    job = load_job(folder / "job (1).toml")
    assert job.run.name == "job--1-"
    assert made_of(tmp_path, text=job.data.text)


def test_a_windows_path_in_a_job(tmp_path):
    (tmp_path / "job.toml").write_text('[data]\ntext = "C:\\Users\\me\\*.txt"\n')
    with pytest.raises(JobError, match="not TOML") as caught:
        load_job(tmp_path / "job.toml")
    assert "single quotes" in caught.value.hint


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_text(WORDS, encoding="utf-8-sig")
    assert WORDS.startswith(made_of(tmp_path, text=[str(tmp_path / "a.txt")]))
    lines = "".join(json.dumps({"text": WORDS}) + "\n" for _ in range(2))
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8-sig")
    assert (WORDS * 2).startswith(made_of(tmp_path, jsonl=[str(tmp_path / "a.jsonl")]))


def test_half_a_surrogate_pair(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "\\ud83d, \\ud83d\\ude00 and \\ude00: replaced, kept, replaced"}\n')
    text = made_of(tmp_path, jsonl=[str(tmp_path / "a.jsonl")])
    assert text.startswith("\ufffd, \U0001f600 and \ufffd: replaced, kept")


def test_rows_that_are_no_text(tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}]}) + "\n")
    with pytest.raises(JobError, match=r"chat.jsonl:1: 'messages' holds a list of messages, not text") as caught:
        made_of(tmp_path, jsonl=[str(path)], field="messages")
    assert "chat = " in caught.value.hint
    table = pyarrow.table({"text": ["a", "b", "c", None]})
    pyarrow.parquet.write_table(table, str(tmp_path / "x.parquet"), row_group_size=3)
    with pytest.raises(JobError, match=r"x.parquet: row 4 \(row group 1\): column 'text' holds nothing \(null\)"):
        made_of(tmp_path, parquet=[str(tmp_path / "x.parquet")])


@pytest.mark.parametrize("kind", ["text", "jsonl", "parquet", "webdataset", "tokens"])
def test_a_pointer_is_called_one(tmp_path, kind):
    (tmp_path / "file").write_text(POINTER)
    with pytest.raises(JobError, match=f"data.{kind}: .*/file is a Git LFS pointer") as caught:
        made_of(tmp_path, **{kind: [str(tmp_path / "file")]})
    assert "git lfs pull" in caught.value.hint


def test_pointers_in_model_and_tokenizer_folders(tmp_path):
    from farflung.job.model_folder.config import pretrained_config

    for name, load in (("config.json", pretrained_config), ("tokenizer.json", load_tokenizer)):
        (tmp_path / name).write_text(POINTER)
        with pytest.raises(JobError, match=f"{name} is a Git LFS pointer"):
            load(str(tmp_path))


def test_packed_with_what_is_not_installed(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    monkeypatch.setattr("fsspec.available_compressions", lambda: [None, "gzip"])
    with pytest.raises(JobError, match=r"a.jsonl.zst needs the package zstandard"):
        made_of(tmp_path, jsonl=[str(tmp_path / "a.jsonl.zst")])
