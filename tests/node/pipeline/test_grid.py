"""Islands of four ranks: rows and matrices cut at once, and every other kind."""

import pytest
from sharded_runs import GROUP, ONE_STAGE, TWO_STAGES, assert_plain, job_of

from farflung.node.pipeline.inside.grid import Grid, grid_of
from farflung.node.pipeline.island import Island
from farflung.proto.errors import FarflungError
from farflung.scheduler import Plan

pytestmark = pytest.mark.usefixtures("nobody_late")


@pytest.fixture(scope="module")
def island():
    with Island("cpu", 4) as made:
        made.measure()
        yield made


def test_rows_and_matrices_at_once(island):
    """Two rows of two ranks. 3 samples are 2 and 1; norms of heads, whose gradients are summed over a row; a tied
    table."""
    job = job_of("qwen3", "fsdp+tp", recompute=True, model={"tie": True, "kv_heads": 2})
    assert_plain(job, ONE_STAGE, island)
    assert island.rows == 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_kind_on_four_ranks(island):
    """Also of heads that are one on each, of rows that some ranks have none of, and of two stages of one node."""
    twice = Plan((("n0", "n1", "n0", "n1"),), ((0, 0), (1, 1), (2, 2), (3, 3)), (4,), schedule="interleaved")
    for inside in ("ddp", "fsdp", "tp", "fsdp+tp"):
        for plan in (ONE_STAGE, TWO_STAGES, twice, GROUP):
            assert_plain(job_of("llama", inside), plan, island)


def test_grids():
    assert [grid_of(inside, 6, 12) for inside in ("ddp", "fsdp", "tp")] == [Grid(6, 1), Grid(6, 1), Grid(1, 6)]
    shapes = {ranks: grid_of("fsdp+tp", ranks, 12) for ranks in (4, 6, 8, 9, 15)}
    assert shapes == {4: Grid(2, 2), 6: Grid(3, 2), 8: Grid(4, 2), 9: Grid(3, 3), 15: Grid(5, 3)}
    assert [Grid(3, 2).place(rank) for rank in (0, 1, 2, 5)] == [(0, 0), (0, 1), (1, 0), (2, 1)]
    for ranks, shares, hint in ((2, 12, "use --island 4 or 6 or 8"), (25, 12, "use"), (8, 1, "fsdp")):
        with pytest.raises(FarflungError, match=f"{ranks} devices are no rows and columns") as caught:
            grid_of("fsdp+tp", ranks, shares)
        assert hint in caught.value.hint
