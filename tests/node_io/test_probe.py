"""Measuring this machine; torch is not imported before a device is measured."""

import subprocess
import sys

import pytest

from farflung.node import probe
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
    code = "import sys, farflung.node.probe, farflung.node.join; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
