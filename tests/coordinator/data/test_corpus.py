"""Token files read where they lie: an index instead of a copy, and a file that was changed is named."""

import asyncio
import hashlib

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.coordinator.data import data, facts
from farflung.coordinator.data.artifacts import Artifacts, NoArtifact
from farflung.coordinator.data.corpus.corpus import held_window, kept_window
from farflung.coordinator.data.corpus.index import Index, index_tokens
from farflung.job.data.facts import Profile
from farflung.job.data.tokenizer_folder import load_tokenizer
from farflung.job.schema import Job
from farflung.proto.errors import JobError
from farflung.proto.messages.pieces import MOST, SMALLEST, piece_size

CONTEXT = 64
BYTES = load_tokenizer("bytes")


def job(names, validation=0.1):
    return Job.model_validate(
        {
            "run": {"steps": 1},
            "model": {"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": CONTEXT},
            "data": {"tokens": [str(name) for name in names], "validation": validation},
        }
    )


def write(path, count, seed=0):
    tokens = np.random.default_rng(seed).integers(0, 256, count).astype("<u2")
    np.save(path, tokens) if path.suffix == ".npy" else path.write_bytes(tokens.tobytes())
    return path


def indexed(asked, folder):
    index = index_tokens(asked, 256, "uint8", CONTEXT, folder)
    return index.path, index


@given(st.integers(2, 3000), st.floats(0, 0.99))
def test_windows_are_the_ones_that_are_tokenised(windows, validation):
    held, kept = data.split(windows, validation)
    assert [held_window(row, windows, len(held)) for row in range(len(held))] == held.tolist()
    assert [kept_window(row, windows, len(held)) for row in range(len(kept))] == kept.tolist()


@pytest.mark.parametrize("validation", [0.0, 0.1, "files"])
def test_rows_are_those_of_a_copy(tmp_path, validation):
    names = [
        write(tmp_path / "a.bin", 300_001),
        write(tmp_path / "b.npy", 17, 1),
        write(tmp_path / "c.bin", 400_000, 2),
    ]
    if validation == "files":
        validation = [str(write(tmp_path / "held.bin", 9_000, 3))]
    asked = job(names, validation)
    copy = data.tokenise(asked, BYTES, CONTEXT, tmp_path / "copy")
    path, index = indexed(asked, tmp_path)
    assert (index.corpus.samples, index.corpus.held) == (copy.samples, copy.validation_samples)
    assert index.digest == copy.digest and Index.load(path).pieces == index.pieces
    rows = copy.path.read_bytes()
    artifacts = Artifacts({"data/tokens": path})
    described = artifacts.describe("data/tokens")
    assert (described.size, described.digest.hex()) == (len(rows), hashlib.sha256(rows).hexdigest())
    for offset, length in [(0, 0), (5, 7), (SMALLEST - 3, 10), (len(rows) - 1, 1), (100, SMALLEST + 1)]:
        parts = list(artifacts.read("data/tokens", offset, length))
        assert b"".join(part for _, part in parts) == rows[offset : offset + length if length else None]
        assert parts[0][0] == offset
    with pytest.raises(NoArtifact, match="are not there"):
        list(artifacts.read("data/tokens", len(rows), 1))


def test_the_coordinator_keeps_no_token(tmp_path, monkeypatch):
    """Ten times the tokens make an index of ten times the digests, 64 characters for 256 KiB, and nothing else."""

    async def profile(*_):
        return Profile(layers=[], tied=False, family="gpt2")

    monkeypatch.setattr(facts, "read_profile", profile)
    stored = []
    for count in (300_000, 3_000_000):
        name = write(tmp_path / f"{count}.bin", count)
        folder = tmp_path / f"state-{count}"
        prepared = asyncio.run(facts.prepare(job([name]), folder))
        (kept,) = folder.glob("*.index")
        assert {path.name for path in folder.iterdir()} == {kept.name, "made.json"}
        assert kept == prepared.files["data/tokens"]
        stored.append(kept.stat().st_size)
        restored = facts.restore(job([name]), prepared.facts, folder)
        assert restored is not None and restored.files == prepared.files
    assert stored[1] - stored[0] < 80 * (3_000_000 - 300_000) / SMALLEST + 200
    write(name, 2_999_999)
    assert facts.restore(job([name]), prepared.facts, folder) is None  # so the start looks again, and refuses


