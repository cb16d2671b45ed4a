"""What of a stage lies on the device, by ``train.offload``."""

import math

import pytest

from farflung.scheduler.workloads.jobs import workload_of
from farflung.scheduler.workloads.layers import _fits, stage_memory

MODEL = {"family": "llama", "layers": 4, "width": 64, "heads": 4, "context": 32}
DELTA = {"mode": "delta", "codec": "cocktail:random=0.5,top=0.5"}


@pytest.mark.parametrize(
    ("kind", "ends", "blocks"),
    [(False, 20, 20), (True, 12, 12), ("moments", 12, 12), ("optimizer", 4, 4), ("parameters", 4, 0)],
)
def test_bytes_a_weight_takes_on_the_device(kind, ends, blocks):
    workload = workload_of({"model": MODEL, "train": {"offload": kind, "recompute": True}, "updates": DELTA})
    assert workload.optimizer_bytes == ends
    assert (ends if workload.block_bytes is None else workload.block_bytes) == blocks


@pytest.mark.parametrize("kind", ["none", "optimizer", "parameters"])
def test_a_cut_fits_what_its_stage_needs(kind):
    workload = workload_of({"model": MODEL, "train": {"offload": kind, "recompute": True}, "updates": DELTA})
    for first, last in ((0, 2), (1, 3), (3, 5), (0, 5)):
        need = stage_memory(workload, first, last, 2)
        assert need < math.inf and _fits(workload, [need], [2])(0, first, last)
        assert not _fits(workload, [0.999 * need], [2])(0, first, last)
