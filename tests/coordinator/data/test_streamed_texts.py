"""Text, jsonl, parquet and WebDataset shards that the coordinator does not keep: pieces are made when asked for."""

import asyncio
import io
import json
import sys
import threading
import time

import corpora
import fsspec
import numpy as np
import pytest

from farflung.coordinator.data import data, facts
from farflung.coordinator.data.artifacts import Artifacts, NoArtifact
from farflung.coordinator.data.corpus import streams
from farflung.coordinator.data.corpus.index import Index
from farflung.coordinator.data.files import documents
from farflung.job.data.facts import Profile
from farflung.job.data.tokenizer_folder import load_tokenizer
from farflung.job.schema import Job
from farflung.proto.errors import JobError

CONTEXT, TOKENS = 16, "data/tokens"
LONG = ["".join(corpora.texts(14, 7, 300_000)) + "x" * 2_200_000, *corpora.texts(8, 8)]
"""A document of several parts, one of which has no line's end."""
BEFORE = {  # sha256 of the rows as the version made them that tokenised everything onto the coordinator's disk
    ("text", "bytes", 0.1): "8a2a1822eefa870f",
    ("text", "words", 0.1): "1843ac3f369163d2",
    ("jsonl", "bytes", 0.1): "a26d0d8f26896f9b",
    ("jsonl", "words", 0.1): "353020a2408bf3bb",
    ("text", "words", "long"): "128a5bda33c65003",
    ("jsonl", "words", "long"): "aef939a44dcc43bb",
}