def test_an_address(tmp_path):
    tokens = np.arange(10_000).astype("<u2") % 256
    with fsspec.open("memory://tokens/a.bin", "wb") as file:
        file.write(tokens.tobytes())
    index = index_tokens(job(["memory://tokens/*.bin"], 0.0), 256, "uint8", CONTEXT, tmp_path)
    assert index.read(0)[: CONTEXT + 1] == tokens[: CONTEXT + 1].astype(np.uint8).tobytes()


def test_a_file_that_was_changed_is_named(tmp_path):
    names = [write(tmp_path / "a.bin", 400_000), write(tmp_path / "b.bin", 400_000, 1)]
    path, _ = indexed(job(names, 0.0), tmp_path)
    artifacts = Artifacts({"data/tokens": path})
    last = artifacts.describe("data/tokens").size - 10

    def read():
        return list(artifacts.read("data/tokens", last, 10))

    raw = names[1].read_bytes()
    assert read()
    names[1].write_bytes(raw[:-2000] + bytes(2000))
    with pytest.raises(NoArtifact, match=r"data.tokens: \S*b.bin was changed since the run began: piece 3 has other"):
        read()
    names[1].write_bytes(raw[:-2000])
    with pytest.raises(NoArtifact, match=r"b.bin was changed since the run began: it ends at byte 798000"):
        read()
    names[1].unlink()
    with pytest.raises(NoArtifact, match=r"b.bin was changed since the run began: it is gone"):
        read()
    assert list(artifacts.read("data/tokens", 0, 10))  # of a.bin


def test_files_that_are_no_tokens(tmp_path):
    path = tmp_path / "a.bin"
    for raw, sentence in [(b"abc", "half a token"), (b"", "the text is empty"), (bytes(20), "too short: 10 tokens")]:
        path.write_bytes(raw)
        with pytest.raises(JobError, match=sentence):
            indexed(job([path]), tmp_path)
    path.write_bytes(np.full(1000, 300, "<u2").tobytes())
    with pytest.raises(JobError, match=r"a.bin has the token 300, but data.tokenizer has only 256"):
        indexed(job([path]), tmp_path)


def test_a_file_without_tokens_is_left_out_with_a_word(tmp_path):
    names = [write(tmp_path / "a.bin", 700), tmp_path / "b.bin", write(tmp_path / "c.npy", 0)]
    names[1].touch()
    said = []
    index = index_tokens(job(names, 0.0), 256, "uint8", CONTEXT, tmp_path, said.append)
    assert [part.name for part in index.corpus.training.files] == [str(names[0])] and index.read(0)
    (event,) = said
    assert (
        event["event"] == "notice" and event["message"] == f"data.tokens: no token in {names[1]}, {names[2]}: left out"
    )


def test_uint32_in_a_bin_is_told_by_what_it_looks_like(tmp_path):
    """Of a vocabulary that uint16 holds; files of a larger one are uint32 (test_token_formats.py)."""
    vocabulary = 50257
    path = tmp_path / "a.bin"
    tokens = np.random.default_rng(0).integers(0, vocabulary, 5000)
    path.write_bytes(tokens.astype("<u4").tobytes())
    with pytest.raises(JobError, match=r"a\.bin has nothing above 0 in every second token: these seem to be uint32"):
        index_tokens(job([path]), vocabulary, "uint32", CONTEXT, tmp_path)
    path.write_bytes(tokens.astype("<u2").tobytes())
    assert index_tokens(job([path]), vocabulary, "uint32", CONTEXT, tmp_path)
    path.write_bytes(bytes(10_000))  # a long padding is nothing else
    assert index_tokens(job([path]), vocabulary, "uint32", CONTEXT, tmp_path)
    path.write_bytes(np.full(5000, 300, ">u2").tobytes())
    with pytest.raises(JobError) as caught:
        index_tokens(job([path]), 1000, "uint16", CONTEXT, tmp_path)
    assert "has the token 11265" in caught.value.message and "not little-endian uint16" in (caught.value.hint or "")


def test_digests_fit_one_message():
    assert piece_size(1) == piece_size(SMALLEST * MOST) == SMALLEST
    assert piece_size(10**12) == 8 << 20 and 10**12 / piece_size(10**12) <= MOST
