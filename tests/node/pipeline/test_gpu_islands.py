"""Two ranks of an island on one card: NCCL refuses that, so they communicate over gloo. What they hold in pieces trains
as one process with whole parameters does.

FARFLUNG_GPU names the device; ``cpu`` runs these tests where there is no card, so that they do not rot.
"""

import os

import pytest
from sharded_runs import ONE_STAGE, TWO_STAGES, assert_plain, job_of

from farflung.node.pipeline.inside.meeting import BACKEND
from farflung.node.pipeline.island import Island

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("nobody_late")]


@pytest.fixture(scope="module")
def island():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BACKEND, "gloo")
        with Island(os.environ.get("FARFLUNG_GPU", "cuda:0"), 2) as made:
            made.measure()
            assert made.devices[0] == made.devices[1]
            yield made


CASES = {
    "copies": (job_of(inside="ddp"), ONE_STAGE),
    "blocks pass": (job_of(inside="ddp", recompute=True, train={"offload": "parameters"}), ONE_STAGE),
    "rows": (job_of(), ONE_STAGE),
    "matrices, two stages": (job_of("llama", "tp"), TWO_STAGES),
}


@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_plain_loop(island, name):
    assert_plain(*CASES[name], island, close=2e-3)
