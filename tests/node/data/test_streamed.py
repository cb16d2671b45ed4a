"""A corpus that a node does not keep whole: bounded on the disk, and the same samples."""

import errno
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from farflung.job.data.facts import Facts, Profile
from farflung.job.data.sampling import sample_ids
from farflung.node.data.dataset import TOKENS, Tokens
from farflung.node.data.streamed import LEAST, StreamedTokens
from farflung.proto.errors import FarflungError
from farflung.proto.messages.pieces import SMALLEST

CONTEXT = 1023
ROWS = 40 * SMALLEST // 2 // (CONTEXT + 1) - 7  # 40 pieces, the last one not full


class Source:
    def __init__(self):
        rows = np.random.default_rng(1).integers(0, 60000, (ROWS, CONTEXT + 1)).astype("<u2")
        self.data = rows.tobytes()
        self.asked, self.waited = [], []
        self.facts = Facts(
            samples=ROWS - 20,
            validation_samples=20,
            context=CONTEXT,
            vocabulary=60000,
            token_dtype="uint16",
            steps=1,
            tokens_digest=hashlib.sha256(self.data).hexdigest(),
            profile=Profile(layers=[], tied=False, family="gpt2"),
            artifacts={},
        )

    def fetch(self, name, offset=0, length=None):
        return self.data[offset : offset + length]

    def later(self, name, offset, length):
        assert name == TOKENS
        self.asked.append(offset // SMALLEST)

        def wait():
            self.waited.append(offset // SMALLEST)
            return self.data[offset : offset + length]

        return wait


def streamed_tokens(*given):
    """One whose disk takes everything."""
    return StreamedTokens(*given, pytest.fail)


@pytest.fixture(scope="module")
def whole():
    return Source()


def test_samples_are_the_same_and_the_disk_is_bounded(tmp_path, whole):
    source, limit = Source(), 20 * SMALLEST
    streamed, kept = streamed_tokens(source.facts, source.later, tmp_path, limit), Tokens(whole.facts, whole.fetch)
    for step in range(30):
        ids = sample_ids(range(step * 8, step * 8 + 8), 1, source.facts.samples)
        for one, other in zip(streamed.batch(ids), kept.batch(ids), strict=True):
            assert one.dtype == torch.int64 and torch.equal(one, other)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= limit
    held_out = range(kept.samples, kept.samples + kept.validation_samples)
    for one, other in zip(streamed.batch(held_out), kept.batch(held_out), strict=True):
        assert torch.equal(one, other)
    assert streamed_tokens(source.facts, source.later, tmp_path, 1)._room == LEAST
    assert len(list(tmp_path.iterdir())) == LEAST


def test_rows_over_the_edge_of_a_piece(tmp_path):
    source = Source()
    facts = source.facts.model_copy(update={"context": 1000, "samples": 8000, "validation_samples": 0})
    size = facts.samples * 1001 * 2
    source.data = np.arange(size // 2).astype("<u2").tobytes()
    inputs, _ = streamed_tokens(facts, source.later, tmp_path, 1 << 30).batch([130, 131, 7999])
    assert inputs.tolist() == [[(row * 1001 + at) % 65536 for at in range(1000)] for row in (130, 131, 7999)]


def test_what_comes_ahead_is_asked_once(tmp_path):
    source = Source()
    streamed = streamed_tokens(source.facts, source.later, tmp_path, 30 * SMALLEST)
    streamed.ahead([0, 1, 300, 1000])
    asked = list(source.asked)
    assert asked == [0, 2, 7] and source.waited == []
    streamed.batch([300, 1000])
    streamed.batch([0])
    assert source.asked == asked and sorted(source.waited) == asked
    streamed.batch([1, 301, 1000])
    assert source.asked == asked
    again = streamed_tokens(source.facts, source.later, tmp_path, 30 * SMALLEST)  # the node's next process
    again.batch([1, 301, 1000])
    assert source.asked == asked


def test_a_piece_that_is_damaged_or_gone_comes_again(tmp_path):
    source = Source()
    streamed = streamed_tokens(source.facts, source.later, tmp_path, 30 * SMALLEST)
    wanted = streamed.batch([0, 300])[0]
    first, second = sorted(tmp_path.iterdir())
    first.write_bytes(first.read_bytes()[:-1])
    second.unlink()
    assert torch.equal(streamed.batch([0, 300])[0], wanted)
    assert source.asked == [0, 2, 0, 2]
    (tmp_path / "0123456789abcdef-5").write_bytes(b"of other tokens")
    streamed_tokens(source.facts, source.later, tmp_path, 30 * SMALLEST)
    assert sorted(tmp_path.iterdir()) == [first, second]


def test_what_was_asked_for_nothing_does_not_stay_in_memory(tmp_path):
    source = Source()
    streamed = streamed_tokens(source.facts, source.later, tmp_path, 30 * SMALLEST)
    streamed.ahead([2000])
    for _ in range(1100):
        streamed.ahead([])
    assert source.waited == source.asked and not streamed._coming


def test_a_short_piece_is_refused(tmp_path):
    source = Source()
    source.data = source.data[:100]
    with pytest.raises(FarflungError, match="piece 0 of the tokens has 100 bytes, not 262144"):
        streamed_tokens(source.facts, source.later, tmp_path, 1 << 30).batch([0])
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(tmp_path, whole, monkeypatch):
    """It goes on with what comes, says so once, and keeps nothing that is cut short; kept pieces stay good."""
    source, said = Source(), []
    streamed, kept = (
        StreamedTokens(source.facts, source.later, tmp_path, 1, said.append),
        Tokens(whole.facts, whole.fetch),
    )
    streamed.batch([0, 300])
    before = sorted(tmp_path.iterdir())
    assert len(before) == 2 and not said

    def full(path, data):
        with path.open("wb") as file:
            file.write(data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        for ids in ([0, 600, 900], [300, 600, 1200]):
            assert torch.equal(streamed.batch(ids)[0], kept.batch(ids)[0])
    assert sorted(tmp_path.iterdir()) == before and source.asked.count(600 // 128) == 2
    assert len(said) == 1 and f"{tmp_path}: No space left on device; what has no room there is fetched" in said[0]
    streamed.batch([600])
    streamed.batch([600])
    assert len(list(tmp_path.iterdir())) == 3 and source.asked.count(600 // 128) == 3


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    source = Source()
    with pytest.raises(FarflungError, match=rf"{tmp_path}/cache/pieces: Not a directory.*--cache FOLDER"):
        streamed_tokens(source.facts, source.later, tmp_path / "cache" / "pieces", 1)
