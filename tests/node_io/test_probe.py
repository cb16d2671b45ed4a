"""Measuring this machine; torch is not imported before a device is measured."""

import subprocess
import sys

import pytest

from farflung.node.device import probe
from farflung.proto.errors import FarflungError


def test_the_cpu_is_measured():
    device = probe.measure_device("cpu")
    assert device.kind == "cpu" and device.tflops > 1e-3 and device.cores >= 1
    assert device.memory_bytes > 1 << 28 and "cores" in device.description
    assert 0 < device.memory_bytes <= probe.available_memory() * 1.5


@pytest.mark.parametrize("wish", ["gpu", "cpu:1", "cuda:x", "mps:0", ""])
def test_words_that_are_no_device(wish):
    with pytest.raises(FarflungError, match="is no device"):
        probe.find_device(wish)


def test_a_device_that_is_not_here():
    with pytest.raises(FarflungError, match="there is no cuda:99 here: torch sees"):
        probe.find_device("cuda:99")


def test_torch_is_imported_late():
    code = "import sys, farflung.node.device.probe, farflung.node.join; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_metal_and_rocm_are_taken_or_refused_in_a_sentence(monkeypatch):
    import torch

    with pytest.raises(FarflungError, match="no mps device: this torch was built without Metal"):
        probe.find_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    with pytest.raises(FarflungError, match="no mps device: torch sees no Metal here"):
        probe.find_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 12 << 30)
    metal = probe.find_device("auto")
    assert metal == probe.find_device("mps") == torch.device("mps")
    assert probe.free_memory(metal) == min(12 << 30, probe.available_memory()) and "mps" in probe.describe(metal)
    assert "codecs on the CPU" in probe.beside_cuda(metal, "delta")
    with pytest.raises(FarflungError, match="Metal divides in a way of its own"):
        probe.beside_cuda(metal, "gradient")
    assert (
        probe.beside_cuda(torch.device("cpu"), "gradient") == probe.beside_cuda(torch.device("cuda:0"), "delta") == ""
    )
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "ROCm 6.4: codecs are plain torch operations" in probe.beside_cuda(torch.device("cuda:0"), "gradient")
