"""Token windows, fetched once and kept by their digest."""

import hashlib

import numpy as np
import pytest
import torch

from farflung.job.data.facts import Facts, Profile
from farflung.node.data.dataset import TOKENS, Tokens
from farflung.proto.errors import FarflungError


class Source:
    def __init__(self, dtype="uint16", rows=12, context=5):
        self.rows = np.random.default_rng(1).integers(0, 250, (rows, context + 1)).astype(dtype)
        self.data = self.rows.tobytes()
        self.calls = 0
        self.facts = Facts(
            samples=rows - 2,
            validation_samples=2,
            context=context,
            vocabulary=256,
            token_dtype=dtype,
            steps=1,
            tokens_digest=hashlib.sha256(self.data).hexdigest(),
            profile=Profile(layers=[], tied=False, family="gpt2"),
            artifacts={},
        )

    def fetch(self, name, offset=0, length=None):
        assert name == TOKENS
        self.calls += 1
        return self.data[offset:] if length is None else self.data[offset : offset + length]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("cached", [False, True])
def test_samples_by_id(tmp_path, dtype, cached):
    source = Source(dtype)
    tokens = Tokens(source.facts, source.fetch, tmp_path if cached else None)
    inputs, targets = tokens.batch([3, 0, 11])
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs, torch.from_numpy(source.rows[[3, 0, 11], :-1].astype(np.int64)))
    assert torch.equal(targets, torch.from_numpy(source.rows[[3, 0, 11], 1:].astype(np.int64)))


def test_the_cache_is_used_and_repaired(tmp_path):
    source = Source()
    Tokens(source.facts, source.fetch, tmp_path)
    calls = source.calls
    Tokens(source.facts, source.fetch, tmp_path)
    assert source.calls == calls
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"\0" * len(source.data))
    assert Tokens(source.facts, source.fetch, tmp_path).batch([0])[0].tolist() == [source.rows[0, :-1].tolist()]
    assert source.calls > calls


@pytest.mark.parametrize("cached", [False, True])
def test_other_bytes_than_promised_are_refused(tmp_path, cached):
    source = Source()
    source.data = bytes(len(source.data))
    with pytest.raises(FarflungError, match="the tokens have the digest"):
        Tokens(source.facts, source.fetch, tmp_path if cached else None)
    source.data = source.data[:-3]
    with pytest.raises(FarflungError, match="the tokens end at byte"):
        Tokens(source.facts, source.fetch, tmp_path if cached else None)
    assert list(tmp_path.iterdir()) == []
