"""A safetensors file written in place: the library's bytes, one copy, and offsets that hold for a stage of 105 GB."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from safetensors.torch import save

from farflung.node.models.weights.safetensors_range import Source
from farflung.node.state.files.tensor_writer import write, written


def room(length):
    return memoryview(bytearray(length))


SHAPES = [{}, {"b.weight": (3, 5), "a": (7,), "none": (0,)}, {"ä": (1,), "z" * 90: (2, 1, 3)}]


@pytest.mark.parametrize("shapes", SHAPES)
def test_the_bytes_are_the_library_s(shapes):
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    tensors |= {f"optimizer.m.{name}": torch.randn(shape).bfloat16() for name, shape in shapes.items()}
    assert bytes(write(tensors, room)) == save(tensors, {"format": "pt"})


def test_what_is_larger_than_a_slice_is_whole(monkeypatch):
    monkeypatch.setattr("farflung.node.state.files.tensor_writer._SLICE", 1000)
    tensors = {"a": torch.randn(3, 1777), "b": torch.randn(999).bfloat16()}
    assert bytes(write(tensors, room)) == save(tensors, {"format": "pt"})


def test_a_stage_of_70_billion_parameters_in_eight_fits(tmp_path):
    """105 GB: 8.75 billion parameters with two moments, in fp32. The file is sparse, and read by range."""
    layer = {f"{part}.weight": (8192, 28672) for part in ("gate", "up", "down")} | {
        f"{part}.weight": (8192, 8192) for part in ("q", "k", "v", "o")
    }
    tensors = {
        f"{prefix}layers.{index}.{name}": torch.empty(shape, device="meta")
        for prefix in ("", "optimizer.m.", "optimizer.v.")
        for index in range(9)
        for name, shape in layer.items()
    }
    plan = written(tensors)
    assert plan.size > 100e9
    assert sum(tensor.numel() * 4 for tensor in tensors.values()) + len(plan.header) == plan.size
    last = max(plan.offsets, key=plan.offsets.__getitem__)
    file = tmp_path / "stage-0.safetensors"
    with file.open("wb") as out:
        out.write(plan.header)
        out.truncate(plan.size)
        out.seek(plan.size - 4)
        out.write(torch.tensor([3.5]).numpy().tobytes())

    def fetch(name, offset=0, length=None):
        with (tmp_path / name).open("rb") as data:
            data.seek(offset)
            return data.read(length)

    source = Source(fetch, "", "the file", "")
    slots = source.slots("stage-0.safetensors")
    assert set(slots) == set(tensors)
    ends = sorted((slot.start, slot.end) for slot in slots.values())
    assert all(one[1] == other[0] for one, other in pairwise(ends)) and ends[-1][1] == plan.size
    assert source.read(slots[last], last)[-1, -1].item() == 3.5


MEASURE = """
import json, re, sys, torch
from pathlib import Path
from farflung.node.state.files.tensor_writer import write
from safetensors.torch import save
tensors = {str(index): torch.ones(1 << 22) for index in range(16)}
def peak():
    return 1024 * int(re.search("VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew from here on
before = peak()
if sys.argv[1] == "save":
    place = memoryview(bytearray(save(tensors)))
else:
    place = write(tensors, lambda length: memoryview(bytearray(length)))
print(json.dumps([peak() - before, len(place)]))
"""


@pytest.mark.parametrize(("how", "copies"), [("write", 1.0), ("save", 2.0)])
def test_one_copy_is_made_and_the_library_made_two(how, copies):
    done = subprocess.run([sys.executable, "-c", MEASURE, how], capture_output=True, text=True, check=True)
    grown, size = json.loads(done.stdout)
    assert grown / size == pytest.approx(copies, abs=0.25)