@pytest.fixture(autouse=True)
def many_marks(monkeypatch):
    monkeypatch.setattr(streams, "_EVERY", 1000)
    monkeypatch.setattr(streams, "_ONCE", 3000)


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("words")
    known = ["[UNK]", "</s>", "to", "be", "or", "not", "naïve", "tokens"]
    rust = Tokenizer(models.WordLevel({word: number for number, word in enumerate(known)}, unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    rust.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return str(folder)


def job(kind, pattern, tokenizer="bytes", validation=0.1, **more):
    return Job.model_validate(
        {
            "run": {"steps": 1},
            "model": {"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": CONTEXT},
            "data": {kind: [pattern], "tokenizer": tokenizer, "validation": validation, **more},
        }
    )


def made(asked, folder, room=sys.maxsize):
    return data.tokenise(asked, load_tokenizer(asked.data.tokenizer), CONTEXT, folder, room=room)


def pieces_of(index):
    return b"".join(index.read(piece) for piece in range(len(index.pieces)))


@pytest.mark.parametrize(
    ("kind", "name"),
    [("text", "words"), ("jsonl", "words")]
    + [(kind, "bytes") for kind in ("text", "jsonl", "parquet", "webdataset", "jsonl.gz", "webdataset.gz")],
)
def test_pieces_are_those_of_a_copy(kind, name, words, tmp_path):
    """Whatever is kept and whatever is read again; and the copy is that of the version before."""
    key, tokenizer = kind.split(".")[0], words if name == "words" else name
    pattern = corpora.write(f"memory://texts/{kind}", kind, corpora.texts())
    held = corpora.write(f"memory://texts/{kind}-held", kind, corpora.texts(9, 3))
    for validation in (0.0, 0.1, [held]):
        asked = job(key, pattern, tokenizer, validation)
        copy = made(asked, tmp_path)
        if validation == 0.1:
            assert copy.digest.startswith(BEFORE["text" if key == "text" else "jsonl", name, 0.1])
        rows = copy.path.read_bytes()
        for kept in {"0.0": (1.0, 0.0), "0.1": (0.5, 0.11)}.get(str(validation), (0.5,)):
            folder = tmp_path / f"{isinstance(validation, list)}-{validation == 0.1}-{kept}"
            found = made(asked, folder, int(kept * len(rows) * 16 / 17) - 1 if kept else 0)
            assert found.path == folder / f"{copy.digest}.index"
            assert (found.samples, found.validation_samples) == (copy.samples, copy.validation_samples)
            index = Index.load(found.path)
            assert len(index.corpus.training.marks) >= (3 if kind == "text" else 8) and index.unchanged()
            assert pieces_of(index) == rows
            sizes = {path.suffix: path.stat().st_size for path in folder.iterdir()}
            assert sizes.get(".first", 0) + sizes.get(".held", 0) <= kept * len(rows)
            assert set(sizes) <= {".index", ".first", ".held"}
            for path in folder.glob("*.first"):
                path.write_bytes(b"damaged" * (sizes[".first"] // 7 + 1))
            assert pieces_of(Index.load(found.path)) == rows


@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_long_documents_begin_in_their_middle(kind, words, tmp_path, monkeypatch):
    asked = job(kind, corpora.write(f"memory://long/{kind}", kind, LONG), words)
    copy = made(asked, tmp_path)
    assert copy.digest.startswith(BEFORE[kind, "words", "long"])
    index = Index.load(made(asked, tmp_path / "streamed", 20_000).path)
    assert index.digest == copy.digest
    texts = index.corpus.training
    assert max(mark[2] if kind == "text" else mark[4] for mark in texts.marks) > 200_000
    whole = np.concatenate(list(texts.stream(0)))
    for start in (0, 1, texts.marks[-2][0] + 1, texts.tokens - 100):
        assert np.array_equal(texts.read(start, 100), whole[start : start + 100])


class Forward(io.BytesIO):
    """As of a server without ranges."""

    def seek(self, offset, *_):
        if offset != self.tell():
            raise ValueError("Cannot seek streaming HTTP file")
        return offset


@pytest.mark.parametrize("kind", ["text", "jsonl", "webdataset"])
def test_places_that_give_files_from_their_start_only(kind):
    pattern = corpora.write(f"memory://forward/{kind}", kind, corpora.texts(30), 1)
    raw = fsspec.filesystem("memory").cat_file(fsspec.open_files(pattern)[0].path)
    whole = list(documents.parts(kind, "a", io.BytesIO(raw), "text"))
    for start in {whole[0].place, whole[-1].place, whole[len(whole) // 2].place}:
        found = list(documents.parts(kind, "a", Forward(raw), "text", start))
        assert found == [part for part in whole if part.place >= start]


def test_marks_stay_few(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "MOST", 8)
    asked = job("jsonl", corpora.write("memory://marks", "jsonl", corpora.texts()), validation=0.0)
    index = Index.load(made(asked, tmp_path / "index", 0).path)
    assert 8 <= len(index.corpus.training.marks) <= 16
    assert pieces_of(index) == made(asked, tmp_path).path.read_bytes()


@pytest.fixture
def streamed(tmp_path):
    """(index file, names of the source files): a corpus of three pieces."""
    pattern = corpora.write(f"file://{tmp_path}/texts", "jsonl", corpora.texts(120, 4), 4)
    found = made(job("jsonl", pattern, validation=0.0), tmp_path / "artifacts", 1000)
    return found.path, sorted((tmp_path / "texts").iterdir())


def test_an_index_is_small_and_knows_where_to_begin(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "_EVERY", 1 << 17)
    found = made(job("jsonl", corpora.write(f"file://{tmp_path}/t", "jsonl", LONG), validation=0.0), tmp_path, 0)
    tokens = found.samples * CONTEXT
    assert sum(path.stat().st_size for path in tmp_path.glob("*.*")) < 1000 + 600 * tokens / 1e6
    read, index = [], Index.load(found.path)
    monkeypatch.setattr(streams, "parts", lambda *words: read.append(words[4]) or iter(()))
    with pytest.raises(streams.SourceChanged):
        index.read(len(index.pieces) - 1)
    assert read[0] > (0, 0, 0)


@pytest.mark.parametrize(
    ("change", "how"),
    [
        (lambda raw: raw.replace(b"to", b"by"), "piece 0 has other tokens"),
        (lambda raw: raw[: len(raw) // 2], "not JSON"),
        (lambda raw: b"", "piece 0 has other tokens"),
        (lambda raw: None, "it is gone"),
        (lambda raw: b"\xff" * len(raw), "not JSON"),
    ],
)
def test_a_text_that_was_changed_is_named(streamed, change, how):
    path, files = streamed
    raw = change(files[0].read_bytes())
    files[0].unlink() if raw is None else files[0].write_bytes(raw)
    artifacts = Artifacts({TOKENS: path})
    with pytest.raises(NoArtifact, match=rf"data.jsonl: .*0.jsonl.* was changed since the run began: .*{how}"):
        list(artifacts.read(TOKENS, 2000, 10))
    assert list(artifacts.read(TOKENS, artifacts.describe(TOKENS).size - 10, 10))  # of the last file


def test_a_place_that_does_not_answer(streamed, monkeypatch):
    path, _ = streamed
    index = Index.load(path)
    wanted = index.read(1)

    def cut_off(*_, **__):
        raise ConnectionError("no route to the store")

    with monkeypatch.context() as patched:
        patched.setattr(type(fsspec.filesystem("file")), "_open", cut_off)
        with pytest.raises(streams.SourceUnreachable, match=r"data.jsonl: cannot read \S*.jsonl now: no route to the"):
            Index.load(path).read(1)
        patched.setattr(type(fsspec.filesystem("file")), "info", cut_off)
        with pytest.raises(streams.SourceUnreachable, match="no route to the store"):
            Index.load(path).unchanged()
    assert Index.load(path).read(1) == wanted


def test_those_who_ask_together_wait_for_one(streamed, monkeypatch):
    index, tokenised = Index.load(streamed[0]), []
    read = index.corpus.training.stream

    def slowly(self, start):
        tokenised.append(start)
        time.sleep(0.05)
        return read(start)

    monkeypatch.setattr(streams.Texts, "stream", slowly)
    found = []
    threads = [threading.Thread(target=lambda: found.append(index.read(1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokenised) == 1 and len(found) == 8 and len(set(found)) == 1


def test_a_held_out_part_that_cannot_be_kept_is_refused(tmp_path):
    asked = job("jsonl", corpora.write("memory://much", "jsonl", corpora.texts()), validation=0.5)
    with pytest.raises(JobError, match=r"data.validation = 0.5 holds out 0.0002\d* GB of tokens, more than the 1e-05"):
        made(asked, tmp_path, 10_000)


def test_the_same_start_again_and_one_of_another_version(tmp_path, monkeypatch):
    async def profile(*_):
        return Profile(layers=[], tied=False, family="gpt2")

    monkeypatch.setattr(facts, "read_profile", profile)
    pattern = corpora.write(f"file://{tmp_path}/texts", "text", corpora.texts())
    asked, folder, said = job("text", pattern, cache_gb=1e-4), tmp_path / "artifacts", []
    prepared = asyncio.run(facts.prepare(asked, folder))
    path = prepared.files[TOKENS]
    assert path.suffix == ".index" and sum(file.stat().st_size for file in folder.iterdir()) < 110_000
    restored = facts.restore(asked, prepared.facts, folder, said.append)
    assert restored is not None and restored.files == prepared.files and not said
    stored = path.read_text()
    path.write_text(stored.replace('"version": 2', '"version": 1'))
    (folder / ".tokens-killed").write_bytes(b"of a start that did not end")
    assert facts.restore(asked, prepared.facts, folder, said.append) is None
    assert "is of another version of farflung: the training data are read again" in said[0]["message"]
    again = asyncio.run(facts.prepare(asked, folder))
    assert again.facts == prepared.facts and path.read_text() == stored and not list(folder.glob(".tokens*"))
    (tmp_path / "texts" / "0.txt").write_text("shorter")
    assert facts.restore(asked, prepared.facts, folder) is None  # so the start looks again, and refuses


def test_a_disk_without_room_is_a_sentence(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    asked = job("jsonl", corpora.write("memory://full", "jsonl", corpora.texts()))
    monkeypatch.setattr(facts, "maker_of", lambda data: full)
    with pytest.raises(JobError, match=r"cannot keep the training data in \S*: No space left on device"):
        facts._files(asked, load_tokenizer("bytes"), CONTEXT, tmp_path, lambda event: None)
