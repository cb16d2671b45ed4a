"""Files of tokens as tools write them: uint32 without a header, Megatron's with an index, datatrove's."""

import struct

import numpy as np
import pytest

from farflung.coordinator.data.corpus.streams import TokenFiles
from farflung.coordinator.data.files.token_files import token_parts
from farflung.job.tables.data import Data
from farflung.proto.errors import JobError

TOKENS = np.random.default_rng(1).integers(0, 151_936, 5000)


def read(path, vocabulary=151_936, **keys):
    raw = Data(tokens=[str(path)], **keys).raw_kind(vocabulary)
    files = TokenFiles(tuple(token_parts([str(path)], raw)), "uint32", vocabulary)
    return files.read(0, files.tokens)


def megatron(path, code, kind, tokens=TOKENS, lost=0):
    """A .bin of three documents and its index, as Megatron's preprocess_data writes them."""
    size = np.dtype(kind).itemsize
    tokens.astype(kind)[: len(tokens) - lost].tofile(path)
    lengths = [1000, 1, len(tokens) - 1001]
    pointers = np.cumsum([0, *lengths[:-1]]) * size
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, 3, 4)
    index = header + np.array(lengths, "<i4").tobytes() + pointers.astype("<i8").tobytes()
    path.with_suffix(".idx").write_bytes(index + np.arange(4).astype("<i8").tobytes())


def test_raw_tokens_of_a_large_vocabulary_are_uint32(tmp_path):
    TOKENS.astype("<u4").tofile(tmp_path / "a.bin")
    assert np.array_equal(read(tmp_path / "a.bin"), TOKENS)
    small = TOKENS % 50_000
    small.astype("<u4").tofile(tmp_path / "b.bin")
    with pytest.raises(JobError, match="seem to be uint32") as refused:
        read(tmp_path / "b.bin", 50_257)
    assert 'token_type = "uint32"' in refused.value.hint
    assert np.array_equal(read(tmp_path / "b.bin", 50_257, token_type="uint32"), small)


@pytest.mark.parametrize(("code", "kind"), [(4, "<i4"), (8, "<u2"), (5, "<i8")])
def test_megatron(code, kind, tmp_path):
    tokens = TOKENS % 60_000
    megatron(tmp_path / "a.bin", code, kind, tokens)
    assert np.array_equal(read(tmp_path / "a.bin"), tokens)


def test_a_megatron_index_that_is_of_another_file(tmp_path):
    megatron(tmp_path / "a.bin", 4, "<i4", lost=3)
    with pytest.raises(JobError, match="says 5000 tokens, and 4997 are there"):
        read(tmp_path / "a.bin")
    (tmp_path / "a.idx").write_bytes(b"something else")
    with pytest.raises(JobError, match="no index of Megatron"):
        read(tmp_path / "a.bin")


def test_datatrove(tmp_path):
    (TOKENS % 60_000).astype("<u2").tofile(tmp_path / "a.ds")
    (tmp_path / "a.ds.metadata").write_text("Qwen/Qwen3|2\n5000\n5 K")
    assert np.array_equal(read(tmp_path / "a.ds"), TOKENS % 60_000)
    (tmp_path / "a.ds.metadata").write_text("Qwen/Qwen3|9\n5000\n5 K")
    with pytest.raises(JobError, match="2 or 4 bytes"):
        read(tmp_path / "a.ds")
