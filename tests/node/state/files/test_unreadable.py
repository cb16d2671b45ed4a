"""Files of a checkpoint that make no sense: the node names the file, whatever is wrong with it."""

import json
import struct

import pytest
import torch
from safetensors.torch import save

from farflung.node.ipc.pipe import IoEnded
from farflung.node.state.files.checkpoint import Checkpoint, Unreadable
from farflung.proto.errors import FarflungError

MANIFEST = {"step": 8, "files": ["stage-0.safetensors"], "digests": {}}
GOOD = save({"weight": torch.arange(6.0).reshape(2, 3)})


def header(**entry):
    text = json.dumps({"weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **entry}}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(24)


def read(file=GOOD, manifest=MANIFEST):
    data = {"manifest.json": manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()}
    data["stage-0.safetensors"] = file

    def fetch(name, offset=0, length=None):
        found = data[name.rpartition("/")[2]]
        if length is not None and not 0 <= offset <= offset + length <= len(found):
            raise FarflungError("there is no so much of it", "", 4)
        return found[offset : None if length is None else offset + length]

    return Checkpoint(8, fetch).read("weight", torch.Size([2, 3]))


def test_a_good_one_is_read():
    assert torch.equal(read(), torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"\xff" * 40,
        GOOD[:-4],
        GOOD[:20],
        struct.pack("<Q", 4) + b"nope" + bytes(24),
        struct.pack("<Q", 2) + b"[]",
        header(dtype="I64"),
        header(dtype="F64", shape=[3]),
        header(shape=[3, 2]),
        header(shape=[1 << 70, 3]),
        header(data_offsets=[-8, 16]),
        header(data_offsets=[0, 1 << 50]),
        header(data_offsets=[24, 0]),
        header(data_offsets=[0, 20]),
        header(data_offsets=7),
        header(shape=None),
    ],
)
def test_what_is_wrong_with_a_file_is_the_files_fault(file):
    with pytest.raises(Unreadable) as found:
        read(file)
    assert (found.value.step, found.value.file) == (8, "stage-0.safetensors") and found.value.why


@pytest.mark.parametrize(
    "manifest",
    [b"", b"[]", b"\xff\xfe", {}, {"files": 3}, {**MANIFEST, "files": []}, {**MANIFEST, "optimizer_steps": []}],
)
def test_and_with_a_manifest(manifest):
    with pytest.raises(Unreadable) as found:
        read(manifest=manifest)
    assert found.value.file == "manifest.json"


def test_the_end_of_the_io_process_is_not():
    def fetch(name, offset=0, length=None):
        raise IoEnded("gone")

    with pytest.raises(IoEnded):
        Checkpoint(8, fetch)
